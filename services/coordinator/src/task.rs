//! One task as a state machine. Pure: no clock, no store, no stream; time is an argument.
//! `decide_*` looks at the task and says what happens or why not; `apply` makes it so. Replaying
//! stored events goes through the same `apply`, so memory and store cannot disagree.

use faultline_proto::{
    Failure,
    a2a::{self, Message, TaskState},
    id::TaskId,
    v1::{
        self, AnswerGiven, Assigned, AttemptLost, Ended, Event, Interrupt, Parent, Submitted,
        attempt::Outcome, event,
    },
};
use prost_types::{Timestamp, Value, value::Kind};

use crate::{
    artifact::Artifacts,
    frame::{Ids, waiting_state},
};

/// Whose tasks are those of a caller that nobody has named: a mesh without tokens has only this
/// one. The schema says the same of tasks that are older than principals.
pub(crate) const LOCAL: &str = "local";

/// Where a delegated task names the task that delegated it.
const PARENT_KEY: &str = "faultline.dev/parent";

/// Milliseconds since 1970.
pub(crate) type Millis = i64;

pub(crate) fn timestamp(ms: Millis) -> Timestamp {
    Timestamp { seconds: ms.div_euclid(1000), nanos: (ms.rem_euclid(1000) * 1_000_000) as i32 }
}

pub(crate) fn millis(time: &Timestamp) -> Millis {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos) / 1_000_000)
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    /// Whose it is.
    pub(crate) principal: String,
    /// Who delegated it, if anybody did.
    pub(crate) parent: Option<Box<Parent>>,
    pub(crate) context_id: String,
    pub(crate) agent: String,
    pub(crate) state: TaskState,
    /// One up with every transition: what the store compares.
    pub(crate) version: u64,
    /// Of the last event.
    pub(crate) seq: u64,
    /// The current one, or the last; 0 before the first.
    pub(crate) attempt: u32,
    /// The last report of this attempt that was taken.
    pub(crate) reported: u32,
    /// Attempts that died. Those handed back do not count.
    pub(crate) losses: u32,
    /// Who runs it, as text for the store; empty while nobody does.
    pub(crate) worker: String,
    pub(crate) created: Millis,
    pub(crate) status_at: Millis,
    pub(crate) traceparent: String,
    pub(crate) status_message: Option<Message>,
    pub(crate) failure: Option<Failure>,
    pub(crate) pending: Option<Interrupt>,
    pub(crate) answers: Vec<AnswerGiven>,
    pub(crate) checkpoint: Option<bytes::Bytes>,
    pub(crate) attempts: Vec<v1::Attempt>,
    history: Vec<Message>,
    pub(crate) artifacts: Artifacts,
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
            worker: String::new(),
            created,
            status_at: created,
            traceparent: String::new(),
            status_message: None,
            failure: None,
            pending: None,
            answers: Vec::new(),
            checkpoint: None,
            attempts: Vec::new(),
            history: Vec::new(),
            artifacts: Artifacts::default(),
        }
    }

    pub(crate) fn is_final(&self) -> bool {
        is_final(self.state)
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

    /// What its messages weigh.
    pub(crate) fn message_bytes(&self) -> usize {
        self.history.iter().map(prost::Message::encoded_len).sum()
    }

    /// What its artifacts weigh.
    pub(crate) fn artifact_bytes(&self) -> usize {
        self.artifacts.bytes()
    }

    /// The message that started it.
    pub(crate) fn message(&self) -> Option<&Message> {
        self.history.first()
    }

    // Deciding.

    pub(crate) fn decide_assign(&self, id: &str, name: &str) -> Result<event::Body, Refused> {
        match self.state {
            TaskState::Submitted | TaskState::Working if self.worker.is_empty() => {
                let (worker, worker_name) = (id.to_owned(), name.to_owned());
                let attempt = self.attempt + 1;
                Ok(event::Body::Assigned(Assigned { attempt, worker, worker_name }))
            }
            _ if self.is_final() => Err(Refused::Final),
            _ => Err(Refused::Busy),
        }
    }

    pub(crate) fn decide_answer(&self, mut message: Message) -> Result<event::Body, Refused> {
        if self.is_final() {
            return Err(Refused::Final);
        }
        let Some(pending) = self.pending.as_ref().filter(|_| is_waiting(self.state)) else {
            return Err(Refused::Busy);
        };
        message.task_id = self.id.to_string();
        message.context_id.clone_from(&self.context_id);
        let key = pending.key.clone();
        Ok(event::Body::Answered(AnswerGiven { key, message: Some(message) }))
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
        let lost = event::Body::Lost(AttemptLost { attempt: self.attempt, released: false });
        // Nobody computes for a task that waits, so nothing was lost but the place to go on.
        match is_waiting(self.state) || self.losses + 1 < losses_max {
            true => Ok(self.after_loss(lost)),
            false => Ok(vec![lost, ended(TaskState::Failed, None, Some(enough(self)))]),
        }
    }

    /// Its worker hands it back unharmed.
    pub(crate) fn decide_release(&self) -> Vec<event::Body> {
        self.after_loss(event::Body::Lost(AttemptLost { attempt: self.attempt, released: true }))
    }

    /// Watchers hold what the attempt wrote; tell them how far the next one goes back.
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

    pub(crate) fn signed(&self, message: Message) -> Message {
        self.ids().signed(message)
    }

    pub(crate) fn ids(&self) -> Ids<'_> {
        Ids { task_id: self.id, context_id: &self.context_id }
    }

    // Applying.

    /// Gives the body its time and makes it so.
    pub(crate) fn apply_now(&mut self, body: event::Body, now: Millis) -> Event {
        let event = Event { time: Some(timestamp(now)), body: Some(body) };
        self.apply(&event);
        event
    }

    /// One event further. Also how a stored task is read back.
    pub(crate) fn apply(&mut self, event: &Event) {
        let at = event.time.as_ref().map_or(self.status_at, millis);
        self.seq += 1;
        match &event.body {
            Some(event::Body::Submitted(submitted)) => {
                self.principal = match submitted.principal.as_str() {
                    "" => LOCAL.to_owned(),
                    principal => principal.to_owned(),
                };
                self.parent = submitted.parent.clone().map(Box::new);
                self.traceparent.clone_from(&submitted.traceparent);
                self.history.extend(submitted.message.clone());
                self.enter(TaskState::Submitted, None, at);
            }
            Some(event::Body::Assigned(assigned)) => self.apply_assigned(assigned, at),
            Some(event::Body::Status(status)) => {
                self.pending = None;
                self.enter(TaskState::Working, status.message.clone(), at);
            }
            Some(event::Body::Artifact(write)) => self.artifacts.write(write),
            Some(event::Body::Checkpointed(saved)) => {
                self.checkpoint = Some(saved.state.clone());
                self.artifacts.checkpoint();
            }
            Some(event::Body::Asked(asked)) => {
                self.pending.clone_from(&asked.interrupt);
                let state = waiting_state(asked);
                let question = asked.interrupt.as_ref().map(|i| self.ids().question(i));
                self.history.extend(question.clone());
                self.enter(state, question, at);
            }
            Some(event::Body::Answered(answer)) => {
                self.pending = None;
                self.history.extend(answer.message.clone());
                self.answers.push(answer.clone());
                self.enter(TaskState::Working, None, at);
            }
            Some(event::Body::Lost(lost)) => {
                self.close_attempt(
                    at,
                    if lost.released { Outcome::Released } else { Outcome::WorkerLost },
                );
                self.losses += u32::from(!lost.released && !is_waiting(self.state));
                self.artifacts.rewind();
            }
            Some(event::Body::Ended(end)) => self.apply_ended(end, at),
            // Written by a newer version: it keeps its number, so that later ones fit.
            None => {}
        }
    }

    fn apply_assigned(&mut self, assigned: &Assigned, at: Millis) {
        self.attempt = assigned.attempt;
        self.reported = 0;
        self.worker.clone_from(&assigned.worker);
        self.attempts.push(v1::Attempt {
            number: assigned.attempt,
            worker: assigned.worker_name.clone(),
            worker_id: assigned.worker.clone(),
            started: Some(timestamp(at)),
            ended: None,
            outcome: Outcome::Running as i32,
        });
        self.enter(TaskState::Working, None, at);
    }

    fn apply_ended(&mut self, end: &Ended, at: Millis) {
        self.close_attempt(at, Outcome::Ended);
        self.pending = None;
        self.failure = end.failure.clone().map(Failure::from_record);
        let state = end.state();
        let message = match (&end.message, &self.failure) {
            (Some(message), _) => Some(message.clone()),
            (None, Some(failure)) => Some(self.ids().failure_message(failure, state)),
            (None, None) => None,
        };
        self.enter(state, message, at);
    }

    fn enter(&mut self, state: TaskState, message: Option<Message>, at: Millis) {
        self.state = state;
        self.status_message = message;
        self.status_at = at;
    }

    fn close_attempt(&mut self, at: Millis, outcome: Outcome) {
        self.worker.clear();
        if let Some(last) = self.attempts.last_mut().filter(|a| a.ended.is_none()) {
            last.ended = Some(timestamp(at));
            last.outcome = outcome as i32;
        }
    }

    // Showing.

    /// Takes over what every failure of this task must carry.
    pub(crate) fn complete_failure(&self, failure: Failure, service: &str) -> Failure {
        let origin = v1::Origin {
            agent: self.agent.clone(),
            service: service.to_owned(),
            worker: String::new(),
        };
        let failure = failure.with_task(self.id, &self.context_id);
        let failure = match failure.trace_id.is_empty() {
            true => {
                let mut ids = self.traceparent.split('-').skip(1);
                let (trace, span) = (ids.next().unwrap_or(""), ids.next().unwrap_or(""));
                failure.with_trace(trace, span)
            }
            false => failure,
        };
        failure.born_at(origin)
    }

    fn status(&self) -> a2a::TaskStatus {
        a2a::TaskStatus {
            state: self.state as i32,
            message: self.status_message.clone(),
            timestamp: Some(timestamp(self.status_at)),
        }
    }

    fn metadata(&self) -> Option<prost_types::Struct> {
        let failure = self.failure.as_ref().map(|f| f.to_metadata(self.state));
        let Some(parent) = &self.parent else { return failure };
        let mut metadata = failure.unwrap_or_default();
        let kind = Some(Kind::StringValue(parent.task_id.clone()));
        metadata.fields.insert(PARENT_KEY.to_owned(), Value { kind });
        Some(metadata)
    }

    /// As A2A shows it. `history`: at most so many of the latest messages.
    pub(crate) fn to_a2a(&self, history: Option<i32>, artifacts: bool) -> a2a::Task {
        let keep = history.map_or(self.history.len(), |n| n.max(0) as usize);
        let skip = self.history.len().saturating_sub(keep);
        a2a::Task {
            id: self.id.to_string(),
            context_id: self.context_id.clone(),
            status: Some(self.status()),
            artifacts: if artifacts {
                self.artifacts.iter().cloned().collect()
            } else {
                Vec::new()
            },
            history: self.history[skip..].to_vec(),
            metadata: self.metadata(),
        }
    }

    /// The same for the last reader, without copying what the task holds.
    pub(crate) fn into_a2a(mut self, history: Option<i32>) -> a2a::Task {
        let keep = history.map_or(self.history.len(), |n| n.max(0) as usize);
        let skip = self.history.len().saturating_sub(keep);
        self.history.drain(..skip);
        a2a::Task {
            id: self.id.to_string(),
            status: Some(self.status()),
            metadata: self.metadata(),
            context_id: self.context_id,
            artifacts: self.artifacts.into_vec(),
            history: self.history,
        }
    }
}

pub(crate) fn ended(
    state: TaskState,
    message: Option<Message>,
    failure: Option<Failure>,
) -> event::Body {
    let failure = failure.map(Failure::into_record);
    event::Body::Ended(Ended { state: state as i32, message, failure })
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
