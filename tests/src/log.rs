//! Captures the log of the current thread, line by line as JSON. A mesh on a current-thread runtime
//! logs everything there.

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Captures log lines from its creation until its drop.
pub struct Log {
    text: Text,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures the lines of faultline crates at DEBUG and above on this thread.
    pub fn capture() -> Self {
        let text = Text::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_env_filter("faultline=debug")
            .with_writer(text.clone())
            .finish();
        Self { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    pub fn lines(&self) -> Vec<Value> {
        let bytes = self.text.0.lock().clone();
        let text = String::from_utf8(bytes).expect("a log is UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// The lines about one failure.
    pub fn of_failure(&self, id: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["failure.id"] == id).collect()
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Text {
    type Writer = Text;

    fn make_writer(&'a self) -> Text {
        self.clone()
    }
}
