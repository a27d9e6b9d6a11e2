//! Start of a whole mesh: as a library in this process, and by `faultline up`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Output, Stdio},
};

use faultline::{Config, LocalMesh};
use faultline_client::{Answer, failure_of, text};
use faultline_proto::{
    a2a::{Task, TaskState},
    reason,
};
use faultline_worker::{Agent, Context, Error, Offer, Worker};
use tempfile::TempDir;

async fn send(mesh: &LocalMesh, agent: &str, words: &str) -> Task {
    let sent = mesh.client().agent(agent).send(text(words)).await.expect("the call runs");
    match sent {
        Answer::Task(task) => task,
        other => panic!("no task: {other:?}"),
    }
}

struct Shout;

impl Agent for Shout {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("shout", cx.text().to_uppercase()).await
    }
}

#[tokio::test]
async fn mesh_starts_answers_and_stops() {
    let data = TempDir::new().unwrap();
    let mut config = Config::local(data.path()).on_free_ports();
    config.coordinator.retries = 0;
    let mut mesh = LocalMesh::start(config).await.unwrap();
    let echoed = send(&mesh, "echo", "hello").await;
    assert_eq!(echoed.status.unwrap().state(), TaskState::Completed);
    assert_eq!(echoed.artifacts.len(), 1);

    let failed = send(&mesh, "script", "fail RATE_LIMITED code=7 text=\"slow down\"").await;
    let failure = failure_of(&failed.status.unwrap(), failed.metadata.as_ref()).unwrap();
    assert_eq!((failure.row(), failure.business_code.as_str()), (&reason::RATE_LIMITED, "7"));

    let own = |config| Worker::new(config).offer(Offer::new("shout", Shout));
    mesh.attach(faultline_worker::Config::default(), own).await.unwrap();
    let shouted = send(&mesh, "shout", "hello").await;
    assert_eq!(shouted.status.unwrap().state(), TaskState::Completed);
    mesh.detach().await.unwrap();
    mesh.stop().await.unwrap();
}

#[tokio::test]
async fn stored_task_is_readable_after_a_restart() {
    let data = TempDir::new().unwrap();
    let config = Config::local(data.path()).on_free_ports();
    let mesh = LocalMesh::start(config.clone()).await.unwrap();
    let before = send(&mesh, "echo", "hello").await;
    mesh.stop().await.unwrap();
    let mesh = LocalMesh::start(config).await.unwrap();
    let after = mesh.client().task(&before.id).await.unwrap();
    assert_eq!(after, before);
    mesh.stop().await.unwrap();
}

fn faultline(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(args).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = faultline(args).output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// The exit code and output of a command on a terminal at which `keys` are typed.
fn run_attended(args: &[&str], keys: &str) -> (i32, String) {
    let terminal = "import os, pty, sys\n\
        sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut command = Command::new("python3");
    command.args(["-c", terminal, env!("CARGO_BIN_EXE_faultline")]).args(args);
    command.env("NO_COLOR", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("python3 is installed, as tests/run checks");
    let mut typed = child.stdin.take().expect("stdin is piped");
    typed.write_all(keys.as_bytes()).expect("stdin is open");
    let Output { status, stdout, .. } = child.wait_with_output().expect("the command ends");
    (status.code().unwrap_or(-1), String::from_utf8_lossy(&stdout).into_owned())
}

/// A child process; a drop kills it, also when a test fails.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn ready_line_is_printed_once_and_every_command_works() {
    let data = TempDir::new().unwrap();
    let data = data.path().to_str().unwrap();
    let any = "127.0.0.1:0";
    let mut command = faultline(&["up", "--listen", any, "--hub", any, "--data", data]);
    command.env("FAULTLINE_LOG", "off").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut up = Up(command.spawn().unwrap());
    let mut out = BufReader::new(up.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let url = line.strip_prefix("ready ").unwrap().trim_end();
    assert!(url.starts_with("http://127.0.0.1:"), "{line}");
    let at = |args: &[&str]| run(&[args, &["--gateway", url]].concat());

    let (code, out_text, err_text) = at(&["send", "echo", "hello"]);
    assert_eq!((code, out_text.as_str(), err_text.as_str()), (0, "hello\n", ""));

    let (code, out_text, err_text) = at(&["send", "script", "chunk a; fail RATE_LIMITED"]);
    assert_eq!((code, out_text.as_str()), (75, "a\n"));
    assert!(err_text.contains(" failed: RATE_LIMITED (gRPC RESOURCE_EXHAUSTED"), "{err_text}");
    let id = err_text.split(' ').nth(2).unwrap();
    let (code, out_text, _) = at(&["explain", id]);
    assert_eq!(code, 0);
    assert!(out_text.contains("attempt 1 ") && out_text.contains("└─ script"), "{out_text}");

    let (code, _, err_text) = at(&["send", "script", "ask Name?; chunk \"hello $answer\""]);
    assert_eq!(code, 3);
    assert!(err_text.contains(" asks: Name?\n"), "{err_text}");
    let id = err_text.split(' ').nth(2).unwrap();
    let (code, out_text, err_text) = at(&["answer", id, "Ann"]);
    assert_eq!((code, out_text.as_str()), (0, "hello Ann\n"), "{err_text}");
    assert_eq!(at(&["watch", id]).1, "hello Ann\n");
    let asking = ["send", "script", "ask Name?; ask Age?; chunk \"so $answer\"", "--gateway", url];
    let (code, seen) = run_attended(&asking, "Ann\n42\n");
    assert!(code == 0 && seen.contains("Name?") && seen.contains("Age?"), "{code}: {seen}");
    assert!(seen.contains("so 42\r\n") && seen.contains(" completed "), "{seen}");
    let (code, seen) = run_attended(&asking, "\n");
    assert!(code == 3 && seen.contains("faultline answer"), "no answer, the task waits: {seen}");
    assert_eq!(at(&["cancel", id]).0, 65);
    assert!(at(&["get", id]).1.contains("completed"));
    let (code, out_text, _) = at(&["list", "--state", "failed"]);
    assert_eq!((code, out_text.lines().count()), (0, 1), "{out_text}");
    let (code, out_text, _) = at(&["list", "--json"]);
    assert_eq!((code, out_text.lines().count()), (0, 1));

    let (code, id, _) = at(&["send", "--no-wait", "script", "sleep 30s"]);
    assert_eq!(code, 0);
    let (code, out_text, _) = at(&["cancel", id.trim()]);
    assert_eq!((code, out_text), (0, format!("task {} canceled\n", id.trim())));

    let term = Command::new("kill").args(["-TERM", &up.0.id().to_string()]).status().unwrap();
    assert!(term.success());
    assert_eq!(up.0.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "stdout has one line only");
}
