//! The commands for operators, `top`, `failures` and `list --all`: the binary against a mesh.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Output, Stdio},
};

use faultline::{Config, LocalMesh};
use faultline_client::{Client, text};
use faultline_proto::{
    Failure,
    v1::{InspectResponse, OperatorCancelRequest},
};
use serde_json::Value;
use tempfile::TempDir;

struct Setup {
    mesh: LocalMesh,
    _data: TempDir,
}

impl Setup {
    /// A mesh with a completed task, a task that failed two hops down and a task that waits.
    async fn start() -> Self {
        let data = TempDir::new().expect("a directory can be made");
        let config = Config::local(data.path()).on_free_ports();
        let mesh = LocalMesh::start(config).await.expect("the mesh starts");
        for (agent, words) in [
            ("echo", "hello"),
            ("script", "delegate script { fail INVALID_ARGUMENT text=\"no such card\" }"),
            ("script", "ask \"which colour?\""),
        ] {
            mesh.client().agent(agent).send(text(words)).await.expect("the call runs");
        }
        Self { mesh, _data: data }
    }

    /// The stdout and stderr of a command without a terminal.
    async fn run(&self, args: &[&str]) -> (String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.args(args).args(["--gateway", &self.mesh.url()]).stdin(Stdio::null());
        let ran = tokio::task::spawn_blocking(move || command.output()).await;
        let Output { status, stdout, stderr } = ran.expect("no panic").expect("the binary runs");
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        let out = text(stdout);
        let err = text(stderr);
        assert!(status.success(), "{err}");
        (out, err)
    }

    /// The exit code and output of a command on a terminal at which `keys` are typed.
    async fn attended(&self, args: &[&str], keys: &str) -> (Option<i32>, String) {
        let terminal = "import os, pty, sys\n\
            sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
        let mut command = Command::new("python3");
        command.args(["-c", terminal, env!("CARGO_BIN_EXE_faultline")]).args(args);
        command.args(["--gateway", &self.mesh.url()]).env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let keys = keys.to_owned();
        let ran = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().expect("python3 is installed, as tests/run checks");
            let mut typed = child.stdin.take().expect("stdin is piped");
            typed.write_all(keys.as_bytes()).expect("stdin is open");
            child.wait_with_output().expect("the command ends")
        });
        let Output { status, stdout, .. } = ran.await.expect("no panic");
        (status.code(), String::from_utf8_lossy(&stdout).into_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn single_frame_is_text_for_people_and_json_for_programs() {
    let setup = Setup::start().await;
    let (output, _) = setup.run(&["top", "--once"]).await;
    for words in ["done/s", "\necho ", "\nscript ", "\nlocal ", "INVALID_ARGUMENT  script"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    assert!(!output.contains('\x1b'), "{output:?}");
    let (json, _) = setup.run(&["top", "--json"]).await;
    let seen: Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(seen["agents"]["agents"][1]["name"], "script", "{seen}");
    assert_eq!(seen["workers"]["workers"][0]["name"], "local", "{seen}");
    assert_eq!(seen["activity"]["bucketMs"], 1000, "{seen}");
    assert_eq!(seen["failures"]["failures"][0]["tasks"], 2, "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn live_view_restores_the_terminal() {
    let setup = Setup::start().await;
    // The keys select a failure, explain it, return and quit.
    let (code, seen) = setup.attended(&["top"], "jk\rqq").await;
    assert_eq!(code, Some(0), "{seen}");
    for words in ["enter explain", "› INVALID_ARGUMENT", "not tried again", "q back"] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    let enter = seen.find("\x1b[?1049h");
    let leave = seen.rfind("\x1b[?1049l");
    assert!(enter < leave && enter.is_some(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_tasks_of_all_callers_are_listed() {
    let setup = Setup::start().await;
    let (output, _) = setup.run(&["failures", "--since", "15m"]).await;
    let cells: Vec<_> = output.trim_end().split('\t').collect();
    assert_eq!(cells[..4], ["INVALID_ARGUMENT", "script", "1", "2"], "{output}");
    let (json, _) = setup.run(&["failures", "--json"]).await;
    let seen: Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(seen["failures"][0]["lastTaskId"], cells[5], "{seen}");
    let lines = async |args: &[&str]| {
        let (output, _) = setup.run(&[&["list", "--all"], args].concat()).await;
        output.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&[]).await.len(), 4);
    assert_eq!(lines(&["--limit", "3"]).await.len(), 3);
    assert_eq!(lines(&["--reason", "INVALID_ARGUMENT", "--origin", "script"]).await.len(), 2);
    assert_eq!(lines(&["--roots", "--state", "failed", "--since", "1h"]).await.len(), 1);
    let waiting = lines(&["--state", "input-required"]).await;
    assert!(waiting[0].contains("\tinput-required\t") && waiting[0].contains("\tscript\tlocal\t"));
    assert!(lines(&["--principal", "nobody"]).await.is_empty());
    let (quiet, said) = setup.run(&["failures", "--since", "1s"]).await;
    assert!(quiet.is_empty() == said.contains("nothing failed"), "{quiet}{said}");
}

/// A child process; a drop kills it, also when a test fails.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// SHA-256 of `hunter2`.
const HUNTER2: &str = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";

#[tokio::test(flavor = "multi_thread")]
async fn up_lets_operators_act_unless_caller_tokens_are_configured() {
    let token = format!("[{{ sha256 = '{HUNTER2}', principal = 'olga', scopes = ['operate'] }}]");
    for (auth, act, expected) in [
        ("", "", "TASK_NOT_FOUND"),
        (token.as_str(), "", "PERMISSION_DENIED"),
        (token.as_str(), "true", "TASK_NOT_FOUND"),
        ("", "false", "PERMISSION_DENIED"),
    ] {
        let data = TempDir::new().expect("a directory can be made");
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.args(["up", "--listen", "127.0.0.1:0", "--hub", "127.0.0.1:0", "--data"]);
        command.arg(data.path()).current_dir(data.path()).env("FAULTLINE_LOG", "off");
        for (name, value) in [("AUTH__TOKEN", auth), ("GATEWAY__OPERATORS_ACT", act)] {
            if !value.is_empty() {
                command.env(format!("FAULTLINE_{name}"), value);
            }
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut up = Up(command.spawn().expect("the binary runs"));
        let mut line = String::new();
        let mut out = BufReader::new(up.0.stdout.take().expect("stdout is piped"));
        out.read_line(&mut line).expect("a line is printed");
        let url = line.trim_end().strip_prefix("ready ").expect("the mesh is ready");
        let client = Client::builder(url).bearer("hunter2").direct().expect("a good URL");
        let request = OperatorCancelRequest { task_id: "nobody".into(), ..<_>::default() };
        let refused = client.mesh::<_, InspectResponse>("Cancel", &request).await;
        let failure = Failure::from(refused.expect_err("there is no such task"));
        assert_eq!(failure.reason, expected, "{auth} {act}");
    }
}
