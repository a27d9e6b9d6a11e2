//! Words, times and columns: what every rendering needs and none owns.

use std::time::{Duration, SystemTime};

pub(crate) use faultline_proto::advice::span;
use faultline_proto::json;
use prost_types::Timestamp;

/// Somebody else's text on one line, without anything a terminal would obey.
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

/// The same, but no longer than so many characters.
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

/// A line that may have colours, in pieces that fit, between words if it can. Colours go on from
/// piece to piece.
pub(crate) fn folded(line: &str, columns: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece = String::new();
    let mut used = 0;
    let mut in_colour = false;
    // After the last space of the piece: its bytes, and how many characters came before it.
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

/// RFC 3339 in UTC, to the millisecond at most.
pub(crate) fn instant(time: &Timestamp) -> String {
    let time = Timestamp { nanos: time.nanos / 1_000_000 * 1_000_000, ..*time };
    json::to_string(&time).trim_matches('"').to_owned()
}

/// From one to the other; none when they are the wrong way round.
pub(crate) fn between(from: &Timestamp, to: &Timestamp) -> Option<Duration> {
    let from = SystemTime::try_from(*from).ok()?;
    SystemTime::try_from(*to).ok()?.duration_since(from).ok()
}

/// Left-aligned columns with two spaces between them, none after the last. The widths are of what
/// is seen, so cells come with a plain and a painted form.
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
    fn a_long_line_is_folded_between_its_colours() {
        assert_eq!(folded("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(folded("\x1b[1mabcd\x1b[0mef", 4), ["\x1b[1mabcd\x1b[0m", "ef"]);
        assert_eq!(folded("ab cd efgh i", 6), ["ab cd ", "efgh i"]);
        assert_eq!(folded("abcdef gh", 6), ["abcdef", " gh"]);
        assert_eq!(folded("", 4), [""]);
        assert_eq!(folded("ab", 0), ["a", "b"]);
    }

    #[test]
    fn times_read_as_people_say_them() {
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
    fn a_terminal_obeys_nobody_elses_text() {
        assert_eq!(line("a\x1b[31mred\r\n  b\u{9b}c"), "a [31mred b c");
        assert_eq!(short("abc def", 4), "abc…");
        assert_eq!(short("abc", 4), "abc");
    }

    #[test]
    fn a_paragraph_breaks_between_words() {
        assert_eq!(wrapped("aa bb cc", "  ", 8), "  aa bb\n  cc");
        assert_eq!(wrapped("toolongaword x", " ", 5), " toolongaword\n x");
    }

    #[test]
    fn columns_line_up_by_what_is_seen() {
        let cell = |text: &str| (text.to_owned(), format!("<{text}>"));
        let rows = [vec![cell("a"), cell("b")], vec![cell("ccc"), cell("d")]];
        assert_eq!(columns(&rows), "<a>    <b>\n<ccc>  <d>\n");
    }
}
