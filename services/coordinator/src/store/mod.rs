//! What is durable, behind a trait at the level of task transitions. A store never decides what a
//! transition means; it decides only which of two that race comes first.

pub(crate) mod fill;
pub(crate) mod sqlite;

#[cfg(test)]
mod conformance;

mod migrations;

use bytes::Bytes;
use faultline_proto::{
    a2a::TaskState,
    id::TaskId,
    v1::{AgentOffer, Event, event},
};
use futures::future::BoxFuture;
use prost::Message;
use tokio::sync::oneshot;

use crate::task::{Millis, Task};

/// The columns of a task: what is queried, compared or must survive beside the events.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) id: TaskId,
    pub(crate) agent: String,
    pub(crate) context_id: String,
    pub(crate) state: TaskState,
    pub(crate) version: u64,
    pub(crate) seq: u64,
    pub(crate) attempt: u32,
    pub(crate) reported: u32,
    pub(crate) worker: String,
    pub(crate) created: Millis,
    pub(crate) status_at: Millis,
}

impl From<&Task> for Row {
    fn from(task: &Task) -> Self {
        Self {
            id: task.id,
            agent: task.agent.clone(),
            context_id: task.context_id.clone(),
            state: task.state,
            version: task.version,
            seq: task.seq,
            attempt: task.attempt,
            reported: task.reported,
            worker: task.worker.clone(),
            created: task.created,
            status_at: task.status_at,
        }
    }
}

/// An event on its way in or out, encoded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredEvent {
    pub(crate) seq: u64,
    pub(crate) kind: Kind,
    pub(crate) body: Bytes,
}

pub(crate) fn encode(seq: u64, event: &Event) -> StoredEvent {
    let kind = match event.body {
        Some(event::Body::Artifact(_)) => Kind::Artifact,
        Some(event::Body::Checkpointed(_)) => Kind::Checkpoint,
        _ => Kind::Plain,
    };
    StoredEvent { seq, kind, body: event.encode_to_vec().into() }
}

/// What a reader may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Small, and needed to know the task.
    Plain = 0,
    /// An artifact's content.
    Artifact = 1,
    /// A worker's saved state.
    Checkpoint = 2,
}

/// One atomic step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    /// A task that was not there.
    Insert { row: Row, events: Vec<StoredEvent> },
    /// From exactly this version to the row's.
    Advance { from: u64, row: Row, events: Vec<StoredEvent> },
    /// It was answered by a bare message: the task never was.
    Erase { id: TaskId, from: u64 },
    /// A report came after the end.
    CountLate { id: TaskId },
    /// An agent and how it was last offered.
    Offer { offer: Box<AgentOffer>, at: Millis },
}

/// What became of one write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    /// Somebody else moved the task first. Only this write is refused.
    #[error("the task has moved on")]
    Conflict,
    /// Nothing of the whole batch was written.
    #[error("the store cannot write: {0}")]
    Unavailable(String),
}

pub(crate) type Written = Vec<Result<(), WriteError>>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the store cannot read: {0}")]
    Unavailable(String),
    #[error("task {id} is damaged in the store: {what}")]
    Damaged { id: TaskId, what: String },
}

/// Which tasks, and from where on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Filter {
    pub(crate) agent: Option<String>,
    pub(crate) context_id: Option<String>,
    pub(crate) state: Option<TaskState>,
    pub(crate) status_from: Option<Millis>,
    /// Only tasks that stand after this one in the order of the list.
    pub(crate) after: Option<Cursor>,
    pub(crate) limit: usize,
    pub(crate) artifacts: bool,
}

/// A place in the list, which is by status time, newest first, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) status_at: Millis,
    pub(crate) id: TaskId,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Page {
    pub(crate) tasks: Vec<Task>,
    /// There are more after the last.
    pub(crate) more: bool,
    /// Before paging.
    pub(crate) total: usize,
}

/// A task as stored: its fold, and how many late reports were dropped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) task: Task,
    pub(crate) late: u32,
}

pub(crate) type Reading<'a, T> = BoxFuture<'a, Result<T, ReadError>>;

pub(crate) trait Store: Send + Sync + 'static {
    /// Commits all writes at once, in order; each gets its own answer. At most one batch is under
    /// way at a time: the caller waits for the answer before it sends the next.
    fn commit(&self, batch: Vec<Write>) -> oneshot::Receiver<Written>;

    /// One task, folded from its events.
    fn task(&self, id: TaskId) -> Reading<'_, Option<Stored>>;

    /// The events of a task after `seq`, in order, at most `limit`.
    fn events(&self, id: TaskId, after: u64, limit: usize) -> Reading<'_, Vec<StoredEvent>>;

    fn list(&self, filter: Filter) -> Reading<'_, Page>;

    /// Every task that has not ended. They now belong to this start of the coordinator.
    fn recover(&self) -> Reading<'_, Vec<Task>>;

    /// Every agent that was ever offered.
    fn agents(&self) -> Reading<'_, Vec<AgentOffer>>;
}
