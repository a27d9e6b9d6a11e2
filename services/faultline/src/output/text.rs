//! Text functions that all renderings share: sanitizing, wrapping, times and columns.

use std::time::{Duration, SystemTime};

pub(crate) use faultline_proto::advice::span;
use faultline_proto::json;
use prost_types::Timestamp;

/// Untrusted text on one line, without control characters.
pub(crate) fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split(|c: char| c.is_control() || c == ' ').filter(|w| !w.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// Untrusted text on one line with at most `chars_max` characters.
pub(crate) fn short(text: &str, chars_max: usize) -> String {
    let text = line(text);
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text,
    }
}

/// Breaks a paragraph into lines that fit beside an indent.
pub(crate) fn wrapped(text: &str, indent: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in line(text).split(' ') {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > columns {
            out.push('\n');
            column = 0;
        }
        match column {
            0 => {
                out.push_str(indent);
                column = indent.len();
            }
            _ => {
                out.push(' ');
                column += 1;
            }
        }
        out.push_str(word);
        column += len;
    }
    out
}

/// A line, which may contain escape codes, in pieces of at most `columns` characters, broken
/// between words if possible. A colour continues in the next piece.
pub(crate) fn folded(line: &str, columns: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece = String::new();
    let mut used = 0;
    let mut in_colour = false;
    // The position after the last space of the piece: bytes, and characters before it.
    let mut space = None;
    for char in line.chars() {
        in_colour |= char == '\x1b';
        if !in_colour && used == columns.max(1) {
            let (at, before) = space.take().filter(|_| char != ' ').unwrap_or((piece.len(), used));
            let rest = piece.split_off(at);
            pieces.push(std::mem::replace(&mut piece, rest));
            used -= before;
        }
        used += usize::from(!in_colour);
        piece.push(char);
        if char == ' ' {
            space = Some((piece.len(), used));
        }
        in_colour &= char != 'm';
    }
    pieces.push(piece);
    pieces
}

/// RFC 3339 in UTC, in milliseconds at most.
pub(crate) fn instant(time: &Timestamp) -> String {
    let time = Timestamp { nanos: time.nanos / 1_000_000 * 1_000_000, ..*time };
    json::to_string(&time).trim_matches('"').to_owned()
}

/// The time between two instants; `None` if `to` is before `from`.
pub(crate) fn between(from: &Timestamp, to: &Timestamp) -> Option<Duration> {
    let from = SystemTime::try_from(*from).ok()?;
    SystemTime::try_from(*to).ok()?.duration_since(from).ok()
}

/// Left-aligned columns with two spaces between them. A cell has a plain and a styled form; the
/// plain form decides the width.
pub(crate) fn columns(rows: &[Vec<(String, String)>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| {
        rows.iter().filter_map(|r| r.get(i)).map(|(plain, _)| plain.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|i| width(i).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        for (i, (plain, painted)) in row.iter().enumerate() {
            out.push_str(painted);
            if i + 1 < row.len() {
                let pad = widths[i] - plain.chars().count() + 2;
                out.extend(std::iter::repeat_n(' ', pad));
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_folded_without_breaking_escape_codes() {
        assert_eq!(folded("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(folded("\x1b[1mabcd\x1b[0mef", 4), ["\x1b[1mabcd\x1b[0m", "ef"]);
        assert_eq!(folded("ab cd efgh i", 6), ["ab cd ", "efgh i"]);
        assert_eq!(folded("abcdef gh", 6), ["abcdef", " gh"]);
        assert_eq!(folded("", 4), [""]);
        assert_eq!(folded("ab", 0), ["a", "b"]);
    }

    #[test]
    fn durations_have_at_most_two_units() {
        let cases = [
            (0, "0ms"),
            (350, "350ms"),
            (1_000, "1s"),
            (1_249, "1.2s"),
            (1_999, "2s"),
            (59_949, "59.9s"),
            (59_950, "1m 0s"),
            (123_000, "2m 3s"),
            (7_260_000, "2h 1m"),
        ];
        for (ms, text) in cases {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn control_characters_are_removed_from_untrusted_text() {
        assert_eq!(line("a\x1b[31mred\r\n  b\u{9b}c"), "a [31mred b c");
        assert_eq!(short("abc def", 4), "abc…");
        assert_eq!(short("abc", 4), "abc");
    }

    #[test]
    fn paragraphs_break_between_words() {
        assert_eq!(wrapped("aa bb cc", "  ", 8), "  aa bb\n  cc");
        assert_eq!(wrapped("toolongaword x", " ", 5), " toolongaword\n x");
    }

    #[test]
    fn columns_align_by_their_plain_width() {
        let cell = |text: &str| (text.to_owned(), format!("<{text}>"));
        let rows = [vec![cell("a"), cell("b")], vec![cell("ccc"), cell("d")]];
        assert_eq!(columns(&rows), "<a>    <b>\n<ccc>  <d>\n");
    }
}
