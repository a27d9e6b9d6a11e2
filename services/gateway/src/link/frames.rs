//! The reader's side of one call: its frames in order, and the credit and the goodbye that go back
//! for it. Neither of them ever waits.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use faultline_chassis::{
    limits, server,
    telemetry::{Calling, SharedSpan},
};
use faultline_proto::{
    Failure,
    v1::{Call, Frame, call},
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{Shared, dropped, wake};

/// Frames taken before the coordinator hears of it: a quarter of what it may be ahead, so that it
/// neither runs dry nor gets a message per frame.
const CREDIT_BATCH: u32 = limits::STREAM_CREDIT / 4;

/// One frame, with the extensions that are in force, which the first one says.
type Item = Result<(Frame, Vec<String>), Failure>;

/// The link's side of one stream.
pub(super) struct Reader {
    frames: mpsc::Sender<Item>,
    sent: usize,
    /// How many frames the reader had taken when it was last looked at, and when it last moved.
    taken: usize,
    moved: Instant,
    /// Tells the other side that it is let go.
    stall: CancellationToken,
    /// Ends it without being read.
    end: Option<CancellationToken>,
}

impl Reader {
    /// Belongs to the request that is being answered here.
    pub(super) fn new(frames: mpsc::Sender<Item>) -> Self {
        let stall = server::peer_stall().map_or_else(CancellationToken::new, |s| s.child_token());
        let (moved, end) = (Instant::now(), server::stream_end());
        Self { frames, sent: 0, taken: 0, moved, stall, end }
    }

    /// Cancelled when what waits here is not read: neither this stream, which over HTTP/2 may be so
    /// although others of the connection are, nor the connection.
    pub(super) fn stall(&self) -> CancellationToken {
        self.stall.clone()
    }

    /// Hands a frame on, if there is room. One place is left free for the failure that may end it.
    pub(super) fn takes(&mut self, frame: Frame, extensions: Vec<String>) -> bool {
        let took =
            self.frames.capacity() >= 2 && self.frames.try_send(Ok((frame, extensions))).is_ok();
        self.sent += usize::from(took);
        took
    }

    pub(super) fn fail(self, failure: Failure) {
        // A reader that is gone needs no last word.
        drop(self.frames.try_send(Err(failure)));
    }

    /// Ends a stream that is not read: what waits in it must not wait for ever. A reader that comes
    /// back soon is told so; for one that does not, the stream is reset. Over HTTP/1 its connection
    /// is cut instead.
    pub(super) fn let_go(self) {
        self.stall.cancel();
        if let Some(end) = self.end {
            tokio::spawn(async move {
                sleep(limits::READER_FAREWELL).await;
                end.cancel();
            });
        }
    }

    /// Whether frames wait and none was taken for so long.
    pub(super) fn is_stuck(&mut self, now: Instant, stall: Duration) -> bool {
        let waiting = self.frames.max_capacity() - self.frames.capacity();
        let taken = self.sent - waiting;
        if waiting == 0 || taken != self.taken {
            (self.taken, self.moved) = (taken, now);
        }
        now.duration_since(self.moved) >= stall
    }
}

/// The answers of one call, in order. After a failure or the end comes nothing more.
pub(crate) struct FrameStream {
    frames: mpsc::Receiver<Item>,
    ticket: Ticket,
    /// Not yet given back as credit.
    taken: u32,
    extensions: Vec<String>,
    /// Ready when its reader does not read. No frame need wait then: the connection may have had
    /// room for all there was to say.
    stalled: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
    /// The call, and the request that makes it.
    spans: Option<(Calling, SharedSpan)>,
}

impl FrameStream {
    pub(super) fn new(
        frames: mpsc::Receiver<Item>,
        ticket: Ticket,
        stall: CancellationToken,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let stalled = Box::pin(stall.cancelled_owned());
        Self {
            frames,
            ticket,
            taken: 0,
            extensions: Vec::new(),
            stalled,
            _place: place,
            spans: None,
        }
    }

    /// Whatever comes is told to these spans.
    pub(crate) fn traced(self, calling: Calling, request: SharedSpan) -> Self {
        Self { spans: Some((calling, request)), ..self }
    }

    fn tell(&mut self, item: Option<&Result<Frame, Failure>>) {
        let Some((calling, request)) = &mut self.spans else { return };
        match item {
            Some(Ok(frame)) => {
                calling.frame(frame);
                request.with(|span| {
                    span.frame(frame);
                });
            }
            Some(Err(failure)) => calling.ended(Err(failure)),
            None => calling.ended(Ok(None)),
        }
    }

    /// The extensions in force. Known once the first frame is here.
    pub(crate) fn extensions(&self) -> &[String] {
        &self.extensions
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Frame, Failure>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame, Failure>>> {
        if self.ticket.is_open && self.stalled.as_mut().poll(cx).is_ready() {
            // What waits is there to be resumed from, and the last word should not wait for it.
            self.ticket.leave();
            self.frames.close();
            while self.frames.try_recv().is_ok() {}
            return Poll::Ready(Some(Err(self.ticket.shared.stuck_reader())));
        }
        let item = match std::task::ready!(self.frames.poll_recv(cx)) {
            Some(Ok((frame, extensions))) => {
                if !extensions.is_empty() {
                    self.extensions = extensions;
                }
                self.taken += 1;
                Some(Ok(frame))
            }
            Some(Err(failure)) => {
                self.ticket.is_open = false;
                Some(Err(failure))
            }
            None => {
                self.ticket.is_open = false;
                None
            }
        };
        self.tell(item.as_ref());
        if self.taken == CREDIT_BATCH {
            self.ticket.give_credit(mem::take(&mut self.taken));
        }
        Poll::Ready(item)
    }
}

/// The right to wait for call `id`. Whoever lets go of it early is struck off, and the coordinator
/// hears of it; nobody waits for that.
pub(super) struct Ticket {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) is_open: bool,
}

impl Ticket {
    fn give_credit(&self, frames: u32) {
        let mut state = self.shared.lock();
        // Once its last reply is here the coordinator has forgotten the call.
        let is_known = state.waiting.contains_key(&self.id);
        let body = Some(call::Body::Credit(frames));
        let sender = match is_known {
            true => state.post(Call { id: self.id, caller: None, body }),
            false => None,
        };
        drop(state);
        wake(sender);
    }

    fn leave(&mut self) {
        if mem::take(&mut self.is_open) {
            let mut state = self.shared.lock();
            let waiter = state.waiting.remove(&self.id);
            let sender = waiter.as_ref().and_then(|_| state.post(dropped(self.id)));
            drop(state);
            wake(sender);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
    }
}
