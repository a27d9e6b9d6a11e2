//! One task as a state machine. `decide_*` looks at the task and returns the events that would
//! happen, or why not; `apply` carries them out; `a2a_view` shows the task. Pure: no clock, no
//! store, no stream; time is an argument.
//!
//! May use: no other folder.

pub(crate) mod a2a_view;
pub(crate) mod answers;
pub(crate) mod apply;
pub(crate) mod artifacts;
pub(crate) mod confirmed;
pub(crate) mod failure_origin;
pub(crate) mod frame;
pub(crate) mod nesting;
pub(crate) mod questions;
pub(crate) mod report;
pub(crate) mod time_budget;
pub(crate) mod tolerated;
pub(crate) mod trace_segment;

use faultline_proto::{
    Failure,
    a2a::{Message, TaskState},
    id::TaskId,
    v1::{
        self, AnswerGiven, Assigned, AttemptLost, Ended, Event, Interrupt, NotRetried, Parent,
        QuestionWithdrawn, Submitted, event,
    },
};
use prost_types::Timestamp;

use crate::task::{
    artifacts::Artifacts, frame::Ids, time_budget::Budget, tolerated::Tolerated,
    trace_segment::TraceSegment,
};

/// The principal of unauthenticated callers, the only one of a mesh without tokens. The schema
/// gives it to tasks that are older than principals.
pub(crate) const LOCAL: &str = "local";

/// Milliseconds since 1970.
pub(crate) type Millis = i64;

pub(crate) fn timestamp(ms: Millis) -> Timestamp {
    Timestamp { seconds: ms.div_euclid(1000), nanos: (ms.rem_euclid(1000) * 1_000_000) as i32 }
}

pub(crate) fn millis(time: &Timestamp) -> Millis {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos) / 1_000_000)
}

/// A task: the fold of its events. `apply` changes it and nothing else; an active task holds one
/// under the state lock, and readers of the store get copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    /// The owner of the task among the callers.
    pub(crate) principal: String,
    /// The parent, if the task was delegated.
    pub(crate) parent: Option<Box<Parent>>,
    pub(crate) context_id: String,
    pub(crate) agent: String,
    pub(crate) state: TaskState,
    /// Grows by one with every transition; the store compares it (optimistic concurrency).
    pub(crate) version: u64,
    /// Of the last event.
    pub(crate) seq: u64,
    /// The current one, or the last; 0 before the first.
    pub(crate) attempt: u32,
    /// The last report of this attempt that was taken.
    pub(crate) reported: u32,
    /// Attempts that died. Those handed back do not count.
    pub(crate) losses: u32,
    /// Attempts of the current agent that failed and were tried again.
    pub(crate) retries: u32,
    /// It waits until then, for no worker in particular.
    pub(crate) retry_at: Option<Millis>,
    /// The agent that had it last is done with it; another takes over.
    pub(crate) passed_on: bool,
    /// The worker that runs it, as text for the store; empty: none.
    pub(crate) worker: String,
    pub(crate) created: Millis,
    /// The limit of active time, and the time used.
    pub(crate) budget: Budget,
    pub(crate) status_at: Millis,
    /// The current trace segment: the work since the last call or answer.
    pub(crate) run: TraceSegment,
    pub(crate) status_message: Option<Message>,
    pub(crate) failure: Option<Failure>,
    /// Why the attempt that ended it was the last.
    pub(crate) not_retried: NotRetried,
    /// Open questions, oldest first. The oldest is the one that is shown.
    pub(crate) pending: Vec<Interrupt>,
    pub(crate) answers: Vec<AnswerGiven>,
    /// How many of them the last attempt began with.
    pub(crate) answers_known: usize,
    pub(crate) checkpoint: Option<bytes::Bytes>,
    pub(crate) attempts: Vec<v1::Attempt>,
    pub(crate) history: Vec<Message>,
    pub(crate) artifacts: Artifacts,
    /// Failures that did not end it.
    pub(crate) tolerated: Tolerated,
}

/// Why a command does not apply. Not errors: races are everyday here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The task has ended.
    Final,
    /// The task is at work; it takes messages only when it asked for one.
    Busy,
    /// The report is of another attempt, or of one that is over.
    Fenced,
    /// The report was taken before.
    Duplicate,
    /// A report before this one is missing, or this one makes no sense here.
    Nonsense(&'static str),
}

pub(crate) fn is_final(state: TaskState) -> bool {
    use TaskState::{Canceled, Completed, Failed, Rejected};
    matches!(state, Completed | Failed | Canceled | Rejected)
}

pub(crate) fn is_waiting(state: TaskState) -> bool {
    matches!(state, TaskState::InputRequired | TaskState::AuthRequired)
}

impl Task {
    /// A new task and its first event.
    pub(crate) fn submit(
        id: TaskId,
        agent: &str,
        context_id: String,
        mut submitted: Submitted,
        now: Millis,
    ) -> (Self, Event) {
        if let Some(message) = &mut submitted.message {
            message.task_id = id.to_string();
            message.context_id.clone_from(&context_id);
        }
        let mut task = Self::blank(id, agent.to_owned(), context_id, now);
        let event = task.apply_now(event::Body::Submitted(submitted), now);
        task.version = 1;
        (task, event)
    }

    /// Before its first event.
    pub(crate) fn blank(id: TaskId, agent: String, context_id: String, created: Millis) -> Self {
        Self {
            id,
            principal: String::new(),
            parent: None,
            context_id,
            agent,
            state: TaskState::Submitted,
            version: 0,
            seq: 0,
            attempt: 0,
            reported: 0,
            losses: 0,
            retries: 0,
            retry_at: None,
            passed_on: false,
            worker: String::new(),
            created,
            budget: Budget::default(),
            status_at: created,
            run: TraceSegment { began: created, first: 1, ..TraceSegment::default() },
            status_message: None,
            failure: None,
            not_retried: NotRetried::Unspecified,
            pending: Vec::new(),
            answers: Vec::new(),
            answers_known: 0,
            checkpoint: None,
            attempts: Vec::new(),
            history: Vec::new(),
            artifacts: Artifacts::default(),
            tolerated: Tolerated::default(),
        }
    }

    pub(crate) fn is_final(&self) -> bool {
        is_final(self.state)
    }

    /// The agent that runs it, or ran it last: its own, or one that stands in.
    pub(crate) fn runner(&self) -> &str {
        match self.attempts.last().map(|attempt| attempt.agent.as_str()) {
            None | Some("") => &self.agent,
            Some(stand_in) => stand_in,
        }
    }

    pub(crate) fn parent_id(&self) -> Option<TaskId> {
        self.parent.as_ref()?.task_id.parse().ok()
    }

    /// How many delegations lie above it.
    pub(crate) fn depth(&self) -> u32 {
        self.parent.as_ref().map_or(0, |parent| parent.depth)
    }

    /// Is this the attempt that works on it now?
    pub(crate) fn is_current(&self, attempt: u32) -> bool {
        !self.is_final() && self.attempt == attempt && !self.worker.is_empty()
    }

    /// Active time that it has left; `None`: as much as it takes.
    pub(crate) fn remaining_ms(&self, now: Millis) -> Option<u64> {
        let left = self.budget.left(now)?;
        Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    }

    /// The bytes of its messages.
    pub(crate) fn message_bytes(&self) -> usize {
        self.history.iter().map(prost::Message::encoded_len).sum()
    }

    /// The bytes of its artifacts.
    pub(crate) fn artifact_bytes(&self) -> usize {
        self.artifacts.bytes()
    }

    /// The message that started it.
    pub(crate) fn message(&self) -> Option<&Message> {
        self.history.first()
    }

    // Deciding.

    /// `agent`: the agent that runs it, its own or a stand-in.
    pub(crate) fn decide_assign(
        &self,
        id: &str,
        name: &str,
        agent: &str,
    ) -> Result<event::Body, Refused> {
        if self.is_final() {
            return Err(Refused::Final);
        }
        if !self.needs_worker() || !self.worker.is_empty() {
            return Err(Refused::Busy);
        }
        let (worker, worker_name) = (id.to_owned(), name.to_owned());
        let (attempt, own) = (self.attempt + 1, agent == self.agent);
        let agent = if own { String::new() } else { agent.to_owned() };
        Ok(event::Body::Assigned(Assigned { attempt, worker, worker_name, agent }))
    }

    /// Stopped from outside; the failure says by whom.
    pub(crate) fn decide_cancel(&self, failure: Failure) -> Result<event::Body, Refused> {
        match self.is_final() {
            true => Err(Refused::Final),
            false => Ok(ended(TaskState::Canceled, None, Some(failure))),
        }
    }

    /// Its worker is gone for good. With so many losses it ends with `enough`.
    pub(crate) fn decide_lose(
        &self,
        losses_max: u32,
        enough: impl FnOnce(&Self) -> Failure,
    ) -> Result<Vec<event::Body>, Refused> {
        if self.is_final() || self.worker.is_empty() {
            return Err(Refused::Fenced);
        }
        let lost = event::Body::Lost(self.lost(false));
        // Nobody computes for a task that waits, so nothing was lost but the place to go on.
        match is_waiting(self.state) || self.losses + 1 < losses_max {
            true => Ok(self.after_loss(lost)),
            false => {
                let end = self.decide_give_up(enough(self), NotRetried::Spent)?;
                Ok(vec![lost, end])
            }
        }
    }

    /// Its attempt failed, and it is tried again at that time, or by another agent when none is
    /// given.
    pub(crate) fn decide_retry(&self, failure: Failure, at: Option<Millis>) -> Vec<event::Body> {
        let failure = Some(failure.into_record());
        let lost = AttemptLost { failure, retry_at: at.map(timestamp), ..self.lost(false) };
        // Nobody waits for the answers any longer; the next attempt may ask again.
        let keys = self.pending.iter().map(|question| question.key.clone());
        let withdrawn = keys.map(|key| event::Body::Withdrawn(QuestionWithdrawn { key }));
        withdrawn.chain(self.after_loss(event::Body::Lost(lost))).collect()
    }

    /// Its worker hands it back unharmed.
    pub(crate) fn decide_release(&self) -> Vec<event::Body> {
        self.after_loss(event::Body::Lost(self.lost(true)))
    }

    fn lost(&self, released: bool) -> AttemptLost {
        AttemptLost { attempt: self.attempt, released, ..AttemptLost::default() }
    }

    /// Watchers have the output of the attempt: the event says how far the next one rewinds.
    fn after_loss(&self, lost: event::Body) -> Vec<event::Body> {
        let resent = self.artifacts.rewound().into_iter().map(event::Body::Artifact);
        std::iter::once(lost).chain(resent).collect()
    }

    pub(crate) fn decide_fail(&self, failure: Failure) -> Result<event::Body, Refused> {
        match self.is_final() {
            true => Err(Refused::Final),
            false => Ok(ended(TaskState::Failed, None, Some(failure))),
        }
    }

    /// Its last attempt failed, and this is why there is none after it.
    pub(crate) fn decide_give_up(
        &self,
        failure: Failure,
        why: NotRetried,
    ) -> Result<event::Body, Refused> {
        let mut body = self.decide_fail(failure)?;
        if let event::Body::Ended(end) = &mut body {
            end.set_not_retried(why);
        }
        Ok(body)
    }

    pub(crate) fn signed(&self, message: Message) -> Message {
        self.ids().signed(message)
    }

    pub(crate) fn ids(&self) -> Ids<'_> {
        Ids { task_id: self.id, context_id: &self.context_id }
    }
}

pub(crate) fn ended(
    state: TaskState,
    message: Option<Message>,
    failure: Option<Failure>,
) -> event::Body {
    // A reader of the record must not need the reason table.
    let failure = failure.map(|failure| {
        let may_retry = failure.may_retry();
        v1::Failure { retryable: Some(may_retry), ..failure.into_record() }
    });
    event::Body::Ended(Ended { state: state as i32, message, failure, ..Ended::default() })
}

#[cfg(test)]
mod tests;
