//! Idempotency keys of the command line: a repeated command starts one task.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
};

use serde_json::Value;
use tempfile::TempDir;

/// A child process; a drop kills it, also when a test fails.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn faultline(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(args).current_dir(dir).env("NO_COLOR", "1").env("FAULTLINE_LOG", "off");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    faultline(dir, args).output().expect("the binary runs")
}

fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_slice(&run(dir, args).stdout).expect("the command prints JSON")
}

/// The stdout of a command, which must succeed.
fn printed(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("the output is text").trim().to_owned()
}

/// Starts a mesh in one process; the process and its URL.
fn up(dir: &Path) -> (Up, String) {
    let args = ["up", "--listen", "127.0.0.1:0", "--hub", "127.0.0.1:0", "--data", ".faultline"];
    let mut up = Up(faultline(dir, &args).stderr(Stdio::null()).spawn().expect("the binary runs"));
    let mut out = BufReader::new(up.0.stdout.take().expect("stdout is piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line is printed");
    let url = line.strip_prefix("ready").expect("the first line names the URL").trim().to_owned();
    // The pipe is drained and held open, so that later output does not end the process.
    thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    (up, url)
}

#[test]
fn second_run_of_a_keyed_send_finds_the_task_of_the_first() {
    let dir = TempDir::new().expect("a directory can be made");
    let dir = dir.path();
    let (_up, url) = up(dir);
    let at = ["--gateway", &*url];
    let send = |flags: &[&str], key: &str| {
        printed(dir, &[&["send"], flags, &["--key", key, "echo", "once"], &at].concat())
    };
    let tasks = || {
        let list = json(dir, &[&["list", "--json"][..], &at].concat());
        list["tasks"].as_array().expect("a list of tasks").clone()
    };
    // The run that waits comes first, or the run that does not.
    for (key, first, second, count) in
        [("order-1", &[][..], &["--no-wait"][..], 1), ("order-2", &["--no-wait"], &[], 2)]
    {
        let runs = [first, second, first, second].map(|flags| (flags, send(flags, key)));
        let known = tasks();
        assert_eq!(known.len(), count, "{key}: {known:?}");
        let id = known[0]["id"].as_str().expect("a task has an id");
        for (flags, text) in runs {
            assert_eq!(text, if flags.is_empty() { "once" } else { id }, "{key} {flags:?}");
        }
        let seen = json(dir, &[&["explain", id, "--json"][..], &at].concat());
        let attempts = seen["attempts"].as_array().map_or(0, Vec::len);
        assert_eq!(attempts, 1, "{key}: {seen}");
    }
    let other = run(dir, &[&["send", "--key", "order-1", "echo", "twice"][..], &at].concat());
    let stderr = String::from_utf8_lossy(&other.stderr);
    assert!(stderr.contains("ALREADY_EXISTS"), "another text under the key: {stderr}");
}
