//! Lexer of scripts: cuts a text into instructions and an instruction into words. It knows quotes,
//! braces and comments, but no instruction, so that blocks nest to any depth.

use std::borrow::Cow;

use super::parse::ScriptError;

/// One instruction as written, without surrounding whitespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// The line on which it starts, from 1.
    pub(super) line: usize,
    pub(super) text: &'a str,
}

impl Piece<'_> {
    pub(super) fn expected(&self, what: impl Into<String>) -> ScriptError {
        ScriptError::new(self.line, self.text, what)
    }

    /// The number of the line on which `part` of this piece starts.
    pub(super) fn line_of(&self, part: &str) -> usize {
        let before = part.as_ptr().addr() - self.text.as_ptr().addr();
        self.line + self.text[..before].matches('\n').count()
    }
}

/// Cuts at every `;` and line break outside of quotes and braces. Skips empty pieces and comments.
/// `line` is the number of the first line.
pub(super) fn pieces(source: &str, line: usize) -> Result<Vec<Piece<'_>>, ScriptError> {
    let mut found = Vec::new();
    let mut cutter = Cutter { source, at: 0, line, fresh: true };
    // The lines of all open braces.
    let mut open: Vec<usize> = Vec::new();
    let mut start = 0;
    let mut first = None;
    while let Some(c) = cutter.next() {
        let cut = matches!(c, ';' | '\n') && open.is_empty();
        if cut {
            let text = source[start..cutter.at - 1].trim();
            found.extend(first.take().map(|line| Piece { line, text }));
            start = cutter.at;
        }
        let here = cutter.line;
        match c {
            '#' if cutter.fresh => {
                cutter.skip_line();
                if open.is_empty() {
                    start = cutter.at;
                }
                continue;
            }
            '"' if !cutter.skip_quoted() => {
                return Err(unclosed(source, start, here, "a closing quote"));
            }
            '{' => open.push(here),
            '}' if open.pop().is_none() => {
                return Err(unclosed(
                    source,
                    start,
                    here,
                    "no } without its {, or quotes around it",
                ));
            }
            _ => {}
        }
        cutter.fresh = matches!(c, ';' | '\n' | '{') || (cutter.fresh && c.is_whitespace());
        if !c.is_whitespace() && !cut {
            first.get_or_insert(here);
        }
        if c == '\n' {
            cutter.line += 1;
        }
    }
    if let Some(line) = open.pop() {
        return Err(unclosed(source, start, line, "a closing }"));
    }
    let text = source[start..].trim();
    found.extend(first.map(|line| Piece { line, text }));
    Ok(found)
}

fn unclosed(source: &str, start: usize, line: usize, expected: &str) -> ScriptError {
    ScriptError::new(line, source[start..].trim(), expected)
}

struct Cutter<'a> {
    source: &'a str,
    /// Index of the byte after the last character taken.
    at: usize,
    line: usize,
    /// Only whitespace since the last separator or brace: a `#` starts a comment here.
    fresh: bool,
}

impl Cutter<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.source[self.at..].chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Skips to the line break, which is not consumed.
    fn skip_line(&mut self) {
        let rest = &self.source[self.at..];
        self.at += rest.find('\n').unwrap_or(rest.len());
    }

    /// Skips past the closing quote; `false` if there is none.
    fn skip_quoted(&mut self) -> bool {
        let Some(length) = quoted_length(&self.source[self.at - 1..]) else { return false };
        let end = self.at - 1 + length;
        self.line += self.source[self.at..end].matches('\n').count();
        self.at = end;
        true
    }
}

/// Length in bytes of the quoted text at the start of `text`, including both quotes.
fn quoted_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(i + 1),
            _ => {}
        }
    }
    None
}

/// The content of the braces at the start of `text`, and the rest. `text` is part of a piece, so
/// that its braces balance. `None`: `text` does not start with a brace.
pub(super) fn block(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let inner = text.strip_prefix('{')?;
    let mut cutter = Cutter { source: inner, at: 0, line: 1, fresh: true };
    let mut depth = 0;
    while let Some(c) = cutter.next() {
        match c {
            '#' if cutter.fresh => {
                cutter.skip_line();
                continue;
            }
            '"' if !cutter.skip_quoted() => return None,
            '{' => depth += 1,
            '}' if depth == 0 => {
                return Some((&inner[..cutter.at - 1], inner[cutter.at..].trim_start()));
            }
            '}' => depth -= 1,
            _ => {}
        }
        cutter.fresh = matches!(c, ';' | '\n' | '{') || (cutter.fresh && c.is_whitespace());
    }
    None
}

/// The first word and the rest. Quoted whitespace does not end a word.
pub(super) fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if c.is_whitespace() {
            break;
        }
        at += match c {
            '"' => quoted_length(&text[at..]).unwrap_or(1),
            _ => c.len_utf8(),
        };
    }
    (&text[..at], text[at..].trim())
}

/// Removes quotes that enclose all of `text`; any other text stays as written.
pub(super) fn unquote(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    if !text.starts_with('"') || quoted_length(text) != Some(text.len()) {
        return Cow::Borrowed(text);
    }
    let inner = &text[1..text.len() - 1];
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = chars.next_if(|next| c == '\\' && matches!(next, '"' | '\\'));
        plain.push(escaped.unwrap_or(c));
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(usize, &str)> {
        pieces(source, 1).unwrap().iter().map(|p| (p.line, p.text)).collect()
    }

    #[test]
    fn separators_inside_quotes_and_braces_do_not_cut() {
        assert_eq!(texts("a; b\n c"), [(1, "a"), (1, "b"), (2, "c")]);
        assert_eq!(texts(" ;;\n\n;"), []);
        assert_eq!(texts("say \"a;\nb\"; c"), [(1, "say \"a;\nb\""), (2, "c")]);
        assert_eq!(texts("x { a; { b\n } }; c"), [(1, "x { a; { b\n } }"), (2, "c")]);
        assert_eq!(texts("x \"{\"; y \"\\\"}\""), [(1, "x \"{\""), (1, "y \"\\\"}\"")]);
        assert_eq!(texts("a\r\nb"), [(1, "a"), (2, "b")]);
    }

    #[test]
    fn comments_are_skipped_inside_braces_too() {
        assert_eq!(texts("# \"not; { closed\na # b"), [(2, "a # b")]);
        assert_eq!(texts("  # x"), []);
        let nested = "try {\n  # it's } a trap \"\n  a\n}";
        assert_eq!(texts(nested), [(1, nested)]);
    }

    #[test]
    fn unclosed_quote_or_brace_error_names_its_line() {
        for (source, line, expected) in [
            ("a\nsay \"b\nc", 2, "a closing quote"),
            ("a {\n b {\n }", 1, "a closing }"),
            ("a\nb }", 2, "no } without its {, or quotes around it"),
            ("say \"a\\\"", 1, "a closing quote"),
        ] {
            let error = pieces(source, 1).unwrap_err();
            assert_eq!((error.line, error.expected.as_str()), (line, expected), "{source}");
        }
    }

    #[test]
    fn block_ends_at_its_matching_brace() {
        assert_eq!(block(" { a { b } \"}\" } else { c }"), Some((" a { b } \"}\" ", "else { c }")));
        assert_eq!(block("{\n# it's } a trap \"\na}"), Some(("\n# it's } a trap \"\na", "")));
        assert_eq!(block("a { b }"), None);
    }

    #[test]
    fn words_keep_quoted_whitespace() {
        assert_eq!(word("code=1 text=\"a b\"  c"), ("code=1", "text=\"a b\"  c"));
        assert_eq!(word("text=\"a b\"  c"), ("text=\"a b\"", "c"));
        assert_eq!(word("  "), ("", ""));
    }

    #[test]
    fn quotes_are_removed_only_around_the_whole_text() {
        assert_eq!(unquote(" \"a b\" "), "a b");
        assert_eq!(unquote("\"a\" and \"b\""), "\"a\" and \"b\"");
        assert_eq!(unquote(r#""say \"hi\" \\ \n""#), r#"say "hi" \ \n"#);
        assert_eq!(unquote("\""), "\"");
    }
}
