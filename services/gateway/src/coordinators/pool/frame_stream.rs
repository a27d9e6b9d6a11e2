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

use super::{Links, PATIENCE, resume_backoff::Patience, resume_state::Course};
use crate::coordinators::link::{self, Ended, Frames, LEAVES, LOST, MOVED, Peer, is_passing};

/// After a failure or the end comes nothing more.
pub(crate) struct FrameStream {
    links: Links,
    flow: Flow,
    course: Course,
    patience: Patience,
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
    Lost(BoxFuture<'static, Result<Frames, Ended>>),
    Over,
}

impl FrameStream {
    pub(super) async fn open(
        links: &Links,
        caller: Caller,
        body: call::Body,
    ) -> Result<Self, Failure> {
        let until = Instant::now() + PATIENCE;
        links.ready(until, None).await?;
        let place = Arc::clone(&links.0.streams).try_acquire_owned();
        let place = place.map_err(|_| {
            let most = limits::STREAMS_MAX;
            link::overloaded(&format!(
                "{most} streams are open at this gateway, and more may not be"
            ))
        })?;
        let (peer, course) = (Peer::here(), Course::new(&caller, &body, links.has_several()));
        let mut next = (caller, body);
        let frames = loop {
            match links.ready(until, None).await?.stream(next.0, next.1, &peer) {
                Ok(frames) => break frames,
                Err(Ended::Failed(failure)) => return Err(failure),
                Err(Ended::Cut(what)) => return Err(course.failure(what)),
                Err(Ended::Moved(_)) => return Err(course.failure(MOVED)),
                Err(Ended::Unsent(_)) if until <= Instant::now() => return Err(link::unreachable()),
                Err(Ended::Unsent(unsent)) => next = *unsent,
            }
        };
        Ok(Self {
            flow: Flow::Open(frames),
            course,
            patience: Patience::new(links.0.resume),
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

    fn tell(&mut self, item: Option<&Result<Frame, Failure>>) {
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
        if matches!(self.flow, Flow::Over) {
            return Poll::Ready(None);
        }
        if self.stalled.as_mut().poll(cx).is_ready() {
            // What waits is there to be resumed from, and the last word should not wait for it.
            self.flow = Flow::Over;
            return Poll::Ready(Some(Err(self.stuck_reader())));
        }
        let item = std::task::ready!(self.poll_item(cx));
        if !matches!(item, Some(Ok(_))) {
            self.flow = Flow::Over;
        }
        self.tell(item.as_ref());
        Poll::Ready(item)
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, Failure>>> {
        loop {
            let ended = match &mut self.flow {
                Flow::Over => return Poll::Ready(None),
                Flow::Open(frames) => match std::task::ready!(frames.poll_next(cx)) {
                    Some(Ok((frame, extensions))) => {
                        if !extensions.is_empty() {
                            self.extensions = extensions;
                        }
                        self.patience.reset();
                        if !self.course.takes(&frame) {
                            continue;
                        }
                        if self.course.ends_here() {
                            self.flow = Flow::Over;
                        }
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    Some(Err(ended)) => ended,
                    None => return Poll::Ready(None),
                },
                Flow::Lost(resuming) => match std::task::ready!(resuming.poll_unpin(cx)) {
                    Ok(frames) => {
                        self.flow = Flow::Open(frames);
                        self.patience.begun();
                        self.resumed();
                        match self.course.resume() {
                            Some(frame) => return Poll::Ready(Some(Ok(frame))),
                            None => continue,
                        }
                    }
                    Err(ended) => ended,
                },
            };
            match self.lose(ended) {
                Ok(()) if matches!(self.flow, Flow::Over) => return Poll::Ready(None),
                Ok(()) => {}
                Err(failure) => return Poll::Ready(Some(Err(failure))),
            }
        }
    }

    /// The call ended before the stream did: begins to look for another coordinator, or says why
    /// not. Leaves nothing to do where the stream was complete but for its last word.
    fn lose(&mut self, ended: Ended) -> Result<(), Failure> {
        if self.course.is_over() && !matches!(ended, Ended::Failed(_)) {
            self.flow = Flow::Over;
            return Ok(());
        }
        let (failure, unsent) = match ended {
            Ended::Failed(failure) if !self.may_pass(&failure) => {
                // Its caller asked for something else, of which this says nothing.
                let is_promised = self.course.is_promised();
                return Err(if is_promised { self.course.failure(MOVED) } else { failure });
            }
            Ended::Failed(failure) => (failure, None),
            Ended::Cut(LEAVES) => return Err(self.course.failure(LEAVES)),
            Ended::Cut(what) => (self.course.failure(what), None),
            Ended::Moved(task_id) => {
                self.course.moved(task_id);
                (self.course.failure(MOVED), None)
            }
            Ended::Unsent(call) => (self.course.failure(LOST), Some(*call)),
        };
        if self.links.is_draining() {
            return Err(failure);
        }
        let Some((caller, body)) = unsent.or_else(|| self.course.next()) else {
            return Err(failure);
        };
        let Some(pause) = self.patience.next() else {
            self.links.0.given_up.fetch_add(1, Ordering::Relaxed);
            return Err(failure);
        };
        let (links, peer, until) = (self.links.clone(), self.peer.clone(), self.patience.until());
        let resuming = async move {
            links.pause(pause).await.map_err(|()| Ended::Cut(LEAVES))?;
            // Nobody there in time is how it ends; the call itself says how it may be resumed.
            let link = tokio::select! {
                link = links.ready(until, None) => link.map_err(|_| Ended::Cut(LOST))?,
                () = links.0.draining.cancelled() => return Err(Ended::Cut(LEAVES)),
            };
            link.stream(caller, body, &peer)
        };
        self.flow = Flow::Lost(resuming.boxed());
        Ok(())
    }

    /// Whether another coordinator, or the same a little later, would not fail like this. One that
    /// has just started knows an agent only once a worker has told it.
    fn may_pass(&self, failure: &Failure) -> bool {
        let is_early = self.course.is_resumed() && failure.row() == &reason::AGENT_NOT_FOUND;
        self.course.has_place() && (is_passing(failure) || is_early)
    }

    fn resumed(&mut self) {
        self.links.0.resumed.fetch_add(1, Ordering::Relaxed);
        if let Some((_, request)) = &self.spans {
            request.with(|span| {
                span.event("faultline.stream.resumed", &[]);
            });
        }
    }

    /// The last word to who did not read.
    fn stuck_reader(&self) -> Failure {
        link::overloaded(&format!(
            "nothing of this stream was read for {:?}, so it ends here; the task goes on: resume \
             with SubscribeToTask and Last-Event-ID",
            self.links.0.board.reader_stall
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
