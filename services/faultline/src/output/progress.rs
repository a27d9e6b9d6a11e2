//! The live line on stderr while a task runs. Only on a terminal; otherwise nothing is printed.

use std::{
    io::{IsTerminal, Write, stderr, stdout},
    time::{Duration, Instant},
};

use faultline_proto::{a2a::TaskState, failure::state_word};

use crate::output::{
    style::Style,
    text::{short, span},
};

pub(crate) const TICK: Duration = Duration::from_millis(120);
const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// The state of the live line. The session that follows a task owns it and draws it with every
/// tick.
pub(crate) struct Progress {
    live: bool,
    shares_terminal: bool,
    style: Style,
    started: Instant,
    frame: usize,
    state: &'static str,
    message: String,
    drawn: bool,
}

impl Progress {
    pub(crate) fn start(quiet: bool) -> Self {
        Self {
            live: stderr().is_terminal() && !quiet,
            shares_terminal: stdout().is_terminal(),
            style: Style::stderr(),
            started: Instant::now(),
            frame: 0,
            state: "sending",
            message: String::new(),
            drawn: false,
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn set(&mut self, state: TaskState, message: &str) {
        self.state = state_word(state);
        if !message.is_empty() {
            self.message = short(message, 60);
        }
    }

    /// Draws the next frame, unless stdout has an unfinished line on the same terminal.
    pub(crate) fn tick(&mut self, mid_line: bool) {
        if !self.live || (mid_line && self.shares_terminal) {
            return;
        }
        self.frame = (self.frame + 1) % FRAMES.len();
        let spinner = self.style.cyan(FRAMES[self.frame]);
        let elapsed = self.style.dim(span(self.elapsed()));
        let text = format!("\r\x1b[K{spinner} {}  {elapsed}  {}", self.state, self.message);
        // An error of the terminal must not end the command.
        let _ = stderr().write_all(text.as_bytes()).and_then(|()| stderr().flush());
        self.drawn = true;
    }

    /// Erases the line before other output.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = stderr().write_all(b"\r\x1b[K").and_then(|()| stderr().flush());
        }
    }

    /// Prints a last line, only on a terminal.
    pub(crate) fn print_last_line(&mut self, text: &str) {
        self.clear();
        if self.live {
            eprintln!("{text}");
        }
    }
}
