//! Admission control: the budget for gRPC messages that have not arrived whole. tonic buffers a
//! message until its last byte, so an unfinished message is charged with its announced length to
//! its connection, the client's address and the process, and only for a bounded time. A finished
//! message is free again once tonic has decoded it, so a stream may carry any number of messages.
//! This module knows the framing of gRPC and nothing of the messages.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use faultline_proto::Failure;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tower::{Layer, Service};

use super::{Client, ReservedBytes, Resource, client};
use crate::{auth::credential::Identity, grpc::body, limits};

/// The compression flag and the length, which precede each message.
const PREFIX_BYTES: usize = 5;

/// Charges the unfinished messages of authenticated callers.
#[derive(Clone, Copy, Debug)]
pub struct MessageBudgetLayer {
    /// Beginnings of the paths whose requests are streams of messages. Each other request is one
    /// message, which stays charged until the request ends.
    pub streams: &'static [&'static str],
}

impl<S> Layer<S> for MessageBudgetLayer {
    type Service = MessageBudget<S>;

    fn layer(&self, inner: S) -> MessageBudget<S> {
        MessageBudget { inner, streams: self.streams }
    }
}

#[derive(Clone, Debug)]
pub struct MessageBudget<S> {
    inner: S,
    streams: &'static [&'static str],
}

impl<S> Service<Request<Body>> for MessageBudget<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let is_member = request.extensions().get::<Arc<Identity>>().is_some();
        let Some(client) = client().filter(|_| is_member) else {
            return self.inner.call(request);
        };
        let path = request.uri().path();
        let is_stream = self.streams.iter().any(|stream| path.starts_with(stream));
        let framing = Framing { is_stream, ..Framing::default() };
        self.inner.call(request.map(|inner| {
            Body::new(Metered { inner, framing, client, reserved: None, deadline: None })
        }))
    }
}

/// The place in a sequence of framed messages.
#[derive(Default)]
struct Framing {
    is_stream: bool,
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that have come.
    prefix_len: usize,
    /// Bytes of the message that have not come.
    missing: usize,
    /// Bytes of finished messages that are still kept.
    finished: usize,
}

impl Framing {
    fn advance(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.prefix_len < PREFIX_BYTES {
                let n = data.len().min(PREFIX_BYTES - self.prefix_len);
                self.prefix[self.prefix_len..][..n].copy_from_slice(&data[..n]);
                self.prefix_len += n;
                data = &data[n..];
                self.missing = self.announced();
            }
            let n = data.len().min(self.missing);
            self.missing -= n;
            data = &data[n..];
            if self.prefix_len == PREFIX_BYTES && self.missing == 0 {
                if !self.is_stream {
                    self.finished = self.finished.saturating_add(self.announced());
                }
                self.prefix_len = 0;
            }
        }
    }

    /// The length of the message whose prefix has come, else 0.
    fn announced(&self) -> usize {
        let [_, length @ ..] = self.prefix;
        let is_known = self.prefix_len == PREFIX_BYTES;
        if is_known { usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX) } else { 0 }
    }

    /// Whether a message has begun and not ended.
    fn is_within(&self) -> bool {
        self.prefix_len > 0
    }

    /// The bytes that whoever reads the messages keeps until the next one ends.
    fn kept(&self) -> usize {
        self.finished.saturating_add(self.announced())
    }
}

/// A request body that is charged.
struct Metered {
    inner: Body,
    framing: Framing,
    client: Client,
    reserved: Option<ReservedBytes>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Metered {
    fn charge(&mut self) -> Result<(), Failure> {
        let bytes = self.framing.kept().saturating_add(limits::WAITING_REQUEST_BYTES);
        if self.reserved.is_none() {
            self.reserved = Some(self.client.reserve(Resource::MessageBytes)?);
        }
        self.reserved.as_mut().map_or(Ok(()), |reserved| reserved.resize(bytes))
    }

    fn release(&mut self) {
        self.reserved = None;
        self.deadline = None;
    }

    /// Ends the body with a failure, which becomes the answer to the call.
    fn refuse(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.release();
        self.inner = Body::empty();
        self.framing = Framing { is_stream: true, ..Framing::default() };
        Poll::Ready(Some(Err(axum::Error::new(Status::from(failure)))))
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        // Before more of the message is read: tonic has seen its length and has not refused it.
        if this.framing.is_within() {
            if let Err(failure) = this.charge() {
                return this.refuse(failure);
            }
        } else if this.framing.is_stream {
            this.release();
        }
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.framing.advance(data);
                }
            }
            Poll::Ready(_) => this.release(),
            Poll::Pending if this.framing.is_stream && !this.framing.is_within() => {}
            Poll::Pending => {
                if let Err(failure) = this.charge() {
                    return this.refuse(failure);
                }
                let deadline = || Box::pin(sleep(limits::BODY_READ_TIMEOUT));
                let deadline = this.deadline.get_or_insert_with(deadline);
                if deadline.as_mut().poll(cx).is_ready() {
                    return this.refuse(body::expired());
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
