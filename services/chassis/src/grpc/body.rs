//! A gRPC body that always ends with a status. A dead peer, a panic, an expired deadline and
//! trailers that would make tonic panic all become trailers with a proper status.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use base64::Engine;
use bytes::Bytes;
use faultline_proto::{Failure, reason};
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Code, Status, body::Body};

const GRPC_STATUS: &str = "grpc-status";
const DETAILS: &str = "grpc-status-details-bin";

/// The side of the connection. It decides the meaning of a broken body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

pub(crate) struct GuardedBody {
    inner: Option<Body>,
    side: Side,
    /// A status has been seen, in headers or trailers: a plain end is fine.
    has_status: bool,
    clock: Option<Clock>,
}

struct Clock {
    total: Option<Instant>,
    idle: Option<Duration>,
    sleep: Pin<Box<Sleep>>,
}

impl Clock {
    fn new(total: Option<Instant>, idle: Option<Duration>) -> Option<Self> {
        let at = next_alarm(total, idle)?;
        Some(Self { total, idle, sleep: Box::pin(sleep_until(at)) })
    }

    fn reset_idle(&mut self) {
        if self.idle.is_some()
            && let Some(at) = next_alarm(self.total, self.idle)
        {
            self.sleep.as_mut().reset(at);
        }
    }
}

fn next_alarm(total: Option<Instant>, idle: Option<Duration>) -> Option<Instant> {
    let idle = idle.map(|gap| Instant::now() + gap);
    match (total, idle) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl GuardedBody {
    pub(crate) fn new(
        inner: Body,
        side: Side,
        has_status: bool,
        total: Option<Instant>,
        idle: Option<Duration>,
    ) -> Self {
        Self { inner: Some(inner), side, has_status, clock: Clock::new(total, idle) }
    }

    fn end_with(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.inner = None;
        self.has_status = true;
        Poll::Ready(Some(Ok(Frame::trailers(trailers(failure)))))
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(inner) = this.inner.as_mut() else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(inner).poll_frame(cx)));
        let Ok(polled) = polled else { return this.end_with(panicked()) };
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(clock) = &mut this.clock {
                    clock.reset_idle();
                }
                Poll::Ready(Some(Ok(match frame.into_trailers() {
                    Ok(mut map) => {
                        this.has_status = true;
                        sanitize(&mut map);
                        Frame::trailers(map)
                    }
                    Err(data) => data,
                })))
            }
            Poll::Ready(Some(Err(status))) => this.end_with(broken(this.side, &status)),
            Poll::Ready(None) if !this.has_status => {
                let text = "the stream ended without a status";
                this.end_with(Failure::new(&reason::UNKNOWN).because(text))
            }
            Poll::Ready(None) => {
                this.inner = None;
                Poll::Ready(None)
            }
            Poll::Pending => match this.clock.as_mut().map(|c| c.sleep.as_mut().poll(cx)) {
                Some(Poll::Ready(())) => this.end_with(expired()),
                _ => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            // A body that ends with its headers is only an end if those carried the status.
            Some(inner) => self.has_status && inner.is_end_stream(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Removes details that are not base64: tonic would panic on them.
pub(crate) fn sanitize(headers: &mut HeaderMap) {
    if let Some(details) = headers.get(DETAILS) {
        let text = details.as_bytes();
        let text = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
        if base64::engine::general_purpose::STANDARD_NO_PAD.decode(text).is_err() {
            headers.remove(DETAILS);
        }
    }
}

pub(crate) fn has_status(headers: &HeaderMap) -> bool {
    headers.contains_key(GRPC_STATUS)
}

/// tonic calls a request that it cannot decode INTERNAL, although the caller sent it. Every failure
/// of ours has details, so INTERNAL without them is tonic's own.
pub(crate) fn blame_caller(headers: &mut HeaderMap) {
    let is_internal = |status: &HeaderValue| status.as_bytes() == b"13";
    if headers.get(GRPC_STATUS).is_some_and(is_internal) && !headers.contains_key(DETAILS) {
        headers.insert(GRPC_STATUS, HeaderValue::from(Code::InvalidArgument as i32));
    }
}

pub(crate) fn trailers(failure: Failure) -> HeaderMap {
    let mut map = HeaderMap::new();
    if Status::from(failure).add_header(&mut map).is_err() {
        map.insert(GRPC_STATUS, HeaderValue::from(Code::Internal as i32));
    }
    map
}

/// A response that is nothing but a status.
pub(crate) fn response(failure: Failure) -> http::Response<Body> {
    Status::from(failure).into_http()
}

pub(crate) fn expired() -> Failure {
    Failure::new(&reason::DEADLINE_EXCEEDED).because("the call ran out of time")
}

pub(crate) fn panicked() -> Failure {
    Failure::new(&reason::INTERNAL).because("the service failed while it handled the call")
}

fn broken(side: Side, status: &Status) -> Failure {
    match side {
        Side::Client => unreachable_peer(status.message()),
        Side::Server => Failure::from(status.clone()),
    }
}

/// The peer died, closed the connection or was never there. All of these may be retried.
pub(crate) fn unreachable_peer(detail: &str) -> Failure {
    Failure::new(&reason::UNAVAILABLE)
        .because("the peer cannot be reached, or the connection to it was lost")
        .privately(detail.to_owned())
        .with_plane(faultline_proto::v1::Plane::Transport)
}

/// A body that holds a value until its end.
pub(crate) struct WithGuard<T> {
    inner: axum::body::Body,
    _guard: T,
}

impl<T> WithGuard<T> {
    pub(crate) fn new(inner: axum::body::Body, guard: T) -> Self {
        Self { inner, _guard: guard }
    }
}

impl<T: Unpin> http_body::Body for WithGuard<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
