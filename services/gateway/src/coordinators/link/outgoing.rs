//! The request stream of one connection: the transport polls it and takes messages from the outbox,
//! so its backpressure reaches the outbox without a task in between.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use faultline_proto::v1::Call;
use futures::Stream;

use super::LinkInner;

/// The sender of one connection. It ends when the link has a newer connection.
pub(super) struct Outgoing {
    inner: Arc<LinkInner>,
    epoch: u64,
    /// Messages taken from the outbox together, so that the lock is taken once for many.
    batch: VecDeque<Call>,
}

impl Outgoing {
    /// The sender of the connection that is being made.
    pub(super) fn new(inner: &Arc<LinkInner>) -> Self {
        let epoch = inner.lock().epoch;
        Self { inner: Arc::clone(inner), epoch, batch: VecDeque::new() }
    }
}

impl Stream for Outgoing {
    type Item = Call;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Call>> {
        if let Some(call) = self.batch.pop_front() {
            return Poll::Ready(Some(call));
        }
        let this = &mut *self;
        let mut state = this.inner.lock();
        if state.epoch != this.epoch {
            return Poll::Ready(None);
        }
        mem::swap(&mut state.outbox, &mut this.batch);
        match this.batch.pop_front() {
            Some(call) => Poll::Ready(Some(call)),
            None => {
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
