//! The answers of one call to whichever coordinators it takes. When the one that gave them breaks
//! or leaves, the stream goes on with another: its reader sees every event once, in order.

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

/// After a failure or the end comes nothing more.
pub(crate) struct FrameStream {
    links: Pool,
    flow: Flow,
    resume: ResumeState,
    backoff: ResumeBackoff,
    peer: Peer,
    extensions: Vec<String>,
    /// Ready when its reader does not read. No frame need wait then: the connection may have had
    /// room for all there was to say.
    stalled: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
    /// The call, and the request that makes it.
    spans: Option<(ClientSpan, SharedSpan)>,
}

enum Flow {
    Open(Frames),
    /// Between two coordinators.
    Lost(BoxFuture<'static, Result<Frames, CallError>>),
    Ended,
}

impl FrameStream {
    pub(super) async fn open(
        links: &Pool,
        caller: Caller,
        body: call::Body,
    ) -> Result<Self, Failure> {
        let until = Instant::now() + CONNECT_WAIT;
        links.wait_for_link(until, None).await?;
        let place = Arc::clone(&links.0.streams).try_acquire_owned();
        let place = place.map_err(|_| {
            let most = limits::STREAMS_MAX;
            link::overloaded(&format!(
                "{most} streams are open at this gateway, and more may not be"
            ))
        })?;
        let peer = Peer::here();
        let resume = ResumeState::new(&caller, &body, links.has_alternative());
        let mut next = (caller, body);
        let frames = loop {
            match links.wait_for_link(until, None).await?.stream(next.0, next.1, &peer) {
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
            backoff: ResumeBackoff::new(links.0.resume),
            extensions: Vec::new(),
            stalled: Box::pin(peer.stall.clone().cancelled_owned()),
            peer,
            links: links.clone(),
            _place: place,
            spans: None,
        })
    }

    /// Whatever comes is told to these spans.
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
        if matches!(self.flow, Flow::Ended) {
            return Poll::Ready(None);
        }
        if self.stalled.as_mut().poll(cx).is_ready() {
            // What waits is there to be resumed from, and the last word should not wait for it.
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

    /// The call ended before the stream did: begins to look for another coordinator, or says why
    /// not. Leaves nothing to do where the stream was complete but for its last word.
    fn start_resume(&mut self, ended: CallError) -> Result<(), Failure> {
        if self.resume.is_over() && !matches!(ended, CallError::Failed(_)) {
            self.flow = Flow::Ended;
            return Ok(());
        }
        let (failure, unsent) = match ended {
            CallError::Failed(failure) if !self.may_succeed_elsewhere(&failure) => {
                // Its caller asked for something else, of which this says nothing.
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
        if self.links.is_draining() {
            return Err(failure);
        }
        let Some((caller, body)) = unsent.or_else(|| self.resume.next_call()) else {
            return Err(failure);
        };
        let Some(pause) = self.backoff.next_pause() else {
            self.links.0.given_up.fetch_add(1, Ordering::Relaxed);
            return Err(failure);
        };
        let links = self.links.clone();
        let peer = self.peer.clone();
        let until = self.backoff.deadline();
        let resuming = async move {
            links.pause(pause).await.map_err(|()| CallError::Interrupted(GATEWAY_LEAVES))?;
            // Nobody there in time is how it ends; the call itself says how it may be resumed.
            let link = tokio::select! {
                link = links.wait_for_link(until, None) => link.map_err(|_| CallError::Interrupted(CONNECTION_LOST))?,
                () = links.0.draining.cancelled() => return Err(CallError::Interrupted(GATEWAY_LEAVES)),
            };
            link.stream(caller, body, &peer)
        };
        self.flow = Flow::Lost(resuming.boxed());
        Ok(())
    }

    /// Whether another coordinator, or the same a little later, would not fail like this. One that
    /// has just started knows an agent only once a worker has told it.
    fn may_succeed_elsewhere(&self, failure: &Failure) -> bool {
        let is_early = self.resume.is_resumed() && failure.row() == &reason::AGENT_NOT_FOUND;
        self.resume.can_resume() && (is_transient(failure) || is_early)
    }

    fn record_resume(&mut self) {
        self.links.0.resumed.fetch_add(1, Ordering::Relaxed);
        if let Some((_, request)) = &self.spans {
            request.with(|span| {
                span.event("faultline.stream.resumed", &[]);
            });
        }
    }

    /// The last word to who did not read.
    fn stalled_reader_failure(&self) -> Failure {
        link::overloaded(&format!(
            "nothing of this stream was read for {:?}, so it ends here; the task goes on: resume \
             with SubscribeToTask and Last-Event-ID",
            self.links.0.all_links.reader_stall
        ))
    }
}

#[cfg(test)]
impl FrameStream {
    /// As when its reader does not read.
    pub(super) fn stall(&self) {
        self.peer.stall.cancel();
    }
}
