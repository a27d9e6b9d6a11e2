//! Server-sent events: one frame of a coordinator is one event, and its number is the id from which
//! `Last-Event-ID` resumes. A stream that fails ends with an event that contains the failure.

use std::{
    convert::Infallible,
    io::Write,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use faultline_chassis::limits;
use faultline_proto::{Failure, v1::Frame};
use http::{
    HeaderName, HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use tokio::time::{Instant, Sleep, sleep};

use crate::{
    coordinators::pool::FrameStream,
    http::{context::RequestContext, extensions, failure::Reporter},
};

/// Events that are ready at the same time are sent as one chunk of about this size.
const CHUNK_BYTES: usize = 16 * 1024;
const KEEP_ALIVE: &[u8] = b":\n\n";

/// The format of the events of a stream.
pub(crate) trait EventFormat: Send + Unpin + 'static {
    /// Writes one event, without its id.
    fn write_event(&self, frame: Frame, out: &mut Vec<u8>);

    /// Writes the last event of a stream that failed.
    fn write_failure(&self, failure: Failure, report: &Reporter, out: &mut Vec<u8>);
}

/// Answers with a stream. A failure before the first event is a plain answer, so the first event is
/// awaited, but only for one keep-alive interval: proxies need headers.
pub(crate) async fn respond(
    context: &RequestContext,
    mut frames: FrameStream,
    format: impl EventFormat,
) -> Result<Response<Body>, Failure> {
    let mut idle = Box::pin(sleep(limits::SSE_KEEP_ALIVE));
    let first = tokio::select! {
        biased;
        first = frames.next() => Some(first),
        () = &mut idle => None,
    };
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Tells proxies not to buffer events.
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    extensions::set_header(frames.extensions(), &context.head.headers, headers);
    let (first, frames) = match first {
        Some(Some(Err(failure))) => return Err(failure),
        Some(Some(Ok(frame))) => (Some(frame), Some(frames)),
        Some(None) => (None, None),
        None => (None, Some(frames)),
    };
    let report = context.reporter();
    let events = EventBody { first, frames, format, idle, last_sent: Instant::now(), report };
    Ok(response.map(|()| Body::new(events)))
}

/// The body of a stream, polled by the connection. Dropping it cancels the call.
struct EventBody<F> {
    first: Option<Frame>,
    /// `None` after the last event.
    frames: Option<FrameStream>,
    format: F,
    idle: Pin<Box<Sleep>>,
    last_sent: Instant,
    /// Holds the span open until the stream ends.
    report: Reporter,
}

impl<F: EventFormat> EventBody<F> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, Failure>>> {
        match (self.first.take(), &mut self.frames) {
            (Some(frame), _) => Poll::Ready(Some(Ok(frame))),
            (None, Some(frames)) => frames.poll_next(cx),
            (None, None) => Poll::Ready(None),
        }
    }

    /// All events that are ready now, up to the chunk size.
    fn write_ready(&mut self, cx: &mut Context<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < CHUNK_BYTES
            && let Poll::Ready(item) = self.poll_next(cx)
        {
            match item {
                Some(Ok(frame)) => self.write(frame, &mut out),
                Some(Err(failure)) => {
                    self.format.write_failure(failure, &self.report, &mut out);
                    self.frames = None;
                }
                None => {
                    self.frames = None;
                    break;
                }
            }
        }
        out
    }

    fn write(&self, frame: Frame, out: &mut Vec<u8>) {
        if frame.seq > 0 {
            writeln!(out, "id: {}", frame.seq).expect("a Vec takes everything");
        }
        self.format.write_event(frame, out);
    }

    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            std::task::ready!(self.idle.as_mut().poll(cx));
            let due = self.last_sent + limits::SSE_KEEP_ALIVE;
            let is_due = due <= Instant::now();
            if is_due {
                self.last_sent = Instant::now();
            }
            // The timer is reset only when it fires: resetting it per event would cost more than
            // writing the event.
            self.idle.as_mut().reset(self.last_sent + limits::SSE_KEEP_ALIVE);
            if is_due {
                return Poll::Ready(());
            }
        }
    }
}

impl<F: EventFormat> HttpBody for EventBody<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let ready = this.write_ready(cx);
        if !ready.is_empty() {
            this.last_sent = Instant::now();
            return Poll::Ready(Some(Ok(http_body::Frame::data(ready.into()))));
        }
        if this.frames.is_none() {
            return Poll::Ready(None);
        }
        this.poll_keep_alive(cx)
            .map(|()| Some(Ok(http_body::Frame::data(Bytes::from_static(KEEP_ALIVE)))))
    }
}
