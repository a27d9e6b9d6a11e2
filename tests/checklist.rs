//! Checks tests/CHECKLIST.md: every row exists once and names tests that exist.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Ranges of the required rows, first and last.
const ROWS: &[(u32, u32)] = &[
    (1, 2),
    (9, 10),
    (14, 20),
    (23, 30),
    (35, 40),
    (45, 48),
    (50, 125),
    (130, 135),
    (154, 165),
    (201, 218),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

/// The number, promise and tests of each row.
fn rows() -> Vec<(u32, String, String)> {
    let text = fs::read_to_string(root().join("tests/CHECKLIST.md")).expect("there is a table");
    let cells = |line: &str| -> Option<(u32, String, String)> {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [row, promise, tests] = cells[..] else { return None };
        Some((row.strip_prefix('F')?.parse().ok()?, promise.to_owned(), tests.to_owned()))
    };
    text.lines().filter(|line| line.starts_with("| F")).filter_map(cells).collect()
}

/// The texts between backquotes.
fn named(tests: &str) -> Vec<&str> {
    tests.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_row_exists_once_and_is_a_sentence() {
    let mut seen = BTreeMap::new();
    for (row, promise, _) in rows() {
        assert!(promise.ends_with(['.', '*']), "F{row:03} does not end like a sentence: {promise}");
        *seen.entry(row).or_insert(0) += 1;
    }
    let expected: BTreeMap<u32, i32> =
        ROWS.iter().flat_map(|(from, to)| *from..=*to).map(|row| (row, 1)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn every_named_test_exists() {
    for (row, _, tests) in rows() {
        for test in named(&tests) {
            let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("F{row:03}: {test}"));
            let text = fs::read_to_string(root().join(file))
                .unwrap_or_else(|e| panic!("F{row:03} names {file}: {e}"));
            assert!(is_test(&text, name), "F{row:03}: {file} has no test {name}");
        }
    }
}

/// A function with a test attribute, or one that the macro of the bindings makes tests of.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let defines = |line: &&str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ").is_some_and(|rest| rest.starts_with(&format!("{name}(")))
    };
    let Some(at) = lines.iter().position(defines) else { return false };
    let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
    let has_attribute = attributes.clone().any(|line| line.contains("test"));
    has_attribute || (text.contains("on_every_binding! {") && lines.contains(&name))
}

#[test]
fn every_row_has_a_test() {
    let empty = rows().into_iter().filter(|(_, _, tests)| named(tests).is_empty());
    let empty: Vec<_> = empty.map(|(row, ..)| row).collect();
    assert!(empty.is_empty(), "rows without a test: {empty:?}");
}
