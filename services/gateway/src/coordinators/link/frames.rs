//! The frames of one streaming call: buffer, credit-based flow control (backpressure), stall
//! detection and cancellation. Nothing here waits for the transport.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use faultline_chassis::{limits, server};
use faultline_proto::v1::{Call, Frame, call};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{CallError, LinkInner, PendingCall, wake};

/// Frames per credit message: a quarter of the credit, so that the coordinator neither runs out of
/// credit nor gets a message per frame.
const CREDIT_BATCH: u32 = limits::STREAM_CREDIT / 4;

/// One frame, with the active extensions, which are in the first frame only.
pub(crate) type Item = Result<(Frame, Vec<String>), CallError>;

/// The request that a stream answers, with the tokens that end its response. It is the same over
/// all coordinators of a stream.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Cancelled when the client does not read this stream. Over HTTP/2 that may be so although the
    /// client reads other streams of the connection.
    pub(crate) stall: CancellationToken,
    /// Resets the response although its frames are unread.
    end: Option<CancellationToken>,
}

impl Peer {
    /// The request that is being answered on this task.
    pub(crate) fn here() -> Self {
        let stall = server::peer_stall().map_or_else(CancellationToken::new, |s| s.child_token());
        Self { stall, end: server::stream_reset() }
    }
}

/// The buffer of one stream, at the end of the link. Under the lock of the link.
pub(super) struct StreamBuffer {
    frames: mpsc::Sender<Item>,
    sent: usize,
    /// Frames that were read until the last check.
    taken: usize,
    /// The last check that found progress, or nothing to read.
    moved: Instant,
    peer: Peer,
}

impl StreamBuffer {
    pub(super) fn new(frames: mpsc::Sender<Item>, peer: Peer) -> Self {
        Self { frames, sent: 0, taken: 0, moved: Instant::now(), peer }
    }

    /// Buffers a frame; `false` without room. One place stays free for a failure at the end.
    pub(super) fn push(&mut self, frame: Frame, extensions: Vec<String>) -> bool {
        let took =
            self.frames.capacity() >= 2 && self.frames.try_send(Ok((frame, extensions))).is_ok();
        self.sent += usize::from(took);
        took
    }

    pub(super) fn fail(self, ended: CallError) {
        // The send fails if the reader is gone, which is harmless.
        drop(self.frames.try_send(Err(ended)));
    }

    /// Ends a stream that is not read. A client that returns soon gets a failure as its last event;
    /// after that the stream is reset. Over HTTP/1 its connection is closed instead.
    pub(super) fn reset(self) {
        self.peer.stall.cancel();
        if let Some(end) = self.peer.end {
            tokio::spawn(async move {
                sleep(limits::READER_RETURN_TIMEOUT).await;
                end.cancel();
            });
        }
    }

    /// Whether frames wait and none was read for this long.
    pub(super) fn is_stalled(&mut self, now: Instant, stall: Duration) -> bool {
        let waiting = self.frames.max_capacity() - self.frames.capacity();
        let taken = self.sent - waiting;
        if waiting == 0 || taken != self.taken {
            (self.taken, self.moved) = (taken, now);
        }
        now.duration_since(self.moved) >= stall
    }
}

/// The answers of one call, in order. Nothing follows its end.
pub(crate) struct Frames {
    frames: mpsc::Receiver<Item>,
    guard: CallGuard,
    /// Frames read since the last credit message.
    taken: u32,
}

impl Frames {
    pub(super) fn new(frames: mpsc::Receiver<Item>, guard: CallGuard) -> Self {
        Self { frames, guard, taken: 0 }
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let item = std::task::ready!(self.frames.poll_recv(cx));
        match &item {
            Some(Ok(_)) => self.taken += 1,
            Some(Err(_)) | None => self.guard.is_armed = false,
        }
        if self.taken == CREDIT_BATCH {
            self.guard.give_credit(mem::take(&mut self.taken));
        }
        Poll::Ready(item)
    }
}

/// Guard of call `id`: dropping it before the end of the call cancels the call at the coordinator.
pub(super) struct CallGuard {
    pub(super) inner: Arc<LinkInner>,
    pub(super) id: u64,
    pub(super) is_armed: bool,
}

impl CallGuard {
    fn give_credit(&self, frames: u32) {
        let mut state = self.inner.lock();
        // After its last reply the coordinator no longer knows the call.
        let is_known = state.pending.get(&self.id).is_some_and(PendingCall::is_stream);
        let body = Some(call::Body::Credit(frames));
        let writer =
            if is_known { state.enqueue(Call { id: self.id, caller: None, body }) } else { None };
        drop(state);
        wake(writer);
    }

    fn cancel(&mut self) {
        if mem::take(&mut self.is_armed) {
            let mut state = self.inner.lock();
            let (waiter, sender) = state.cancel(self.id);
            drop(state);
            wake(sender);
            drop(waiter);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.cancel();
    }
}
