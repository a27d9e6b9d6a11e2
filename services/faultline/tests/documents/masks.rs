//! Comparison of an output with the one in a document, with masks for values that differ from run
//! to run.

/// The strictness of a comparison.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    /// Numbers and bars may differ as well.
    pub(crate) numbers: bool,
}

const BARS: &str = "·░▁▂▃▄▅▆▇█";

impl Look {
    pub(crate) fn fits(self, shown: &[String], printed: &[String]) -> bool {
        let masked = |lines: &[String]| -> Vec<String> {
            lines.iter().map(|line| self.masked(line)).filter(|line| !line.is_empty()).collect()
        };
        lines_fit(&masked(shown), &masked(printed))
    }

    fn masked(self, line: &str) -> String {
        let mut masked = String::new();
        let mut before = ("", "");
        for word in words(line.trim()) {
            // A requested delay is not a measurement: it is the same in each run.
            let is_requested =
                matches!(before, (_, "wait") | ("again", "after")) && is_duration(word);
            masked.push_str(if is_requested { word } else { self.mask(word) });
            before = if word.trim().is_empty() { before } else { (before.1, word) };
        }
        masked.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn mask(self, word: &str) -> &str {
        if is_id(word) {
            "<id>"
        } else if is_time(word) {
            "<time>"
        } else if word.len() == 32 && is_hex(word) {
            "<trace>"
        } else if is_duration(word) {
            "<duration>"
        } else if self.numbers && is_number(word) {
            "<number>"
        } else if self.numbers && word.chars().all(|c| BARS.contains(c)) {
            "<bars>"
        } else {
            word
        }
    }
}

/// The ids, each once, in the order of their first occurrence.
pub(crate) fn ids(lines: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in lines.iter().flat_map(|line| words(line)).filter(|word| is_id(word)) {
        if !found.iter().any(|id| id == word) {
            found.push(word.to_owned());
        }
    }
    found
}

/// The words of a line and the text between them.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_alphanumeric() || BARS.contains(c);
    // Characters that belong to ids, times and numbers between letters or digits.
    let joins = |c: char| "-.:".contains(c);
    let mut rest = line;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let mut length = first.len_utf8();
        if inside(first) {
            let mut next = rest[length..].chars().peekable();
            while let Some(c) = next.next() {
                let goes_on = joins(c) && next.peek().is_some_and(|after| inside(*after));
                if !inside(c) && !goes_on {
                    break;
                }
                length += c.len_utf8();
            }
        }
        let (word, after) = rest.split_at(length);
        rest = after;
        Some(word)
    })
}

fn is_hex(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_id(word: &str) -> bool {
    let lengths = word.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && word.split('-').all(is_hex)
}

fn is_time(word: &str) -> bool {
    let (date, time) = word.split_once('T').unwrap_or_default();
    date.len() == 10 && is_number(&date.replace('-', "")) && time.ends_with('Z')
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

fn is_duration(word: &str) -> bool {
    ["ms", "µs", "s", "m", "h"].iter().any(|unit| word.strip_suffix(unit).is_some_and(is_number))
}

fn lines_fit(shown: &[String], printed: &[String]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [first, rest @ ..] if first == "…" => {
            (0..=printed.len()).any(|skipped| lines_fit(rest, &printed[skipped..]))
        }
        [first, rest @ ..] => printed
            .split_first()
            .is_some_and(|(line, after)| line_fits(first, line) && lines_fit(rest, after)),
    }
}

fn line_fits(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn masked_values_may_differ_and_other_text_may_not() {
    let fits = |shown: &str, printed: &str, numbers: bool| {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        Look { numbers }.fits(&lines(shown), &lines(printed))
    };
    let id = "01a1e5fc-69f8-77c1-ad9b-e7794fa9d0c8";
    let other = "01a1ebdb-3193-70c9-859f-d31c3fdc6b4a";
    assert!(fits(&format!("? task {id} asks"), &format!("? task  {other} asks"), false));
    assert!(fits(
        "after 4ms at 2026-11-17T23:32:55.301Z",
        "after 1.5s at 2027-01-01T00:00:00Z",
        false
    ));
    assert!(fits("do wait 2s, then", "do  wait 2s, then", false));
    assert!(!fits("do wait 2s, then", "do wait 3s, then", false));
    assert!(!fits("send again after 2s", "send again after 3s", false));
    assert!(fits(
        "trace f9960cd36c57af58a1e6e95cb00f627b",
        "trace dd575f1df8be346c4b4f6110c545357b",
        false
    ));
    assert!(
        fits("a\n\nb", "a\nb\n", false) && !fits("a", "a\nb", false) && !fits("a\nb", "a", false)
    );
    assert!(
        fits("a\n…\nd", "a\nb\nc\nd", false) && fits("…", "", false) && !fits("…\nd", "a", false)
    );
    assert!(fits(r#"{"id":1,…,"z":2}"#, r#"{"id":1,"b":5,"z":2}"#, false));
    assert!(!fits(r#"{"id":1,…,"z":2}"#, r#"{"id":1,"b":5,"z":3}"#, false));
    assert!(
        !fits("75", "70", false) && fits("75 ··█ ", "70 ███ ", true) && !fits("75 x", "70 y", true)
    );
    assert!(!fits("RATE_LIMITED", "OVERLOADED", true));
    assert_eq!(ids(&[format!("\"{id}\",{other} {id}")]), [id, other]);
}
