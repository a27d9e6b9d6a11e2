//! Rules for Markdown documents: every path that a document names or links to exists. The suite
//! `documents` of the crate faultline checks their code blocks and commands.

use std::path::{Path, PathBuf};

use crate::{files, read, root};

/// Endings of files that a document can only mean as files of this repository.
const SOURCES: &[&str] = &[".rs", ".proto", ".js", ".tpl"];

#[test]
fn paths_in_documents_exist() {
    let tracked: Vec<_> = files("").iter().map(|path| relative(path)).collect();
    let mut wrong = Vec::new();
    for document in files(".md") {
        let text = read(&document);
        for (line, span) in spans(&text) {
            for path in paths(&span) {
                if !exists(&path, &tracked) {
                    wrong.push(format!("{}:{line}: `{path}`", relative(&document).display()));
                }
            }
        }
        for (line, link) in links(&text) {
            let directory = document.parent().expect("a document is in a directory");
            if !directory.join(&link).exists() {
                wrong.push(format!("{}:{line}: a link to {link}", relative(&document).display()));
            }
        }
    }
    assert!(wrong.is_empty(), "documents name paths that do not exist:\n{}", wrong.join("\n"));
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix(root()).expect("below the root").to_owned()
}

/// Lines outside of code blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if !is_code && !is_fence {
            lines.push((at + 1, line));
        }
    }
    lines
}

/// The texts between backquotes, with their lines.
fn spans(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in prose(text) {
        if line.trim().is_empty() || line.starts_with('|') {
            open = None;
        }
        for (at, part) in line.split('`').enumerate() {
            if at > 0 {
                match open.take() {
                    Some(span) => found.push(span),
                    None => open = Some((number, String::new())),
                }
            }
            if let Some((_, span)) = &mut open {
                let space = if at == 0 { " " } else { "" };
                *span += space;
                *span += part;
            }
        }
    }
    found
}

/// Targets of links to files, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains(':') {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// The paths that a span means, if it looks like one of this repository: `a/{b,c}.rs` is two.
fn paths(span: &str) -> Vec<String> {
    let path = span.split("::").next().unwrap_or_default();
    let path = path.split(':').next().unwrap_or_default().trim_end_matches('/');
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-./{},*".contains(c);
    if path.is_empty() || path.starts_with('/') || !path.chars().all(fits) {
        return Vec::new();
    }
    let first = path.split('/').next().unwrap_or_default();
    let is_below_root = path.contains('/') && first != "target" && root().join(first).is_dir();
    let is_source = SOURCES.iter().any(|ending| path.ends_with(ending) && path != *ending);
    // `x.rs` and `x/tests.rs` stand for any name.
    let is_placeholder = first == "x" || first.starts_with("x.");
    if (is_below_root || is_source) && !is_placeholder { expanded(path) } else { Vec::new() }
}

fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![path.to_owned()] };
    choices.split(',').flat_map(|choice| expanded(&format!("{before}{choice}{after}"))).collect()
}

/// Whether a tracked file or folder has this path, or ends with it if it does not begin at the
/// root. A star stands for anything in one name.
fn exists(path: &str, tracked: &[PathBuf]) -> bool {
    let wanted: Vec<_> = path.split('/').collect();
    let from_root = wanted.len() > 1 && root().join(wanted[0]).is_dir();
    tracked.iter().any(|file| {
        let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
        let matches = |at: usize| {
            let own = parts.get(at..at + wanted.len());
            own.is_some_and(|own| own.iter().zip(&wanted).all(|(part, one)| fits(part, one)))
        };
        if from_root {
            matches(0)
        } else {
            parts.len().checked_sub(wanted.len()).is_some_and(matches)
        }
    })
}

fn fits(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        Some((before, after)) => {
            let long_enough = name.len() >= before.len() + after.len();
            long_enough && name.starts_with(before) && name.ends_with(after)
        }
        None => name == pattern,
    }
}

#[test]
fn paths_are_found_between_backquotes() {
    let text = "See `tests/run` and\n`services/a/{b,c}.rs::name`, not `/health` or `a b`.\n\
                ```sh\n`tests/none`\n```\n| `d.rs:12` `x/tests.rs` `.rs` |";
    let found: Vec<_> = spans(text).iter().flat_map(|(_, span)| paths(span)).collect();
    assert_eq!(found, ["tests/run", "services/a/b.rs", "services/a/c.rs", "d.rs"]);
    let tracked = [PathBuf::from("services/a/b.rs")];
    assert!(exists("services/*/b.rs", &tracked) && exists("services/a", &tracked));
    assert!(exists("a/b.rs", &tracked) && exists("b.rs", &tracked));
    assert!(!exists("services/b.rs", &tracked) && !exists("services/a/c.rs", &tracked));
}
