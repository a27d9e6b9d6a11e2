//! The accounting of one call of a gateway: counted from its arrival until its answer is
//! written, and answered exactly once, also if its caller left.

use std::sync::{Arc, atomic::Ordering};

use faultline_proto::{
    Failure, reason,
    v1::{End, reply},
};

use super::Line;

/// A call that is answered on the queue of answers, which has room for every call that is counted.
pub(super) struct Place {
    line: Arc<Line>,
    id: u64,
    is_open: bool,
}

impl Place {
    pub(super) fn new(line: &Arc<Line>, id: u64) -> Self {
        line.open.fetch_add(1, Ordering::Relaxed);
        Self { line: Arc::clone(line), id, is_open: true }
    }

    /// Puts the answer on the stream, now: it may be called under the core's lock.
    pub(super) fn answer(mut self, answer: Result<reply::Body, Failure>, extensions: Vec<String>) {
        self.is_open = false;
        self.line.reply(self.id, answer, extensions);
    }
}

/// Nothing has answered the call: the caller left, which is confirmed so that the gateway no longer
/// counts the call, or a panic ended it.
impl Drop for Place {
    fn drop(&mut self) {
        if self.is_open {
            let answer = match std::thread::panicking() {
                true => Err(Failure::new(&reason::INTERNAL_ERROR)),
                false => Ok(reply::Body::End(End {})),
            };
            self.line.reply(self.id, answer, Vec::new());
        }
    }
}

/// A stream that is open: its frames and its end wait in a queue of their own.
pub(super) struct Streaming(Arc<Line>);

impl Streaming {
    pub(super) fn new(line: &Arc<Line>) -> Self {
        line.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(line))
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
