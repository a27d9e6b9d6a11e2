//! Commands in the prose of documents: every `faultline …` between backquotes parses as a command
//! of the binary.

use std::{
    fs,
    process::{Command, Stdio},
};

use crate::{blocks, root};

#[test]
fn commands_in_prose_are_known_to_the_binary() {
    let mut wrong = Vec::new();
    for document in blocks::documents() {
        let text = fs::read_to_string(root().join(&document)).expect("a document can be read");
        for command in commands(&text) {
            if let Err(error) = known(&command) {
                wrong.push(format!("{document}: `{command}`: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "commands in documents that do not exist:\n{}", wrong.join("\n"));
}

/// The commands between backquotes, outside of code blocks.
fn commands(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if !is_code && !is_fence {
            prose += line;
            prose.push('\n');
        }
    }
    // An unpaired backquote ends with its paragraph.
    let spans = prose.split("\n\n").flat_map(|part| part.split('`').skip(1).step_by(2));
    let commands = spans.filter(|span| span.starts_with("faultline "));
    commands.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Runs the command with `--help`, which succeeds only if all flags before it are known.
fn known(command: &str) -> Result<(), String> {
    let words = command.split(' ').skip(1).take_while(|word| !["|", ">", "&&"].contains(word));
    let words = words.map(|word| word.trim_matches('"')).filter(|word| *word != "…");
    let mut binary = Command::new(env!("CARGO_BIN_EXE_faultline"));
    let output = binary.args(words).arg("--help").stdin(Stdio::null()).output();
    let output = output.expect("the binary runs");
    let error = String::from_utf8_lossy(&output.stderr);
    // The flag exists; its value is a placeholder.
    if output.status.success() || error.contains("invalid value") {
        return Ok(());
    }
    Err(error.into_owned())
}

#[test]
fn unknown_commands_and_flags_are_found_in_prose() {
    let text = "Run `faultline up` and\n`faultline list --all --agent NAME`.\n\n\
                ```sh\n`faultline none`\n```\n`faultline frobnicate` or `faultline up --nonsense`";
    let commands = commands(text);
    let (good, bad): (Vec<_>, Vec<_>) = commands.iter().partition(|one| known(one).is_ok());
    assert_eq!(good, ["faultline up", "faultline list --all --agent NAME"]);
    assert_eq!(bad, ["faultline frobnicate", "faultline up --nonsense"]);
}
