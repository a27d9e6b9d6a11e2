//! The body of a request, in pieces, so that it is known when the last one was taken: only from
//! then on the peer can be expected to say something.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;

/// Small beside what the system buffers.
const PIECE_BYTES: usize = 64 * 1024;

pub(crate) struct RequestBody {
    rest: Bytes,
    /// Dropped with the body, which is as soon as all of it was taken.
    _taken: oneshot::Sender<Infallible>,
}

/// Waits for the end of a body.
pub(crate) struct BodySent(oneshot::Receiver<Infallible>);

impl RequestBody {
    pub(crate) fn new(body: Bytes) -> (Self, BodySent) {
        let (sender, receiver) = oneshot::channel();
        (Self { rest: body, _taken: sender }, BodySent(receiver))
    }
}

impl BodySent {
    /// Returns when all of the body was taken.
    pub(crate) async fn wait(self) {
        // Nothing is ever sent: the end of the sender is the news.
        let _ = self.0.await;
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let size = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(size)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
