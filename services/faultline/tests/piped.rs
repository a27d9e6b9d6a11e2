//! The CLI's output on a pipe is the stored artifact, also when a worker was killed in mid-stream.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(40);

/// A process that is not left behind when a test fails.
struct Role(Child);

impl Drop for Role {
    fn drop(&mut self) {
        // `Child::kill` is SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn faultline(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(args).current_dir(dir).env("NO_COLOR", "1").env("FAULTLINE_LOG", "off");
    command.env("FAULTLINE_MESH__TOKEN", "token-of-this-test");
    command.env("FAULTLINE_COORDINATOR__REATTACH_GRACE_MS", "300");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A role of the mesh once it serves, and where.
fn role(dir: &Path, args: &[&str]) -> (Role, String) {
    let mut role = Role(faultline(dir, args).spawn().expect("the binary runs"));
    let mut out = BufReader::new(role.0.stdout.take().expect("stdout is piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it says when it serves");
    let at = line.strip_prefix("ready").unwrap_or_else(|| panic!("{args:?} said {line:?}"));
    // Nobody reads on, so it must not be closed either.
    thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    (role, at.trim().to_owned())
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let output = faultline(dir, args).output().expect("the binary runs");
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

/// The text of the artifact that the script writes.
fn text(task: &Value) -> String {
    let parts = task["artifacts"][0]["parts"].as_array().cloned().unwrap_or_default();
    parts.iter().filter_map(|part| part["text"].as_str().map(str::to_owned)).collect()
}

#[test]
fn piped_output_equals_the_stored_artifact_after_a_worker_was_killed() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let any = "127.0.0.1:0";
    let (_coordinator, hub) =
        role(dir, &["coordinator", "--listen", any, "--store", "sqlite:mesh.db"]);
    let hub = if hub.contains("://") { hub } else { format!("http://{hub}") };
    let attach = ["worker", "--agents", "script", "--coordinator", &hub];
    let (worker, _) = role(dir, &attach);
    let (_gateway, url) = role(dir, &["gateway", "--listen", any, "--coordinator", &hub]);
    let script =
        "chunk \"one \"; checkpoint; chunk \"two \"; chunk \"three \"; sleep 3s; chunk four";
    let send = ["send", "script", script, "--gateway", &url];
    let sending = faultline(dir, &send).spawn().expect("the binary runs");
    // In mid-stream: behind the checkpoint, before the end.
    let id = started(dir, &url, "three ");
    drop(worker);
    let (_worker, _) = role(dir, &attach);
    let output = sending.wait_with_output().expect("it ends");
    let task = json(dir, &["get", &id, "--json", "--gateway", &url]);
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(text(&task), "one two three four", "{task}");
    let printed = String::from_utf8(output.stdout).expect("it is text");
    assert_eq!(printed, format!("{}\n", text(&task)));
    let seen = json(dir, &["explain", &id, "--json", "--gateway", &url]);
    assert!(seen.to_string().contains("OUTCOME_WORKER_LOST"), "an attempt was lost: {seen}");
}

/// A mesh in one process, once it serves, and where.
fn up(dir: &Path) -> (Role, String) {
    let any = "127.0.0.1:0";
    role(dir, &["up", "--listen", any, "--hub", any, "--data", ".faultline"])
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &id]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{name} reaches {id}");
}

/// A command that follows a task of this script, once its artifact ends with `text`; and the task.
fn following(dir: &Path, url: &str, script: &str, ends_with: &str) -> (Child, String) {
    let mut send = faultline(dir, &["send", "script", script, "--gateway", url]);
    let sending = send.stderr(Stdio::piped()).spawn().expect("the binary runs");
    (sending, started(dir, url, ends_with))
}

/// The newest task, once its artifact ends with this text.
fn started(dir: &Path, url: &str, ends_with: &str) -> String {
    let until = Instant::now() + LONG;
    loop {
        let list = json(dir, &["list", "--json", "--gateway", url]);
        let id = list["tasks"][0]["id"].as_str().unwrap_or_default().to_owned();
        let task = json(dir, &["get", &id, "--json", "--gateway", url]);
        if !id.is_empty() && text(&task).ends_with(ends_with) {
            return id;
        }
        assert!(Instant::now() < until, "the task does not begin: {list}");
    }
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn interrupted_command_prints_the_stored_artifact() {
    let dir = TempDir::new().unwrap();
    let (_up, url) = up(dir.path());
    let script = "chunk \"one \"; chunk \"two \"; sleep 60s";
    let (sending, id) = following(dir.path(), &url, script, "two ");
    signal(&sending, "INT");
    let (out, err) = said(&sending.wait_with_output().expect("it ends"));
    let task = json(dir.path(), &["get", &id, "--json", "--gateway", &url]);
    assert_eq!(out, format!("{}\n", text(&task)), "{err}");
    assert!(err.contains(&format!("faultline watch {id}")), "{err}");
}

#[test]
fn second_interrupt_does_not_wait_for_the_store_and_nothing_is_printed() {
    let dir = TempDir::new().unwrap();
    let (up, url) = up(dir.path());
    let (sending, id) = following(dir.path(), &url, "chunk \"one \"; sleep 60s", "one ");
    // The mesh falls silent, so that the stored task cannot be read.
    signal(&up.0, "STOP");
    let begun = Instant::now();
    signal(&sending, "INT");
    thread::sleep(Duration::from_millis(500));
    signal(&sending, "INT");
    let output = sending.wait_with_output().expect("it ends");
    let took = begun.elapsed();
    signal(&up.0, "CONT");
    let (out, err) = said(&output);
    assert!(took < Duration::from_secs(3), "it took {took:?}: {err}");
    assert_eq!(out, "", "what the events told is not printed");
    assert!(err.contains(&format!("Read it with: faultline get {id}")), "{err}");
}

/// A terminal at which somebody types an answer once the file `go` is there. Stdout is a pipe.
const TERMINAL: &str = r#"
import os, pty, subprocess, sys, threading, time
us, them = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stdin=them, stderr=them)
def read():
    while True:
        try:
            os.read(us, 4096)
        except OSError:
            return
threading.Thread(target=read, daemon=True).start()
while not os.path.exists("go"):
    time.sleep(0.05)
os.write(us, b"yes\n")
sys.exit(child.wait())
"#;

#[test]
fn answer_that_is_refused_does_not_lose_the_artifacts_before_it() {
    let dir = TempDir::new().unwrap();
    let (_up, url) = up(dir.path());
    let mut command = Command::new("python3");
    command.args(["-c", TERMINAL, env!("CARGO_BIN_EXE_faultline"), "send", "script"]);
    command.args(["chunk \"held \"; ask \"more?\"", "--gateway", &url]).current_dir(dir.path());
    let command = command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let asking = command.spawn().expect("python3 is there, as tests/run sees to");
    let id = started(dir.path(), &url, "held ");
    let until = Instant::now() + LONG;
    while json(dir.path(), &["get", &id, "--json", "--gateway", &url])["status"]["state"]
        != "TASK_STATE_INPUT_REQUIRED"
    {
        assert!(Instant::now() < until, "it does not ask");
    }
    // Time to ask the person. Without it the test still holds, by another way.
    thread::sleep(Duration::from_millis(500));
    let cancelled = faultline(dir.path(), &["cancel", &id, "--gateway", &url]).status();
    assert!(cancelled.is_ok_and(|status| status.success()), "it is cancelled");
    fs::write(dir.path().join("go"), "").expect("there is room");
    let output = asking.wait_with_output().expect("it ends");
    assert!(!output.status.success(), "the answer is refused");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "held \n");
}
