//! A minimal reader of PromQL: the metrics and labels that an expression names.

use std::collections::BTreeSet;

/// The names in one expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// Metrics with the labels of their selectors.
    pub(crate) metrics: Vec<(String, BTreeSet<String>)>,
    /// Labels after `by`, `on` and similar words.
    pub(crate) grouped: BTreeSet<String>,
}

const GROUPING: [&str; 6] = ["by", "on", "without", "ignoring", "group_left", "group_right"];
const WORDS: [&str; 4] = ["and", "or", "unless", "offset"];
const AGGREGATORS: [&str; 5] = ["sum", "max", "min", "avg", "count"];

pub(crate) fn named(expression: &str) -> Named {
    let mut found = Named::default();
    let mut rest = strip_strings_and_ranges(expression);
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || "_:$".contains(c)) {
        let after_number = rest[..start].ends_with(|c: char| c.is_ascii_digit());
        rest.drain(..start);
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_:$".contains(c)));
        let word: String = rest.drain(..end.unwrap_or(rest.len())).collect();
        let next = rest.trim_start().chars().next();
        match next {
            // The exponent of a number, or a variable of Grafana.
            _ if after_number || word.starts_with('$') => {}
            Some('(') if GROUPING.contains(&word.as_str()) => {
                found.grouped.extend(list(&mut rest, '(', ')'));
            }
            Some('(') => {}
            Some('b') if AGGREGATORS.contains(&word.as_str()) => {}
            _ if WORDS.contains(&word.as_str()) || GROUPING.contains(&word.as_str()) => {}
            Some('{') => {
                let matchers = list(&mut rest, '{', '}');
                let label = |m: String| m.trim_end_matches(['=', '~', '!']).trim().to_owned();
                found.metrics.push((word, matchers.into_iter().map(label).collect()));
            }
            _ => found.metrics.push((word, BTreeSet::new())),
        }
    }
    found
}

/// Removes a list in brackets from the front and returns its items.
fn list(rest: &mut String, open: char, close: char) -> Vec<String> {
    let start = rest.find(open).unwrap();
    let end = rest.find(close).expect("every bracket closes");
    let inside = rest[start + 1..end].to_owned();
    rest.drain(..=end);
    let items = inside.split(',').map(|item| item.trim().to_owned());
    items.filter(|item| !item.is_empty()).collect()
}

/// The expression without quoted strings and ranges in square brackets.
fn strip_strings_and_ranges(expression: &str) -> String {
    let mut until = None;
    let keep = |c: char| match until {
        Some(end) => {
            if c == end {
                until = None;
            }
            false
        }
        None => {
            until = match c {
                '"' => Some('"'),
                '[' => Some(']'),
                _ => None,
            };
            until.is_none()
        }
    };
    let mut keep = keep;
    expression.chars().filter(|c| keep(*c)).collect()
}

#[test]
fn metrics_and_labels_are_found_in_an_expression() {
    let expression = r#"histogram_quantile(0.95, sum by (agent, le) (rate(a_b_bucket{agent=~"x,y",
        state!="z"}[5m]))) / on (agent) group_left () c:d > 1e3 and e"#;
    let found = named(expression);
    let labels = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
    let metrics = [
        ("a_b_bucket".to_owned(), labels(&["agent", "state"])),
        ("c:d".to_owned(), labels(&[])),
        ("e".to_owned(), labels(&[])),
    ];
    assert_eq!(found.metrics, metrics);
    assert_eq!(found.grouped, labels(&["agent", "le"]));
}
