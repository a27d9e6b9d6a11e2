//! The CLI's output on a pipe is the stored artifact, also when a worker was killed in mid-stream.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
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
    let hub = match hub.contains("://") {
        true => hub,
        false => format!("http://{hub}"),
    };
    let attach = ["worker", "--agents", "script", "--coordinator", &hub];
    let (worker, _) = role(dir, &attach);
    let (_gateway, url) = role(dir, &["gateway", "--listen", any, "--coordinator", &hub]);
    let script =
        "chunk \"one \"; checkpoint; chunk \"two \"; chunk \"three \"; sleep 3s; chunk four";
    let send = ["send", "script", script, "--gateway", &url];
    let sending = faultline(dir, &send).spawn().expect("the binary runs");
    // In mid-stream: behind the checkpoint, before the end.
    let until = Instant::now() + LONG;
    let id = loop {
        let list = json(dir, &["list", "--json", "--gateway", &url]);
        let id = list["tasks"][0]["id"].as_str().unwrap_or_default().to_owned();
        let is_there = !id.is_empty()
            && text(&json(dir, &["get", &id, "--json", "--gateway", &url])).ends_with("three ");
        if is_there {
            break id;
        }
        assert!(Instant::now() < until, "the task does not begin: {list}");
    };
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
