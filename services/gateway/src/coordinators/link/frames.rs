//! The reader's side of one call: its frames in order, and the credit and the goodbye that go back
//! for it. Neither of them ever waits. What happens after its end is not known here.

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

/// Frames taken before the coordinator hears of it: a quarter of what it may be ahead, so that it
/// neither runs dry nor gets a message per frame.
const CREDIT_BATCH: u32 = limits::STREAM_CREDIT / 4;

/// One frame, with the extensions that are in force, which the first one says.
pub(crate) type Item = Result<(Frame, Vec<String>), CallError>;

/// Who reads a stream: the request that is being answered, whichever links it takes.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Cancelled when what waits is not read: neither this stream, which over HTTP/2 may be so
    /// although others of the connection are, nor the connection.
    pub(crate) stall: CancellationToken,
    /// Ends it without being read.
    end: Option<CancellationToken>,
}

impl Peer {
    /// Of the request that is being answered here.
    pub(crate) fn here() -> Self {
        let stall = server::peer_stall().map_or_else(CancellationToken::new, |s| s.child_token());
        Self { stall, end: server::stream_reset() }
    }
}

/// The link's side of one stream.
pub(super) struct StreamBuffer {
    frames: mpsc::Sender<Item>,
    sent: usize,
    /// How many frames the reader had taken when it was last looked at, and when it last moved.
    taken: usize,
    moved: Instant,
    peer: Peer,
}

impl StreamBuffer {
    pub(super) fn new(frames: mpsc::Sender<Item>, peer: Peer) -> Self {
        Self { frames, sent: 0, taken: 0, moved: Instant::now(), peer }
    }

    /// Hands a frame on, if there is room. One place is left free for the failure that may end it.
    pub(super) fn push(&mut self, frame: Frame, extensions: Vec<String>) -> bool {
        let took =
            self.frames.capacity() >= 2 && self.frames.try_send(Ok((frame, extensions))).is_ok();
        self.sent += usize::from(took);
        took
    }

    pub(super) fn fail(self, ended: CallError) {
        // A reader that is gone needs no last word.
        drop(self.frames.try_send(Err(ended)));
    }

    /// Ends a stream that is not read: what waits in it must not wait for ever. A reader that comes
    /// back soon is told so; for one that does not, the stream is reset. Over HTTP/1 its connection
    /// is cut instead.
    pub(super) fn reset(self) {
        self.peer.stall.cancel();
        if let Some(end) = self.peer.end {
            tokio::spawn(async move {
                sleep(limits::READER_RETURN_TIMEOUT).await;
                end.cancel();
            });
        }
    }

    /// Whether frames wait and none was taken for so long.
    pub(super) fn is_stalled(&mut self, now: Instant, stall: Duration) -> bool {
        let waiting = self.frames.max_capacity() - self.frames.capacity();
        let taken = self.sent - waiting;
        if waiting == 0 || taken != self.taken {
            (self.taken, self.moved) = (taken, now);
        }
        now.duration_since(self.moved) >= stall
    }
}

/// The answers of one call, in order. After its end comes nothing more.
pub(crate) struct Frames {
    frames: mpsc::Receiver<Item>,
    guard: CallGuard,
    /// Not yet given back as credit.
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

/// The right to wait for call `id`. Whoever lets go of it early is struck off, and the coordinator
/// hears of it; nobody waits for that.
pub(super) struct CallGuard {
    pub(super) inner: Arc<LinkInner>,
    pub(super) id: u64,
    pub(super) is_armed: bool,
}

impl CallGuard {
    fn give_credit(&self, frames: u32) {
        let mut state = self.inner.lock();
        // Once its last reply is here the coordinator has forgotten the call.
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
