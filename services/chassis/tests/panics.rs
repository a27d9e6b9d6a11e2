//! Panics in a process with logging: one event each, whatever the message quotes. The process is
//! this test executable again.
#![allow(clippy::unwrap_used)]

use std::{env, process::Command};

use faultline_chassis::telemetry::{self, Options};
use serde_json::Value;

const FORMAT: &str = "FAULTLINE_TEST_PANIC_FORMAT";
/// As a caller may send it to an agent that quotes it.
const CALLER_TEXT: &str = "x\n2026-01-01T00:00:00Z ERROR forged \u{1b}[2J";

#[test]
fn panic_is_one_escaped_event_with_its_location_in_both_formats() {
    if let Ok(format) = env::var(FORMAT) {
        return panic_with_logs(format == "json");
    }
    for format in ["json", "text"] {
        let name = "panic_is_one_escaped_event_with_its_location_in_both_formats";
        let output = Command::new(env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(FORMAT, format)
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{log}");
        let lines: Vec<_> = log.lines().collect();
        assert_eq!(lines.len(), 2, "one line for each panic: {log}");
        assert!(!log.contains('\u{1b}') && log.contains("forged"), "{log:?}");
        assert!(lines.iter().all(|line| line.contains("tests/panics.rs:")), "{log}");
        assert!(lines[1].contains("the payload is not text"), "{log}");
        if format == "json" {
            let line: Value = serde_json::from_str(lines[0]).expect("JSON");
            assert_eq!(line["panic"], CALLER_TEXT);
            assert_eq!(line["level"], "ERROR");
            assert_eq!(line["thread"], "agent");
        }
    }
}

fn panic_with_logs(json: bool) {
    telemetry::start(Options { json, ..Options::default() }).unwrap();
    let agent = std::thread::Builder::new().name("agent".to_owned());
    let agent = agent.spawn(|| panic!("{CALLER_TEXT}")).unwrap();
    agent.join().unwrap_err();
    std::thread::spawn(|| std::panic::panic_any(7)).join().unwrap_err();
}
