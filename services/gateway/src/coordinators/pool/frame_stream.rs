//! A stream of answers that outlives its coordinator. When the coordinator breaks or leaves, the
//! stream resumes at another one; its reader sees every event once, in order.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use faultline_chassis::{
    limits,
    telemetry::{ClientSpan, SharedSpan},
};
use faultline_proto::{
    Failure, reason,
    v1::{Caller, Frame, call},
};
use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{CONNECT_WAIT, Pool, resume_backoff::ResumeBackoff, resume_state::ResumeState};
use crate::coordinators::link::{
    self, CONNECTION_LOST, COORDINATOR_LEFT, CallError, Frames, GATEWAY_LEAVES, Peer, is_transient,
};

/// One stream, polled by the response that it belongs to. It ends with `None` or with one failure.
/// Dropping it cancels the call at the coordinator.
pub(crate) struct FrameStream {
    pool: Pool,
    flow: Flow,
    resume: ResumeState,
    backoff: ResumeBackoff,
    peer: Peer,
    extensions: Vec<String>,
    /// Ready when the client has stopped reading. No frame need wait here then: the connection may
    /// have buffered all of them.
    stalled: Pin<Box<WaitForCancellationFutureOwned>>,
    _permit: OwnedSemaphorePermit,
    /// The span of the call, and the span of the request.
    spans: Option<(ClientSpan, SharedSpan)>,
}

enum Flow {
    Open(Frames),
    /// Lost its coordinator; the future finds another one.
    Lost(BoxFuture<'static, Result<Frames, CallError>>),
    Ended,
}

impl FrameStream {
    pub(super) async fn open(
        pool: &Pool,
        caller: Caller,
        body: call::Body,
    ) -> Result<Self, Failure> {
        let until = Instant::now() + CONNECT_WAIT;
        pool.wait_for_link(until, None).await?;
        let permit = Arc::clone(&pool.0.streams).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let most = limits::STREAMS_MAX;
            link::overloaded(&format!(
                "{most} streams are open at this gateway, which is the limit"
            ))
        })?;
        let peer = Peer::here();
        let resume = ResumeState::new(&caller, &body, pool.has_alternative());
        let mut next = (caller, body);
        let frames = loop {
            match pool.wait_for_link(until, None).await?.stream(next.0, next.1, &peer) {
                Ok(frames) => break frames,
                Err(CallError::Failed(failure)) => return Err(failure),
                Err(CallError::Interrupted(what)) => return Err(resume.failure(what)),
                Err(CallError::Moved(_)) => return Err(resume.failure(COORDINATOR_LEFT)),
                Err(CallError::NotSent(_)) if until <= Instant::now() => {
                    return Err(link::unreachable());
                }
                Err(CallError::NotSent(unsent)) => next = *unsent,
            }
        };
        Ok(Self {
            flow: Flow::Open(frames),
            resume,
            backoff: ResumeBackoff::new(pool.0.resume),
            extensions: Vec::new(),
            stalled: Box::pin(peer.stall.clone().cancelled_owned()),
            peer,
            pool: pool.clone(),
            _permit: permit,
            spans: None,
        })
    }

    /// The stream, with each item recorded on these spans.
    pub(crate) fn traced(self, calling: ClientSpan, request: SharedSpan) -> Self {
        Self { spans: Some((calling, request)), ..self }
    }

    fn record_on_spans(&mut self, item: Option<&Result<Frame, Failure>>) {
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

    /// The active extensions, known from the first frame on.
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
        if matches!(self.flow, Flow::Ended) {
            return Poll::Ready(None);
        }
        if self.stalled.as_mut().poll(cx).is_ready() {
            // Unread frames are dropped: the failure must not wait for them, and the client can
            // resume.
            self.flow = Flow::Ended;
            return Poll::Ready(Some(Err(self.stalled_reader_failure())));
        }
        let item = std::task::ready!(self.poll_item(cx));
        if !matches!(item, Some(Ok(_))) {
            self.flow = Flow::Ended;
        }
        self.record_on_spans(item.as_ref());
        Poll::Ready(item)
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, Failure>>> {
        loop {
            let ended = match &mut self.flow {
                Flow::Ended => return Poll::Ready(None),
                Flow::Open(frames) => match std::task::ready!(frames.poll_next(cx)) {
                    Some(Ok((frame, extensions))) => {
                        if !extensions.is_empty() {
                            self.extensions = extensions;
                        }
                        self.backoff.reset();
                        if !self.resume.record(&frame) {
                            continue;
                        }
                        if self.resume.ends_at_last_frame() {
                            self.flow = Flow::Ended;
                        }
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    Some(Err(ended)) => ended,
                    None => return Poll::Ready(None),
                },
                Flow::Lost(resuming) => match std::task::ready!(resuming.poll_unpin(cx)) {
                    Ok(frames) => {
                        self.flow = Flow::Open(frames);
                        self.backoff.on_resumed();
                        self.record_resume();
                        match self.resume.on_resumed() {
                            Some(frame) => return Poll::Ready(Some(Ok(frame))),
                            None => continue,
                        }
                    }
                    Err(ended) => ended,
                },
            };
            match self.start_resume(ended) {
                Ok(()) if matches!(self.flow, Flow::Ended) => return Poll::Ready(None),
                Ok(()) => {}
                Err(failure) => return Poll::Ready(Some(Err(failure))),
            }
        }
    }

    /// The call ended before the stream did: starts the search for another coordinator, or fails. A
    /// stream that lacks only its end message is complete.
    fn start_resume(&mut self, ended: CallError) -> Result<(), Failure> {
        if self.resume.is_over() && !matches!(ended, CallError::Failed(_)) {
            self.flow = Flow::Ended;
            return Ok(());
        }
        let (failure, unsent) = match ended {
            CallError::Failed(failure) if !self.may_succeed_elsewhere(&failure) => {
                // The failure answers a subscription, but the caller made a send.
                let is_handed_over = self.resume.is_handed_over();
                return Err(if is_handed_over {
                    self.resume.failure(COORDINATOR_LEFT)
                } else {
                    failure
                });
            }
            CallError::Failed(failure) => (failure, None),
            CallError::Interrupted(GATEWAY_LEAVES) => {
                return Err(self.resume.failure(GATEWAY_LEAVES));
            }
            CallError::Interrupted(what) => (self.resume.failure(what), None),
            CallError::Moved(task_id) => {
                self.resume.on_moved(task_id);
                (self.resume.failure(COORDINATOR_LEFT), None)
            }
            CallError::NotSent(call) => (self.resume.failure(CONNECTION_LOST), Some(*call)),
        };
        if self.pool.is_draining() {
            return Err(failure);
        }
        let Some((caller, body)) = unsent.or_else(|| self.resume.next_call()) else {
            return Err(failure);
        };
        let Some(pause) = self.backoff.next_pause() else {
            self.pool.0.given_up.fetch_add(1, Ordering::Relaxed);
            return Err(failure);
        };
        let pool = self.pool.clone();
        let peer = self.peer.clone();
        let until = self.backoff.deadline();
        let resuming = async move {
            let leaves = || CallError::Interrupted(GATEWAY_LEAVES);
            pool.pause(pause).await.map_err(|()| leaves())?;
            // Without a coordinator in time the stream ends; its failure tells how to resume.
            let lost = |_| CallError::Interrupted(CONNECTION_LOST);
            let link = tokio::select! {
                link = pool.wait_for_link(until, None) => link.map_err(lost)?,
                () = pool.0.draining.cancelled() => return Err(leaves()),
            };
            link.stream(caller, body, &peer)
        };
        self.flow = Flow::Lost(resuming.boxed());
        Ok(())
    }

    /// Whether another coordinator, or the same one later, may succeed. A coordinator that has just
    /// started does not know an agent before its worker attaches.
    fn may_succeed_elsewhere(&self, failure: &Failure) -> bool {
        let is_early = self.resume.is_resumed() && failure.row() == &reason::AGENT_NOT_FOUND;
        self.resume.can_resume() && (is_transient(failure) || is_early)
    }

    fn record_resume(&mut self) {
        self.pool.0.resumed.fetch_add(1, Ordering::Relaxed);
        if let Some((_, request)) = &self.spans {
            request.with(|span| {
                span.event("faultline.stream.resumed", &[]);
            });
        }
    }

    /// The failure for a client that did not read.
    fn stalled_reader_failure(&self) -> Failure {
        link::overloaded(&format!(
            "nothing of this stream was read for {:?}, so it ends here; the task goes on: resume \
             with SubscribeToTask and Last-Event-ID",
            self.pool.0.all_links.reader_stall
        ))
    }
}

#[cfg(test)]
impl FrameStream {
    /// Marks the client as stalled.
    pub(super) fn stall(&self) {
        self.peer.stall.cancel();
    }
}
