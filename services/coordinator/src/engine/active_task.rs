//! A task in memory that has not ended: the fold of its events (event sourcing), its watchers and
//! its waiters. Watchers and waiters see only events that the store has confirmed.

pub(crate) mod transition;

use std::{collections::HashMap, sync::Arc, time::Duration};

use faultline_chassis::metrics::GaugeGuard;
use faultline_proto::{
    Failure,
    a2a::{self, SendMessageResponse, send_message_response::Payload},
    id::TaskId,
    v1::Event,
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::Instant,
};

use tokio_util::task::AbortOnDropHandle;

use crate::{
    calls::caller::CallKey,
    engine::{publish::Deferred, workers::registry::Registry},
    error::Error,
    store::KeyRow,
    task::{Task, confirmed::Confirmed},
    telemetry::{
        metrics::AgentMeters,
        spans::{EndedSpans, Open},
    },
};

/// A task of this coordinator that has not ended: its state, its watchers and its waiters.
///
/// The task is the fold of all events that were applied here, so it may be ahead of the store
/// (pending). `published` is the watermark: events up to it are durable (confirmed). Only
/// [`State::transition`] applies events; the other fields are changed by the engine, all under the
/// state lock. An active task lives from its first event, or from its recovery, until its end is
/// durable or another coordinator takes ownership.
///
/// [`State::transition`]: crate::engine::core::State::transition
pub(crate) struct ActiveTask {
    task: Task,
    /// When this coordinator took ownership.
    pub(crate) owned_since: Instant,
    /// The last event that the store has confirmed.
    pub(crate) published: u64,
    /// The last report of the current attempt that the store has confirmed.
    pub(crate) acked: u32,
    /// The assignment of the current attempt was put on the stream of its worker.
    pub(crate) assigned: bool,
    /// The reply may still be a bare message, because no caller has seen a task.
    pub(crate) may_reply_without_task: bool,
    /// The idempotency key of the send, while the reply may be a bare message: the key keeps it.
    pub(crate) key: Option<Box<KeyRow>>,
    /// The number of answers that the current attempt was sent.
    pub(crate) answers_sent: usize,
    /// Streams that follow the task, at the last published event.
    pub(crate) watchers: Vec<mpsc::Sender<Seen>>,
    /// Calls that wait for the task.
    pub(crate) waiters: Vec<Waiter>,
    /// When the task was queued for a slot.
    pub(crate) queued: Option<Instant>,
    /// The metrics of the agent.
    pub(crate) meters: Arc<AgentMeters>,
    _active: GaugeGuard,
    /// The spans that are open.
    pub(crate) open: Open,
}

/// The active tasks of this coordinator, by id. Part of [`State`] and changed under its lock.
///
/// [`State`]: crate::engine::core::State
#[derive(Default)]
pub(crate) struct ActiveTasks(HashMap<TaskId, Box<ActiveTask>>);

impl ActiveTasks {
    pub(crate) fn get(&self, id: &TaskId) -> Option<&ActiveTask> {
        self.0.get(id).map(|active| &**active)
    }

    /// For watchers, waiters and bookkeeping: the task itself is read-only here.
    pub(crate) fn get_mut(&mut self, id: &TaskId) -> Option<&mut ActiveTask> {
        self.0.get_mut(id).map(|active| &mut **active)
    }

    pub(crate) fn contains(&self, id: &TaskId) -> bool {
        self.0.contains_key(id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = TaskId> {
        self.0.keys().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, &ActiveTask)> {
        self.0.iter().map(|(id, active)| (*id, &**active))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (TaskId, &mut ActiveTask)> {
        self.0.iter_mut().map(|(id, active)| (*id, &mut **active))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &ActiveTask> {
        self.0.values().map(|active| &**active)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut ActiveTask> {
        self.0.values_mut().map(|active| &mut **active)
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = ActiveTask> {
        self.0.into_values().map(|active| *active)
    }

    /// Takes out the tasks of which the store has at least one event.
    pub(crate) fn take_stored(&mut self) -> Vec<(TaskId, ActiveTask)> {
        let stored = self.0.extract_if(|_, active| active.published > 0);
        stored.map(|(id, active)| (id, *active)).collect()
    }

    pub(crate) fn insert(&mut self, id: TaskId, active: ActiveTask) {
        self.0.insert(id, Box::new(active));
    }

    pub(crate) fn remove(&mut self, id: &TaskId) -> Option<Box<ActiveTask>> {
        self.0.remove(id)
    }
}

/// A confirmed event on its way to a watcher.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) seq: u64,
    pub(crate) event: Arc<Event>,
}

/// A call that is answered when its task reports, asks or ends.
///
/// Created by the api under the state lock. It belongs to an [`ActiveTask`] or a `RemoteWatch` and
/// lives until it is answered, its caller leaves, or its step is refused.
pub(crate) struct Waiter {
    pub(crate) until: Until,
    /// The key of the call, by which it is removed when its caller leaves or reaches its deadline.
    pub(crate) call: Option<CallKey>,
    pub(crate) history: Option<i32>,
    /// The last event of the write that this call made. If the store refuses that write, the call
    /// fails. 0: the call made no write.
    pub(crate) depends_on_seq: u64,
    /// Only a state newer than this event answers the call.
    pub(crate) min_seq: u64,
    /// The caller is an attempt of a task: it waits through a store outage.
    pub(crate) patient: bool,
    /// Delay after which the task is cancelled when the caller has left; `None`: the task
    /// continues.
    pub(crate) cancel_after: Option<Duration>,
    pub(crate) done: Done,
    /// Ends the wait at the deadline of the caller; aborted when the waiter is dropped.
    pub(crate) _deadline: Option<AbortOnDropHandle<()>>,
}

/// Answers a call. It runs after the state lock is released.
pub(crate) type Done = Box<dyn FnOnce(Result<SendMessageResponse, CallError>) + Send>;

/// Why a call ends without a task or a message.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// The write lost a race with another coordinator (optimistic concurrency). Nothing was
    /// changed, and the call may be repeated from the stored state.
    Conflict,
    Failed(Failure),
}

impl CallError {
    pub(crate) fn map(self, change: impl FnOnce(Failure) -> Failure) -> Self {
        match self {
            Self::Conflict => Self::Conflict,
            Self::Failed(failure) => Self::Failed(change(failure)),
        }
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        match error {
            Error::Conflict => Self::Conflict,
            error => Self::Failed(error.into()),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Conflict => Error::Conflict.into(),
            CallError::Failed(failure) => failure,
        }
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Conflict => Self::Conflict,
            CallError::Failed(failure) => failure.into(),
        }
    }
}

/// The condition on which a waiter is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The first report of the agent is confirmed: the reply is known to be a task or a message.
    FirstReport,
    /// The task has ended or has an open question.
    Settled,
}

impl ActiveTask {
    pub(crate) fn new(task: Task, meters: Arc<AgentMeters>) -> Self {
        Self {
            owned_since: Instant::now(),
            published: task.seq,
            acked: task.reported,
            assigned: !task.worker.is_empty(),
            answers_sent: task.answers_known,
            open: Open::recalled(&task),
            task,
            may_reply_without_task: false,
            key: None,
            watchers: Vec::new(),
            waiters: Vec::new(),
            queued: None,
            _active: meters.active.guard(),
            meters,
        }
    }

    /// A task that the store does not have yet: not even its first event is confirmed.
    pub(crate) fn unconfirmed(task: Task, meters: Arc<AgentMeters>) -> Self {
        Self { published: 0, open: Open::begun(), ..Self::new(task, meters) }
    }

    /// Ends the spans of states that the task has left, and opens those of its present state.
    pub(crate) fn follow_spans(&mut self, registry: &Registry) -> Option<EndedSpans> {
        self.open.follow(&self.task, || registry.version(&self.task.agent))
    }

    /// Ends the open spans of a task that is erased from the store without an end.
    pub(crate) fn end_spans(&mut self, registry: &Registry) -> Option<EndedSpans> {
        self.open.vanish(&self.task, registry.version(&self.task.agent))
    }

    /// Passes confirmed events to the watchers. A watcher whose channel is full is dropped (flow
    /// control); it reads on from the store and joins again.
    pub(crate) fn publish(&mut self, first: u64, events: Vec<Event>) {
        self.published = first + events.len() as u64 - 1;
        if self.watchers.is_empty() {
            return;
        }
        for (seq, event) in (first..).zip(events) {
            let seen = Seen { seq, event: Arc::new(event) };
            self.watchers.retain(|watcher| match watcher.try_send(seen.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    self.meters.lagged();
                    false
                }
                Err(TrySendError::Closed(_)) => false,
            });
        }
    }

    /// Whether the task has a live watcher, or a waiter that can leave.
    pub(crate) fn is_followed(&self) -> bool {
        // A waiter without a call key belongs to a stream, which is also a watcher.
        let waits = self.waiters.iter().any(|waiter| waiter.call.is_some());
        waits || self.watchers.iter().any(|watcher| !watcher.is_closed())
    }

    /// The task with every event that was applied, durable or not: for the next decision and for
    /// placement. Never for an answer, an acknowledgement or a rejection.
    pub(crate) fn pending(&self) -> &Task {
        &self.task
    }

    /// The task, if the store has confirmed all of it.
    pub(crate) fn confirmed(&self) -> Option<Confirmed<'_>> {
        self.is_confirmed().then_some(Confirmed::of(&self.task))
    }

    /// A response with the pending task, for an effect that follows its commit.
    pub(crate) fn response_on_commit(&self, history: Option<i32>) -> SendMessageResponse {
        task_response(Confirmed::on_commit(&self.task).to_a2a(history, true))
    }

    /// Replaces the task by a newer state from the store, which is confirmed.
    pub(crate) fn replace_by_stored(&mut self, task: Task) {
        self.task = task;
    }

    /// Whether the store has confirmed every event that was applied.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.published == self.task.seq
    }

    /// Takes out the waiters for the first report.
    pub(crate) fn take_first_waiters(&mut self) -> Vec<Waiter> {
        let (first, later) = std::mem::take(&mut self.waiters)
            .into_iter()
            .partition(|waiter| waiter.until == Until::FirstReport);
        self.waiters = later;
        first
    }

    /// The answers of all waiters with the final task; the last one gets it without a copy.
    pub(crate) fn finish(self) -> Vec<Deferred> {
        let mut waiters = self.waiters;
        let last = waiters.pop();
        let mut replies = Vec::with_capacity(waiters.len() + 1);
        for waiter in waiters {
            let task = Confirmed::of(&self.task).to_a2a(waiter.history, true);
            replies.push(Deferred::Answer(waiter.done, Box::new(task_response(task))));
        }
        if let Some(waiter) = last {
            let task = Confirmed::into_a2a(self.task, waiter.history);
            replies.push(Deferred::Answer(waiter.done, Box::new(task_response(task))));
        }
        replies
    }
}

/// A response with a task as the store has it when the response is sent.
pub(crate) fn task_response(task: a2a::Task) -> SendMessageResponse {
    SendMessageResponse { payload: Some(Payload::Task(task)) }
}

pub(crate) fn message_response(message: a2a::Message) -> SendMessageResponse {
    SendMessageResponse { payload: Some(Payload::Message(message)) }
}
