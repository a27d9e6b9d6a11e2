//! Flow control of responses on a public port. A client of HTTP/2 that opens no flow-control window
//! makes each of its streams keep a response in the server's memory at no cost of its own. Such
//! responses are charged to the client's address, and a connection that leaves one unread for too
//! long is closed.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::RETRY_AFTER};
use http_body::{Frame, SizeHint};

use super::{connection::Unread, streams};
use crate::limits;

/// Charges a response to the client's address until the client has read it. Above the quota it
/// becomes a response without a body, which needs no window. Bodies of unknown length have limits
/// of their own, and an HTTP/1 connection has one response at a time.
pub fn charge_until_read(response: Response<Body>) -> Response<Body> {
    let bytes = response.body().size_hint().exact().filter(|bytes| *bytes > 0);
    let (Some(bytes), Some(connection)) = (bytes, streams::connection()) else { return response };
    if !streams::is_stream() {
        return response;
    }
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    match connection.unread(bytes.saturating_add(limits::UNREAD_ANSWER_OVERHEAD)) {
        Ok(unread) => response.map(|inner| Body::new(Answer { inner, unread: Arc::new(unread) })),
        Err(_) => budget_exhausted(),
    }
}

/// The refusal for an exhausted budget. It has no body, so it needs no window.
pub(super) fn budget_exhausted() -> Response<Body> {
    let mut refusal = Response::new(Body::empty());
    *refusal.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    refusal.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    refusal
}

struct Answer {
    inner: Body,
    unread: Arc<Unread>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        // HTTP/2 takes all bytes once there is room for the first, and keeps the others.
        polled.map_ok(|frame| {
            let unread = Arc::clone(&self.unread);
            frame.map_data(|bytes| Bytes::from_owner(Kept { bytes, _unread: unread }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

struct Kept {
    bytes: Bytes,
    _unread: Arc<Unread>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
