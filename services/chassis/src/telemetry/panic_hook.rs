//! The panic hook: a panic becomes one event of the log. The hook of the standard library writes
//! the message raw to stderr, several lines of it, and a message may quote a caller (log
//! injection). Must not panic itself: that aborts the process.

use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
    panic, thread,
};

/// Logs every panic of this process from now on, with its place and the task that it ended.
/// Includes a backtrace where `RUST_BACKTRACE` asks for one.
pub(super) fn install() {
    panic::set_hook(Box::new(|panicked| {
        let location = panicked.location().map(ToString::to_string);
        let trace = Backtrace::capture();
        let is_captured = trace.status() == BacktraceStatus::Captured;
        let backtrace = is_captured.then(|| trace.to_string());
        let thread = thread::current();
        tracing::error!(
            panic = text(panicked.payload()),
            location,
            thread = thread.name(),
            backtrace,
            "a thread or task panicked"
        );
    }));
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&'static str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("the payload is not text")
}
