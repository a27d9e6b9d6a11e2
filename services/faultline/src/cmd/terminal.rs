//! The terminal in raw mode with the alternate screen, for a full-screen command: single keys,
//! frames, and the restoration of the previous mode on drop.

use std::{
    io::{self, Read, Write, stdin, stdout},
    thread,
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// The size without a terminal.
const COLUMNS: usize = 100;
const ROWS: usize = 40;
/// Bound on keys that wait to be handled; further keys are dropped.
const KEYS_MAX: usize = 64;

/// Alternate screen, no cursor, no line wrapping.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The columns and rows of the terminal.
pub(crate) fn size() -> (usize, usize) {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            (usize::from(size.ws_col), usize::from(size.ws_row))
        }
        _ => (COLUMNS, ROWS),
    }
}

/// The terminal in raw mode; a drop restores the previous mode.
pub(crate) struct Terminal {
    before: Termios,
}

impl Terminal {
    pub(crate) fn take() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        let terminal = Self { before };
        write(ENTER)?;
        Ok(terminal)
    }

    /// Draws these lines in one write, as many as the screen has rows.
    pub(crate) fn show(&self, lines: &[String]) -> io::Result<()> {
        // Synchronized update: terminals that support it draw the frame at once.
        let mut frame = String::from("\x1b[?2026h\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            // The old line is erased first: after a full line the cursor is still on its last cell.
            frame.push_str(if at == 0 { "\x1b[K" } else { "\r\n\x1b[K" });
            frame.push_str(line);
        }
        frame.push_str("\x1b[?2026l");
        write(&frame)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // An error cannot be reported on a terminal that is gone.
        let _ = write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Up,
    Down,
    Enter,
    /// Closes the text in front, or ends the command.
    Back,
    Quit,
}

/// The keys typed from now on. The thread that reads them ends with the process.
pub(crate) fn keys() -> mpsc::Receiver<Key> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(count) = stdin().lock().read(&mut bytes)
            && count > 0
        {
            for key in read(&bytes[..count]) {
                if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(key) {
                    return;
                }
            }
        }
    });
    keys
}

/// The keys in bytes that a terminal sent together.
fn read(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        let (key, left) = match (first, rest) {
            (0x1b, [b'[' | b'O', b'A', left @ ..]) => (Some(Key::Up), left),
            (0x1b, [b'[' | b'O', b'B', left @ ..]) => (Some(Key::Down), left),
            // Another key with an escape sequence, which has no meaning here.
            (0x1b, [b'[' | b'O', left @ ..]) => {
                let end = left.iter().position(|b| (0x40..=0x7e).contains(b));
                (None, end.map_or(&[][..], |end| &left[end + 1..]))
            }
            (0x1b, left) => (Some(Key::Back), left),
            (b'k', left) => (Some(Key::Up), left),
            (b'j', left) => (Some(Key::Down), left),
            (b'\r' | b'\n', left) => (Some(Key::Enter), left),
            // Ctrl-C arrives as a byte.
            (b'q' | 0x03, left) => (Some(Key::Quit), left),
            (_, left) => (None, left),
        };
        keys.extend(key);
        bytes = left;
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_from_their_bytes() {
        use Key::{Back, Down, Enter, Quit, Up};
        assert_eq!(read(b"jk\x1b[A\x1b[B\x1bOA\rq"), [Down, Up, Up, Down, Up, Enter, Quit]);
        assert_eq!(read(b"\x1b"), [Back]);
        assert_eq!(read(b"\x03"), [Quit]);
        assert_eq!(read(b"x\x1b[5~\x1b[1;5Cj\x1b["), [Down], "other keys are ignored");
    }
}
