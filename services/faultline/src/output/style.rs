//! Colours and weights of text, only on a terminal and never if `NO_COLOR` is set.

use std::{
    fmt::Display,
    io::{IsTerminal, stderr, stdout},
};

use owo_colors::OwoColorize;

/// Whether text is printed with escape codes.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    on: bool,
}

impl Style {
    pub fn plain() -> Self {
        Self { on: false }
    }

    pub fn stdout() -> Self {
        Self { on: stdout().is_terminal() && colour_is_allowed() }
    }

    pub fn stderr() -> Self {
        Self { on: stderr().is_terminal() && colour_is_allowed() }
    }

    #[cfg(test)]
    pub(crate) fn always() -> Self {
        Self { on: true }
    }

    pub fn bold(self, text: impl Display) -> String {
        if self.on { text.bold().to_string() } else { text.to_string() }
    }

    pub fn dim(self, text: impl Display) -> String {
        if self.on { text.dimmed().to_string() } else { text.to_string() }
    }

    pub fn red(self, text: impl Display) -> String {
        if self.on { text.red().bold().to_string() } else { text.to_string() }
    }

    pub fn green(self, text: impl Display) -> String {
        if self.on { text.green().to_string() } else { text.to_string() }
    }

    pub fn yellow(self, text: impl Display) -> String {
        if self.on { text.yellow().to_string() } else { text.to_string() }
    }

    pub fn cyan(self, text: impl Display) -> String {
        if self.on { text.cyan().to_string() } else { text.to_string() }
    }
}

fn colour_is_allowed() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !refused && !dumb
}
