//! Just enough of PromQL to know which metrics and labels an expression names.

use std::collections::BTreeSet;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// Each with the labels of its selector.
    pub(crate) metrics: Vec<(String, BTreeSet<String>)>,
    /// Behind `by`, `on` and the like.
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
            // The exponent of a number, or a variable of Grafana's.
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

/// Takes a list with its brackets off the front.
fn list(rest: &mut String, open: char, close: char) -> Vec<String> {
    let (start, end) = (rest.find(open).unwrap(), rest.find(close).expect("every bracket closes"));
    let inside = rest[start + 1..end].to_owned();
    rest.drain(..=end);
    let items = inside.split(',').map(|item| item.trim().to_owned());
    items.filter(|item| !item.is_empty()).collect()
}

/// Without what stands between quotes or in square brackets.
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
fn an_expression_tells_its_metrics_and_labels() {
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
