//! The log of what runs on this thread, line by line as JSON. A mesh on a runtime of one thread
//! says all it says there.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Keeps the log until it is dropped.
pub struct Log {
    text: Text,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Everything of ours from debug on that is logged on this thread from now.
    pub fn keep() -> Self {
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
        let bytes = self.text.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8(bytes).expect("a log is text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// The lines about one failure.
    pub fn of_failure(&self, id: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["failure.id"] == id).collect()
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
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
