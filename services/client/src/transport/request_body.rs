//! Request body in pieces, which signals when the connection has taken the last one: the read
//! timeout starts only then.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;

/// Small in relation to the buffers of the operating system.
const PIECE_BYTES: usize = 64 * 1024;

/// The body of one request.
pub(crate) struct RequestBody {
    rest: Bytes,
    /// Dropped together with the body, as soon as all of it was taken.
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
    /// Returns when the body was taken completely.
    pub(crate) async fn wait(self) {
        // No value is ever sent: dropping the sender is the signal.
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
