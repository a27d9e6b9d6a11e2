//! A subscription to one task: a snapshot or a start position, then every confirmed event exactly
//! once and in order, to the end. A subscription that falls behind (flow control) reads on from the
//! store and joins again, unnoticed by its client.

use crate::task::confirmed::Confirmed;
use std::{collections::VecDeque, sync::Arc};

use faultline_proto::{
    a2a::{self, StreamResponse, TaskState, stream_response::Payload},
    id::TaskId,
    v1::{Event, Frame, event},
};
use prost::Message;
use tokio::sync::mpsc;

use crate::{
    clock::now,
    engine::{active_task::Seen, core::Core, timeouts::DisconnectGuard},
    error::Error,
    task::{Task, frame::Ids, millis},
};

/// Events read from the store in one query.
const PAGE: usize = 256;

/// One stream of one task. Owned and changed by the stream of its caller alone, without the state
/// lock; lives until the end of the stream.
pub(crate) struct Subscription {
    core: Arc<Core>,
    id: TaskId,
    context_id: String,
    /// The last event sent, or contained in the snapshot.
    seq: u64,
    ready: VecDeque<Frame>,
    source: Source,
    until_question: bool,
    guard: Option<DisconnectGuard>,
}

/// The start of a subscription.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// A snapshot of the task with this much history.
    Snapshot { history: Option<i32> },
    /// The events after this one.
    After(u64),
}

enum Source {
    ActiveTask(mpsc::Receiver<Seen>),
    /// Read from the store up to the position of the join, then from the channel.
    Replay(Option<mpsc::Receiver<Seen>>),
    /// A remote task, or one that has just moved: join it there, then replay.
    Remote,
    Over,
}

impl Subscription {
    /// A stream of one bare message.
    pub(crate) fn message(core: Arc<Core>, id: TaskId, message: a2a::Message) -> Self {
        let frame = frame(0, Payload::Message(message));
        let (ready, source) = (VecDeque::from([frame]), Source::Over);
        let context_id = String::new();
        Self { core, id, context_id, seq: 0, ready, source, until_question: true, guard: None }
    }

    /// A stream of a task that was just started or answered, with its state at event `seq`.
    pub(crate) fn started(
        core: Arc<Core>,
        id: TaskId,
        seq: u64,
        task: a2a::Task,
        events: mpsc::Receiver<Seen>,
    ) -> Self {
        let mut subscription = Self {
            core,
            id,
            context_id: task.context_id.clone(),
            seq,
            ready: VecDeque::from([frame(seq, Payload::Task(task))]),
            source: Source::ActiveTask(events),
            until_question: true,
            guard: None,
        };
        // Another question may be open beside the answered one.
        subscription.closes_at_question();
        subscription
    }

    /// A stream of a task that was started before.
    pub(crate) fn joined(
        core: Arc<Core>,
        task: Task,
        start: Start,
        events: Option<mpsc::Receiver<Seen>>,
        elsewhere: bool,
    ) -> Self {
        let (id, context_id, seq) = (task.id, task.context_id.clone(), task.seq);
        match start {
            Start::After(after) => Self {
                core,
                id,
                context_id,
                seq: after,
                ready: VecDeque::new(),
                source: if elsewhere { Source::Remote } else { Source::Replay(events) },
                until_question: false,
                guard: None,
            },
            Start::Snapshot { history } => Self {
                core,
                id,
                context_id,
                seq,
                source: match (task.is_final(), events) {
                    (false, _) if elsewhere => Source::Remote,
                    (false, Some(events)) => Source::ActiveTask(events),
                    (false, None) => Source::Replay(None),
                    (true, _) => Source::Over,
                },
                ready: VecDeque::from([frame(
                    seq,
                    Payload::Task(Confirmed::into_a2a(task, history)),
                )]),
                until_question: false,
                guard: None,
            },
        }
    }

    /// Cancels the task if the stream is dropped before its end.
    pub(crate) fn guarded_by(self, guard: Option<DisconnectGuard>) -> Self {
        Self { guard, ..self }
    }

    /// Ends the stream also when the task asks for input, as a streaming send does.
    pub(crate) fn closes_at_question(&mut self) {
        self.until_question = true;
        let asks = |frame: &Frame| frame.response.as_ref().is_some_and(asks_for_input);
        if self.ready.iter().any(asks) {
            self.source = Source::Over;
        }
    }

    /// The next frame; `None`: the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, Error> {
        let next = self.advance().await;
        if !matches!(next, Ok(Some(_)))
            && let Some(guard) = self.guard.take()
        {
            guard.disarm();
        }
        next
    }

    async fn advance(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Ok(Some(frame));
            }
            match &mut self.source {
                Source::Over => return Ok(None),
                Source::ActiveTask(events) => match events.recv().await {
                    Some(seen) => {
                        let at = seen.event.time.as_ref().map(millis);
                        self.core.meters.lag(at, now());
                        self.show(seen.seq, &seen.event);
                    }
                    None => self.rejoin()?,
                },
                Source::Replay(_) => self.replay().await?,
                Source::Remote => {
                    if self.core.store.rows(vec![self.id]).await?.is_empty() {
                        return Err(Error::TaskNotFound(self.id.to_string()));
                    }
                    let events = self.core.watch_remote(self.id, self.seq)?;
                    self.source = Source::Replay(Some(events));
                }
            }
        }
    }

    fn show(&mut self, seq: u64, event: &Event) {
        if seq <= self.seq {
            self.core.meters.duplicates.add(1);
            return;
        }
        self.seq = seq;
        let ids = Ids { task_id: self.id, context_id: &self.context_id };
        if let Some(response) = ids.frame(event) {
            self.ready.push_back(Frame { seq, response: Some(response), ..Frame::default() });
        }
        let asked = |e: &Event| match &e.body {
            Some(event::Body::Asked(_)) => ids.frame(e).is_some_and(|r| asks_for_input(&r)),
            _ => false,
        };
        let ended = matches!(event.body, Some(event::Body::Ended(_)));
        if ended || (self.until_question && asked(event)) {
            self.source = Source::Over;
        }
    }

    /// The channel overflowed, or the store failed: joins again after the last frame sent.
    fn rejoin(&mut self) -> Result<(), Error> {
        let events = self.core.watch(self.id)?;
        // The task has ended or a peer owns it; the store shows which.
        self.source = if events.is_none() && self.core.store.cluster().is_some() {
            Source::Remote
        } else {
            Source::Replay(events)
        };
        Ok(())
    }

    async fn replay(&mut self) -> Result<(), Error> {
        let stored = self.core.store.events(self.id, self.seq, PAGE).await?;
        let last_page = stored.len() < PAGE;
        for event in stored {
            let damaged = |e: prost::DecodeError| Error::Store { detail: e.to_string() };
            let decoded = Event::decode(event.body).map_err(damaged)?;
            self.show(event.seq, &decoded);
        }
        if let Source::Replay(events) = &mut self.source
            && last_page
        {
            // Events confirmed since the join wait in the channel, where duplicates are dropped.
            // Without a channel the task had ended, and this was its end.
            self.source = match events.take() {
                Some(events) => Source::ActiveTask(events),
                None => Source::Over,
            };
        }
        Ok(())
    }
}

fn frame(seq: u64, payload: Payload) -> Frame {
    let response = Some(StreamResponse { payload: Some(payload) });
    Frame { seq, response, ..Frame::default() }
}

fn asks_for_input(response: &StreamResponse) -> bool {
    let status = match &response.payload {
        Some(Payload::StatusUpdate(update)) => update.status.as_ref(),
        Some(Payload::Task(task)) => task.status.as_ref(),
        _ => None,
    };
    status.is_some_and(|s| s.state() == TaskState::InputRequired)
}
