//! Rules for language: headers, test names, doc comments, the rate of indefinite pronouns, and the
//! terms of the field where their mechanisms are implemented.

use std::path::Path;

use crate::source;

/// First words that hide the subject of a header or of a test name.
const VAGUE: &[&str] = &["what", "who", "whoever", "whose", "how", "it", "of"];

/// Pronouns that `tests/voice` counts.
const PRONOUNS: &[&str] = &["what", "who", "whose", "whoever", "whatever"];

/// Pronouns in 1,000 words of comments, the most.
const PRONOUNS_MAX: f64 = 5.0;

/// Fields of a struct without a doc comment, the most.
const FIELDS_MAX: usize = 5;

/// Terms with the file or folder that implements the mechanism.
const TERMS: &[(&str, &str)] = &[
    ("optimistic concurrency", "services/coordinator/src/cluster"),
    ("fencing token", "services/coordinator/src"),
    ("ownership", "services/coordinator/src/cluster"),
    ("backpressure", "services/coordinator/src/engine"),
    ("circuit breaker", "services/coordinator/src/policy/circuit_breaker.rs"),
    ("rebalance", "services/coordinator/src/cluster/rebalance.rs"),
    ("ssrf", "services/chassis/src/net/dial"),
    ("dns rebinding", "services/chassis/src/server/host.rs"),
    ("deadlock", "services/coordinator/src/engine"),
    ("outlier ejection", "services/gateway/src/coordinators"),
    ("idempotency key", "services/coordinator/src/calls"),
    ("group commit", "services/coordinator/src/engine"),
];

#[test]
fn file_headers_begin_with_a_subject() {
    let mut wrong = Vec::new();
    for source in source::all() {
        let header = source.text.lines().next().unwrap_or_default();
        let header = header.strip_prefix("//!").unwrap_or(header).trim();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let first = header.split(|c| !is_word(c)).find(|word| !word.is_empty());
        if first.is_some_and(|first| VAGUE.contains(&first.to_lowercase().as_str())) {
            wrong.push(format!("{}: {header}", source.name()));
        }
    }
    assert!(wrong.is_empty(), "headers without a subject ({VAGUE:?}):\n{}", wrong.join("\n"));
}

#[test]
fn test_names_begin_with_a_subject() {
    let mut wrong = Vec::new();
    for source in source::all() {
        for (line, test) in source.tests() {
            let first = test.split('_').next().unwrap_or_default();
            if VAGUE.contains(&first) {
                wrong.push(format!("{}:{line}: {test}", source.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "test names without a subject ({VAGUE:?}):\n{}", wrong.join("\n"));
}

#[test]
fn structs_with_many_fields_have_a_doc_comment() {
    let mut wrong = Vec::new();
    for source in source::all() {
        for (line, name) in source.undocumented_structs(FIELDS_MAX) {
            wrong.push(format!("{}:{line}: {name}", source.name()));
        }
    }
    assert!(
        wrong.is_empty(),
        "structs with more than {FIELDS_MAX} fields need a doc comment that says what the struct \
         is, which code changes it, under which lock, and how long it lives:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn comments_name_their_subjects() {
    let mut words = 0;
    let mut worst = Vec::new();
    for source in source::all() {
        let mut hits = 0;
        for comment in source.comments() {
            words += comment.split_whitespace().count();
            hits += pronouns(comment);
        }
        worst.push((hits, source.name().to_string()));
    }
    worst.sort_by(|a, b| b.cmp(a));
    let hits: usize = worst.iter().map(|(hits, _)| hits).sum();
    let rate = 1000.0 * hits as f64 / words as f64;
    worst.truncate(20);
    assert!(
        rate <= PRONOUNS_MAX,
        "{rate:.1} of {PRONOUNS:?} in 1,000 words of comments, at most {PRONOUNS_MAX} are allowed; \
         name the thing instead. `tests/voice` lists the lines; the worst files: {worst:#?}"
    );
}

fn pronouns(comment: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = comment.split(|c| !is_word(c)).map(str::to_lowercase);
    words.filter(|word| PRONOUNS.contains(&word.as_str())).count()
}

#[test]
fn pronouns_are_counted_as_words() {
    assert_eq!(pronouns(" What who's there, or WHATEVER: somewhat whole what_is"), 3);
}

#[test]
fn mechanisms_are_named_where_they_are_implemented() {
    let sources = source::all();
    let mut missing = Vec::new();
    for (term, place) in TERMS {
        let mut files = sources.iter().filter(|source| source.path.starts_with(Path::new(place)));
        if !files.any(|source| source.prose().contains(term)) {
            missing.push(format!("no comment in {place} has the term `{term}`"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
