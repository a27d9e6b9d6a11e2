//! Incremental parser of server-sent events by the HTML standard. Independent of A2A and of the
//! cuts between network packets.

use std::collections::VecDeque;

/// One dispatched event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The id of this event alone; the standard would keep it for later events.
    pub(crate) id: Option<String>,
    pub(crate) data: Vec<u8>,
}

/// An event exceeds the size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// Takes bytes and returns events. An event that is not ended by an empty line is dropped.
#[derive(Debug)]
pub(crate) struct Parser {
    line: Vec<u8>,
    frame: Frame,
    has_data: bool,
    ready: VecDeque<Frame>,
    /// The last line ended with a carriage return: a line feed right after it belongs to it.
    after_return: bool,
    at_start: bool,
    bytes_max: usize,
}

impl Parser {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            line: Vec::new(),
            frame: Frame::default(),
            has_data: false,
            ready: VecDeque::new(),
            after_return: false,
            at_start: true,
            bytes_max,
        }
    }

    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), TooLarge> {
        if self.after_return && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            self.after_return = false;
        }
        while let Some(end) = bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            self.line.extend_from_slice(&bytes[..end]);
            self.end_line()?;
            let returned = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if returned && bytes.is_empty() {
                self.after_return = true;
            } else if returned {
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
        }
        self.line.extend_from_slice(bytes);
        self.check(self.line.len())
    }

    pub(crate) fn next(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    fn check(&self, more: usize) -> Result<(), TooLarge> {
        if self.frame.data.len() + more <= self.bytes_max { Ok(()) } else { Err(TooLarge) }
    }

    fn end_line(&mut self) -> Result<(), TooLarge> {
        self.check(self.line.len())?;
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.at_start) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        self.take_line(&line);
        // The allocation is reused.
        line.clear();
        self.line = line;
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            if std::mem::take(&mut self.has_data) {
                self.ready.push_back(frame);
            }
            return;
        }
        let (name, value) = match line.iter().position(|b| *b == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if self.has_data {
                    self.frame.data.push(b'\n');
                }
                self.has_data = true;
                self.frame.data.extend_from_slice(value);
            }
            b"id" if !value.contains(&0) => {
                self.frame.id = String::from_utf8(value.to_vec()).ok();
            }
            // A comment has an empty name; `event`, `retry` and unknown fields are ignored.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Frame> {
        let mut parser = Parser::new(1024);
        let mut frames = Vec::new();
        for piece in pieces {
            parser.feed(piece).unwrap();
            frames.extend(std::iter::from_fn(|| parser.next()));
        }
        frames
    }

    fn frame(id: Option<&str>, data: &str) -> Frame {
        Frame { id: id.map(str::to_owned), data: data.as_bytes().to_vec() }
    }

    #[test]
    fn event_has_an_id_and_data() {
        let text = b"id: 7\ndata: {\"a\":1}\n\n: keep-alive\n\ndata:x\ndata\ndata:  y\n\n";
        let expected = [frame(Some("7"), "{\"a\":1}"), frame(None, "x\n\n y")];
        assert_eq!(parse([&text[..]]), expected);
    }

    #[test]
    fn all_line_endings_of_the_standard_end_a_line() {
        for text in ["data: a\n\ndata: b\n\n", "data: a\r\rdata: b\r\r"] {
            assert_eq!(parse([text.as_bytes()]), [frame(None, "a"), frame(None, "b")]);
        }
        let text = "\u{feff}data: a\r\n\r\ndata: b\r\n\r\n";
        assert_eq!(parse([text.as_bytes()]), [frame(None, "a"), frame(None, "b")]);
    }

    #[test]
    fn unterminated_or_empty_events_are_dropped() {
        assert_eq!(parse([&b"data: half"[..]]), []);
        assert_eq!(parse([&b"data: half\n"[..]]), []);
        assert_eq!(parse([&b"id: 3\nevent: x\nretry: 5\nunknown\n\n"[..]]), []);
        assert_eq!(parse([&b"id: 3\0\ndata:\n\n"[..]]), [frame(None, "")]);
    }

    #[test]
    fn oversized_event_is_rejected() {
        let mut parser = Parser::new(8);
        assert_eq!(parser.feed(b"data: 12"), Ok(()));
        assert_eq!(parser.feed(b"3456789"), Err(TooLarge));
        let mut parser = Parser::new(8);
        assert_eq!(parser.feed(b"data:1\ndata:2\ndata:3\n"), Err(TooLarge));
    }

    proptest! {
        #[test]
        fn chunking_changes_nothing(
            lines in prop::collection::vec("(data: ?|id: ?|: ?|event:)?[a-c\u{e9}]{0,4}", 0..12),
            endings in prop::collection::vec(0usize..3, 12),
            cuts in prop::collection::vec(1usize..7, 1..40),
        ) {
            let mut text = Vec::new();
            for (line, ending) in lines.iter().zip(endings) {
                text.extend_from_slice(line.as_bytes());
                text.extend_from_slice([&b"\n"[..], b"\r", b"\r\n"][ending]);
            }
            let mut pieces = Vec::new();
            let mut rest = text.as_slice();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, more) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            prop_assert_eq!(parse(pieces), parse([text.as_slice()]));
        }

        #[test]
        fn written_events_are_parsed_back(
            events in prop::collection::vec((any::<u64>(), "[ -~]{0,20}"), 0..8),
            cut in 1usize..20,
        ) {
            let mut text = String::new();
            for (id, data) in &events {
                text.push_str(&format!("id: {id}\ndata: {data}\n\n:\n\n"));
            }
            let expected: Vec<_> =
                events.iter().map(|(id, data)| frame(Some(&id.to_string()), data)).collect();
            prop_assert_eq!(parse(text.as_bytes().chunks(cut)), expected);
        }
    }
}
