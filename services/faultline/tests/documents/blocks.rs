//! The code blocks of the documents, and the tags that select their test: the first word after the
//! fence is the language, the words after it are tags.
//!
//! | block | test |
//! |---|---|
//! | `rust` | a program or items of one; compiles with a prelude (`compile.rs`) |
//! | `rust fragment` | statements of an async function, after the preceding items |
//! | `console` | `$ ` lines run against a mesh, followed by their output (`session.rs`) |
//! | `console numbers` | as `console`, but numbers and bars may differ |
//! | `console stream` | as `console`, for a command that does not end: killed after its last line |
//! | `sh` | commands that run against the mesh and must succeed |
//! | `sh roles` | starts a mesh, a role in each line, which serves a task (`roles.rs`) |
//! | `sh dry-run` | commands that start servers or need a cluster: only checked (`dry_run.rs`) |
//! | `toml` | read by the binary as its configuration; `"…"` is a secret of the reader's |
//! | `yaml`, `json` | parsed; `# NAME.yaml` in the first line makes it a file for `sh dry-run` |
//! | `sql` | statements that run on the PostgreSQL of the tests, if there is one (`data.rs`) |
//! | `text` | output and drawings; not tested |
//!
//! A comment in the line before a block adds hidden contents: `<!-- given: CODE -->` is code in the
//! block's language that precedes it, `<!-- meanwhile: COMMAND -->` runs beside a `console stream`
//! once the stream has printed its first line.

use std::{fmt, fs, path::Path};

use crate::root;

/// The languages and their permitted tags.
const LANGUAGES: &[(&str, &[&str])] = &[
    ("console", &["numbers", "stream"]),
    ("json", &[]),
    ("rust", &["fragment"]),
    ("sh", &["dry-run", "roles"]),
    ("sql", &[]),
    ("text", &[]),
    ("toml", &[]),
    ("yaml", &[]),
];

/// One code block. `blocks_of` parses it; nothing changes it later.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The path of its document, from the root.
    pub(crate) document: String,
    /// The line of its first fence, from 1.
    pub(crate) line: usize,
    pub(crate) language: String,
    tags: Vec<String>,
    pub(crate) given: Option<String>,
    pub(crate) meanwhile: Option<String>,
    pub(crate) lines: Vec<String>,
}

impl Block {
    pub(crate) fn is(&self, language: &str, tag: Option<&str>) -> bool {
        self.language == language && tag.is_none_or(|tag| self.has(tag))
    }

    pub(crate) fn has(&self, tag: &str) -> bool {
        self.tags.iter().any(|one| one == tag)
    }

    pub(crate) fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    /// The error in the tags of the block.
    fn wrong(&self) -> Option<String> {
        if self.language.is_empty() {
            return Some("says no language; output is `text`".to_owned());
        }
        let Some((_, tags)) = LANGUAGES.iter().find(|(name, _)| *name == self.language) else {
            return Some(format!("is of a language that is not tested: {}", self.language));
        };
        if let Some(unknown) = self.tags.iter().find(|tag| !tags.contains(&tag.as_str())) {
            return Some(format!("has a tag that means nothing here: {unknown}"));
        }
        if self.given.is_some() && !self.is("rust", None) && !self.is("sh", Some("dry-run")) {
            return Some("has `given:`, which is for `rust` and `sh dry-run` only".to_owned());
        }
        if self.meanwhile.is_some() && !self.is("console", Some("stream")) {
            return Some("has `meanwhile:`, which is for `console stream` only".to_owned());
        }
        None
    }
}

/// The position of the block.
impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.document, self.line)
    }
}

/// The blocks of all documents, in their order.
pub(crate) fn all() -> Vec<Block> {
    let read = |path: &String| {
        let text = fs::read_to_string(root().join(path)).expect("a document can be read");
        blocks_of(path, &text)
    };
    documents().iter().flat_map(read).collect()
}

/// The paths of all documents, from the root.
pub(crate) fn documents() -> Vec<String> {
    let mut documents = Vec::new();
    find(&root(), &mut documents);
    documents.sort();
    assert!(documents.iter().any(|path| path == "README.md"), "the tree is incomplete");
    documents
}

fn find(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory can be read") {
        let path = entry.expect("an entry can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || ["target", "node_modules"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            find(&path, found);
        } else if name.ends_with(".md") {
            let path = path.strip_prefix(root()).expect("below the root");
            found.push(path.to_string_lossy().into_owned());
        }
    }
}

pub(crate) fn blocks_of(document: &str, text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    // The column of the text of the current list item.
    let mut margin = 0;
    for (at, line) in lines.iter().enumerate() {
        if open.is_none() {
            let is_first = at == 0 || lines[at - 1].trim().is_empty();
            if let Some(wrong) = untested(line, margin, is_first) {
                panic!("{document}:{}: {wrong}", at + 1);
            }
            margin = margin_after(line, margin);
        }
        let words = line.trim_start().strip_prefix("```");
        match (&mut open, words) {
            (None, Some(words)) => {
                let mut words = words.split([' ', ',']).map(str::to_owned);
                let above = at.checked_sub(1).map_or("", |above| lines[above]);
                open = Some(Block {
                    document: document.to_owned(),
                    line: at + 1,
                    language: words.next().unwrap_or_default(),
                    tags: words.filter(|word| !word.is_empty()).collect(),
                    given: comment(above, "given"),
                    meanwhile: comment(above, "meanwhile"),
                    lines: Vec::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.lines.push((*line).to_owned()),
            (None, None) => {}
        }
    }
    if let Some(block) = open {
        panic!("{block}: the block has no end");
    }
    blocks
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The error of code that no test would find: only blocks fenced with ``` are found.
fn untested(line: &str, margin: usize, is_first: bool) -> Option<&'static str> {
    let text = line.trim_start();
    let unquoted = text.trim_start_matches(['>', ' ']);
    let is_fence = |text: &str| text.starts_with("```") || text.starts_with("~~~");
    if text.starts_with("~~~") {
        return Some("fence code with ```");
    }
    if text.starts_with('>') && (is_fence(unquoted) || text.starts_with(">     ")) {
        return Some("code in a quotation is not tested: put it outside");
    }
    let is_indented = indent(line) >= margin + 4 || line.starts_with('\t');
    (is_indented && is_first && !text.is_empty()).then_some("fence code instead of indenting it")
}

/// The column of the text of a list item; later lines at this column belong to the item.
fn margin_after(line: &str, margin: usize) -> usize {
    let text = line.trim_start();
    let indent = indent(line);
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let marker = match text[digits..].get(..2) {
        Some(". " | ") ") if digits > 0 => digits + 2,
        Some("- " | "* " | "+ ") if digits == 0 => 2,
        _ if text.is_empty() || indent > 0 => return margin,
        _ => return 0,
    };
    indent + marker
}

fn comment(line: &str, name: &str) -> Option<String> {
    let text = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    Some(text.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned())
}

#[test]
fn code_blocks_have_a_known_language_and_tags() {
    let wrong = all().into_iter().filter_map(|block| Some(format!("{block} {}", block.wrong()?)));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn blocks_without_a_known_language_are_found() {
    let text = "a\n```\nx\n```\n<!-- given: let x = 1; -->\n```rust fragment\nx\n```\n```c\n```\n";
    let found = blocks_of("d.md", text);
    let wrong: Vec<_> = found.iter().map(|block| block.wrong().is_some()).collect();
    assert_eq!((wrong, found[1].line), (vec![true, false, true], 6));
    assert_eq!(found[1].given.as_deref(), Some("let x = 1;"));
    assert!(found[1].is("rust", Some("fragment")) && found[1].meanwhile.is_none());
}

#[test]
fn code_outside_of_fences_is_rejected() {
    let refuses = |text: &str| std::panic::catch_unwind(|| blocks_of("d.md", text)).is_err();
    for text in [
        "> ```sh\n> false\n> ```\n",
        "a\n\n> >  ```\n",
        ">     false\n",
        "a\n\n    false\n",
        "a\n\n\tfalse\n",
        "- a\n\n      false\n",
        "- a\n\nb\n\n    false\n",
        "~~~sh\nfalse\n~~~\n",
    ] {
        assert!(refuses(text), "{text}");
    }
    for text in [
        "> a\n> b\n",
        "a\n    b\n",
        "1. a\n\n   ```sh\n   true\n   ```\n",
        "- a\n\n  b\n  - c\n\n    d\n",
        "```text\na\n\n    b\n> ~~~\n```\n",
    ] {
        assert!(!refuses(text), "{text}");
    }
}

#[test]
fn comments_without_effect_are_rejected() {
    let wrong = |text: &str| blocks_of("d.md", text)[0].wrong().is_some();
    for (text, refused) in [
        ("<!-- given: x -->\n```sh\n```\n", true),
        ("<!-- given: x -->\n```console\n$ x\n```\n", true),
        ("<!-- given: x -->\n```sh dry-run\n```\n", false),
        ("<!-- given: x -->\n```rust\n```\n", false),
        ("<!-- meanwhile: x -->\n```console\n$ x\n```\n", true),
        ("<!-- meanwhile: x -->\n```console stream\n$ x\n```\n", false),
    ] {
        assert_eq!(wrong(text), refused, "{text}");
    }
}
