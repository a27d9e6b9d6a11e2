//! The artifacts of a task on stdout. A later attempt may send an artifact again from its
//! beginning: text that was printed is not repeated, and text that was replaced is marked.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use faultline_proto::{
    a2a::{Artifact, Part, part::Content},
    json,
};

/// Printed after text that is replaced: the attempt that wrote it was lost, or the agent rewrote
/// the artifact. Only on a terminal; a pipe receives final artifacts.
const REPLACED: &str = "(the output above was replaced; it starts again)\n";

/// Prints artifacts to `out`, each on a new line.
pub(crate) struct ArtifactPrinter<W> {
    out: W,
    /// The printed text by artifact id.
    printed: BTreeMap<String, String>,
    /// The artifact that wrote the current line, if the line has no line break yet.
    open: Option<String>,
}

impl<W: Write> ArtifactPrinter<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, printed: BTreeMap::new(), open: None }
    }

    /// Whether no artifact was printed.
    pub(crate) fn is_empty(&self) -> bool {
        self.printed.is_empty()
    }

    /// Whether the cursor is behind text, so that other output would be appended to that line.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.open.is_some()
    }

    pub(crate) fn artifact(&mut self, artifact: &Artifact, append: bool) -> io::Result<()> {
        let text: String = artifact.parts.iter().map(part_text).collect();
        let id = &artifact.artifact_id;
        let printed = self.printed.entry(id.clone()).or_default();
        let news = if append {
            printed.push_str(&text);
            text.as_str()
        } else {
            let old = std::mem::replace(printed, text.clone());
            match text.strip_prefix(old.as_str()) {
                Some(news) => news,
                // The artifact was rewritten: its whole text follows on a new line.
                None => {
                    self.finish()?;
                    self.out.write_all(REPLACED.as_bytes())?;
                    text.as_str()
                }
            }
        };
        if self.open.as_ref().is_some_and(|open| open != id) && !news.is_empty() {
            self.finish()?;
        }
        self.write(id, news)
    }

    /// Prints a text outside of any artifact.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        self.finish()?;
        self.write("", text)?;
        self.finish()
    }

    /// Ends the current line, if it has no line break yet.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self.open.take() {
            Some(_) => self.out.write_all(b"\n").and_then(|()| self.out.flush()),
            None => Ok(()),
        }
    }

    fn write(&mut self, id: &str, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()?;
        self.open = if text.ends_with('\n') { None } else { Some(id.to_owned()) };
        Ok(())
    }
}

/// A part as text: data as one line of JSON, bytes as a note with name, size and type.
pub(crate) fn part_text(part: &Part) -> String {
    match &part.content {
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Url(url)) => format!("{url}\n"),
        Some(Content::Data(data)) => format!("{}\n", json::to_string(data)),
        Some(Content::Raw(bytes)) => {
            let kind = if part.media_type.is_empty() { "bytes" } else { &part.media_type };
            format!("[{} {} bytes of {kind}]\n", part.filename, bytes.len()).replace("[ ", "[")
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: &str, text: &str) -> Artifact {
        let part = Part { content: Some(Content::Text(text.into())), ..Part::default() };
        Artifact { artifact_id: id.into(), parts: vec![part], ..Artifact::default() }
    }

    fn print(chunks: &[(&str, &str, bool)]) -> String {
        let mut printer = ArtifactPrinter::new(Vec::new());
        for (id, text, append) in chunks {
            printer.artifact(&chunk(id, text), *append).unwrap();
        }
        printer.finish().unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn chunks_continue_a_line_and_artifacts_start_new_lines() {
        let chunks = [("a", "one ", false), ("a", "two", true), ("b", "three\n", false)];
        assert_eq!(print(&chunks), "one two\nthree\n");
    }

    #[test]
    fn repeated_artifact_continues_where_it_was() {
        let chunks = [("a", "one ", false), ("a", "one ", false), ("a", "two", true)];
        assert_eq!(print(&chunks), "one two\n");
        let changed = [("a", "one ", false), ("a", "uno", false)];
        assert_eq!(print(&changed), format!("one \n{REPLACED}uno\n"));
    }

    #[test]
    fn bytes_and_urls_are_printed_as_one_line() {
        let raw = Part { content: Some(Content::Raw(vec![0; 3])), ..Part::default() };
        assert_eq!(part_text(&raw), "[3 bytes of bytes]\n");
        let url = Part { content: Some(Content::Url("http://x".into())), ..Part::default() };
        assert_eq!(part_text(&url), "http://x\n");
    }
}
