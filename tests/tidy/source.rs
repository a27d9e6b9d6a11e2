//! A lexer for Rust sources, just good enough for the rules: code without comments and literals,
//! code without tests, comments, and the paths that code names.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{files, read, root};

pub(crate) struct Source {
    /// Relative to the root of the repository.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// The text with every comment and literal blanked out; the lines are those of the text.
    pub(crate) code: String,
}

/// Every Rust file of the repository.
pub(crate) fn all() -> Vec<Source> {
    let source = |path: PathBuf| {
        let text = read(&path);
        let path = path.strip_prefix(root()).expect("below the root").to_owned();
        Source { path, code: blanked(&text), text }
    };
    files(".rs").into_iter().map(source).collect()
}

impl Source {
    pub(crate) fn name(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// The comment of each line that has one, without its slashes.
    pub(crate) fn comments(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(comment)
    }

    /// All comments as one line of lower-case text.
    pub(crate) fn prose(&self) -> String {
        let words = self.comments().flat_map(str::split_whitespace);
        words.collect::<Vec<_>>().join(" ").to_lowercase()
    }

    /// Names of test functions with their lines, those that a macro makes tests of included.
    pub(crate) fn tests(&self) -> Vec<(usize, &str)> {
        let lines: Vec<_> = self.code.lines().map(str::trim).collect();
        let mut found = Vec::new();
        let mut of_macro = false;
        for (at, line) in lines.iter().enumerate() {
            if of_macro && !line.is_empty() && !line.starts_with('}') {
                found.push((at + 1, *line));
            }
            of_macro = line.starts_with("on_every_binding! {") || (of_macro && *line != "}");
            let line = line.strip_prefix("async ").unwrap_or(line);
            let Some(rest) = line.strip_prefix("fn ") else { continue };
            let before = lines[..at].iter().rev();
            let mut attributes = before.take_while(|line| line.is_empty() || line.starts_with('#'));
            if attributes.any(|line| line.contains("test")) {
                found.push((at + 1, rest.split(['(', '<']).next().unwrap_or_default()));
            }
        }
        found
    }

    /// Structs with more than so many fields: line and name of those without a doc comment.
    pub(crate) fn undocumented_structs(&self, fields_max: usize) -> Vec<(usize, &str)> {
        let code: Vec<_> = self.code.lines().collect();
        let text: Vec<_> = self.text.lines().map(str::trim).collect();
        let mut found = Vec::new();
        for (at, line) in code.iter().enumerate() {
            let Some(name) = without_visibility(line.trim()).strip_prefix("struct ") else {
                continue;
            };
            if !line.ends_with('{') && !line.ends_with("where") {
                continue;
            }
            let indent = line.len() - line.trim_start().len();
            let inside = code[at + 1..].iter();
            let inside = inside.take_while(|line| !line.starts_with(&(" ".repeat(indent) + "}")));
            let fields = inside.filter(|line| is_field(line, indent + 4)).count();
            let above = text[..at].iter().rev().find(|line| !line.starts_with('#'));
            let is_documented = above.is_some_and(|line| line.starts_with("///"));
            if fields > fields_max && !is_documented {
                found.push((at + 1, name.split([' ', '<']).next().unwrap_or_default()));
            }
        }
        found
    }

    /// Absolute paths within the crate, from `crate::`, `self::` and `super::` outside tests: the
    /// line of each and its segments.
    pub(crate) fn crate_paths(&self, module: &[String]) -> Vec<(usize, Vec<String>)> {
        let code = without_tests(&self.code);
        let tokens = tokens(&code);
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let follows_path = at > 0 && tokens[at - 1].1 == "::";
            let is_start = ["crate", "super", "self"].contains(&tokens[at].1)
                && !follows_path
                && tokens.get(at + 1).is_some_and(|(_, token)| *token == "::");
            if !is_start {
                at += 1;
                continue;
            }
            let mut trees = Vec::new();
            let line = tokens[at].0;
            at = tree(&tokens, at, &[], &mut trees);
            for path in trees {
                found.extend(absolute(&path, module).map(|path| (line, path)));
            }
        }
        found
    }
}

/// The comment that a line has, or ends with.
fn comment(line: &str) -> Option<&str> {
    let starts = |at: &usize| *at == 0 || line[..*at].ends_with(char::is_whitespace);
    let at = line.match_indices("//").map(|(at, _)| at).find(starts)?;
    let text = &line[at + 2..];
    Some(text.strip_prefix(['/', '!']).unwrap_or(text))
}

fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |r| r.1);
    rest.trim_start()
}

fn is_field(line: &str, indent: usize) -> bool {
    let Some(line) = line.strip_prefix(&" ".repeat(indent)) else { return false };
    let name = without_visibility(line).split(':').next().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_#".contains(c);
    line.contains(':') && !name.is_empty() && name.chars().all(is_name)
}

fn blanked(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = blank_end(&chars, at).unwrap_or(at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// The end of the comment or literal that begins here.
fn blank_end(chars: &[char], at: usize) -> Option<usize> {
    let follows = |from: usize, text: &str| {
        text.chars().enumerate().all(|(offset, c)| chars.get(from + offset) == Some(&c))
    };
    let find = |from: usize, text: &str| (from..chars.len()).find(|at| follows(*at, text));
    let in_name = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '/' if follows(at, "//") => Some(find(at, "\n").unwrap_or(chars.len())),
        '/' if follows(at, "/*") => find(at, "*/").map(|end| end + 2),
        'r' if !in_name || chars[at - 1] == 'b' => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            let opens = chars.get(at + 1 + hashes) == Some(&'"');
            let close = format!("\"{}", "#".repeat(hashes));
            opens.then(|| find(at + 2 + hashes, &close).map(|end| end + close.len())).flatten()
        }
        '"' => Some(closing(chars, at, '"')),
        // A character, not a lifetime.
        '\'' if chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'') => {
            Some(closing(chars, at, '\''))
        }
        _ => None,
    }
}

fn closing(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from + 1;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// Code without the items that only tests compile; the lines stay.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    let starts = ["#[cfg(test)]", "#[cfg(all(test"];
    while let Some(at) = starts.iter().filter_map(|start| rest.find(start)).min() {
        let end = at + item_end(&rest[at..]);
        out += &rest[..at];
        out.extend(rest[at..end].chars().filter(|c| *c == '\n'));
        rest = &rest[end..];
    }
    out + rest
}

/// The end of the item whose attributes begin here: its semicolon or its closing brace.
fn item_end(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 && (c == ';' || c == '}' || c == ',') {
            return at + 1;
        }
    }
    code.len()
}

fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '#';
            let words = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let length = match words {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                words => words,
            };
            found.push((number + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// Reads one path or `use` tree from here on; returns the index behind it.
fn tree<'a>(
    tokens: &[(usize, &'a str)],
    mut at: usize,
    prefix: &[&'a str],
    found: &mut Vec<Vec<&'a str>>,
) -> usize {
    let mut path = prefix.to_vec();
    let token = |at: usize| tokens.get(at).map_or(";", |(_, token)| *token);
    loop {
        match token(at) {
            "{" => {
                at += 1;
                while token(at) != "}" && at < tokens.len() {
                    at = tree(tokens, at, &path, found);
                    at += usize::from(token(at) == ",");
                }
                return at + 1;
            }
            "*" => at += 1,
            word if word.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                path.push(word);
                at += 1;
            }
            // Not a path, as after `crate::x::<T>`.
            _ => at += usize::from(path.len() == prefix.len()),
        }
        if token(at) == "::" {
            at += 1;
            continue;
        }
        if token(at) == "as" {
            at += 2;
        }
        found.push(path);
        return at;
    }
}

fn absolute(path: &[&str], module: &[String]) -> Option<Vec<String>> {
    let supers = path.iter().filter(|segment| **segment == "super").count();
    let rest = path.iter().filter(|s| !["crate", "super", "self"].contains(s));
    let rest = rest.map(|segment| (*segment).to_owned());
    if path.first() == Some(&"crate") {
        return Some(rest.collect());
    }
    let base = module.get(..module.len().checked_sub(supers)?)?;
    Some(base.iter().cloned().chain(rest).collect())
}

/// The module of a file, by its path below `src`.
pub(crate) fn module_of(path: &Path) -> Vec<String> {
    let plain = path.with_extension("");
    let mut module: Vec<_> = plain.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    module
}

/// Files that only tests compile: their `mod` is declared for tests, or one above it is.
pub(crate) fn test_files(sources: &[Source]) -> BTreeSet<PathBuf> {
    let mut roots = Vec::new();
    for source in sources {
        let lines: Vec<_> = source.code.lines().map(str::trim).collect();
        let directory = source.path.parent().unwrap_or(Path::new(""));
        let stem = source.path.file_stem().unwrap_or_default();
        let is_root = ["mod", "lib", "main"].iter().any(|name| stem == *name);
        let directory = if is_root { directory.to_owned() } else { directory.join(stem) };
        for (at, line) in lines.iter().enumerate() {
            let name = without_visibility(line).strip_prefix("mod ");
            let Some(name) = name.and_then(|name| name.strip_suffix(';')) else { continue };
            let mut attributes = lines[..at].iter().rev().take_while(|line| line.starts_with('#'));
            if attributes.any(|line| line.contains("cfg(test)") || line.contains("cfg(all(test")) {
                roots.push(directory.join(name));
            }
        }
    }
    let is_test = |path: &Path| {
        let below = |root: &PathBuf| path.starts_with(root) || path == root.with_extension("rs");
        roots.iter().any(below) || path.components().any(|part| part.as_os_str() == "tests")
    };
    sources.iter().map(|source| source.path.clone()).filter(|path| is_test(path)).collect()
}
