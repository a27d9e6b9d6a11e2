//! The reader's side of one call: its frames in order, and the credit and the goodbye that go back
//! for it. Neither of them ever waits.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    v1::{Call, Frame, call},
};
use tokio::sync::mpsc;

use super::{Shared, dropped, wake};

/// Frames taken before the coordinator hears of it: a quarter of what it may be ahead, so that it
/// neither runs dry nor gets a message per frame.
const CREDIT_BATCH: u32 = limits::STREAM_CREDIT / 4;

/// The answers of one call, in order. After a failure or the end comes nothing more.
pub(crate) struct FrameStream {
    frames: mpsc::Receiver<Result<Frame, Failure>>,
    ticket: Ticket,
    /// Not yet given back as credit.
    taken: u32,
}

impl FrameStream {
    pub(super) fn new(frames: mpsc::Receiver<Result<Frame, Failure>>, ticket: Ticket) -> Self {
        Self { frames, ticket, taken: 0 }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Frame, Failure>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame, Failure>>> {
        let item = std::task::ready!(self.frames.poll_recv(cx));
        match &item {
            Some(Ok(_)) => self.taken += 1,
            Some(Err(_)) | None => self.ticket.is_open = false,
        }
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
