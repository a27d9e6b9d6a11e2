//! The reader's side of one call: its frames in order, and the credit and the goodbye that go back
//! for it. Neither of them ever waits.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
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
    time::Instant,
};
use tokio_util::sync::CancellationToken;

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
    /// Ends it without being read.
    end: Option<CancellationToken>,
}

impl Reader {
    /// Belongs to the request that is being answered here.
    pub(super) fn new(frames: mpsc::Sender<Item>) -> Self {
        Self { frames, sent: 0, taken: 0, moved: Instant::now(), end: server::stream_end() }
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

    /// Ends a stream that is not read: what waits in it must not wait for ever. Over HTTP/1 its
    /// connection is cut anyway, unless the reader comes back just in time for the last word.
    pub(super) fn let_go(self, failure: Failure) {
        let end = self.end.clone();
        self.fail(failure);
        if let Some(end) = end {
            end.cancel();
        }
    }

    /// Whether frames wait and none was taken for too long.
    pub(super) fn is_stuck(&mut self, now: Instant) -> bool {
        let waiting = self.frames.max_capacity() - self.frames.capacity();
        let taken = self.sent - waiting;
        if waiting == 0 || taken != self.taken {
            (self.taken, self.moved) = (taken, now);
        }
        now.duration_since(self.moved) >= limits::READER_STALL
    }
}

/// The answers of one call, in order. After a failure or the end comes nothing more.
pub(crate) struct FrameStream {
    frames: mpsc::Receiver<Item>,
    ticket: Ticket,
    /// Not yet given back as credit.
    taken: u32,
    extensions: Vec<String>,
    _place: OwnedSemaphorePermit,
    /// The call, and the request that makes it.
    spans: Option<(Calling, SharedSpan)>,
}

impl FrameStream {
    pub(super) fn new(
        frames: mpsc::Receiver<Item>,
        ticket: Ticket,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { frames, ticket, taken: 0, extensions: Vec::new(), _place: place, spans: None }
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
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_open {
            let mut state = self.shared.lock();
            let waiter = state.waiting.remove(&self.id);
            let sender = waiter.as_ref().and_then(|_| state.post(dropped(self.id)));
            drop(state);
            wake(sender);
        }
    }
}
