//! The store: durable tasks behind a trait at the level of transitions. A write names the
//! version it changes (optimistic concurrency); of two that race the store accepts the first.
//!
//! May use: task, policy and telemetry.

pub(crate) mod activity_cache;
mod cluster;
pub(crate) mod postgres;
mod push;
mod queries;
pub(crate) mod seed;
pub(crate) mod sqlite;

#[cfg(test)]
mod children_conformance;
#[cfg(test)]
mod cluster_conformance;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod expire_conformance;
#[cfg(test)]
mod introduce_conformance;
#[cfg(test)]
mod push_conformance;
#[cfg(test)]
mod view_conformance;

mod migrations;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use faultline_chassis::{credential::Binding, limits};
use faultline_proto::{
    a2a::TaskState,
    id::{TaskId, WorkerId},
    v1::{AgentActivity, AgentOffer, Child, Event, FailureCount, event},
};
use futures::future::BoxFuture;
use prost::Message;
use tokio::sync::oneshot;

pub(crate) use self::{
    cluster::{Cluster, Notice},
    push::{PushKey, PushRow, PushWrite, push_row},
    queries::{Buckets, FailureKey, Rows, Story, Wanted},
};
use crate::{
    Config,
    error::StartError,
    task::{Millis, Task},
};

/// The columns of a task: queried, compared, or needed beside the events.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) id: TaskId,
    pub(crate) principal: String,
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
    /// The parent, if it was delegated.
    pub(crate) parent: Option<TaskId>,
    /// The failure that ended it; tasks from before this column have none.
    pub(crate) failure: Option<Box<FailureKey>>,
}

impl From<&Task> for Row {
    fn from(task: &Task) -> Self {
        Self {
            id: task.id,
            principal: task.principal.clone(),
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
            parent: task.parent_id(),
            failure: FailureKey::of(task),
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

/// Parts that a reader may leave out.
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
    /// A task that was not there. A child is refused if its parent has ended, or is not this
    /// coordinator's any more; so is a key that another task has.
    Insert { row: Row, events: Vec<StoredEvent>, with: Option<Box<Extras>> },
    /// From exactly this version to the row's.
    Advance { from: u64, row: Row, events: Vec<StoredEvent>, with: Option<Box<Extras>> },
    /// The same for a task that another coordinator may have: the version alone decides.
    CompareAndSwap { from: u64, row: Row, events: Vec<StoredEvent>, with: Option<Box<Extras>> },
    /// It waits for a worker of this agent, and any coordinator that has one may claim it. Its next
    /// step takes it out again. Never refused.
    Queue { id: TaskId, agent: String },
    /// It was answered by a bare message: the task never was. A key remembers the message.
    Erase { id: TaskId, from: u64, key: Option<Box<KeyRow>> },
    /// A report came after the end.
    CountLate { id: TaskId },
    /// An agent and how it was last offered.
    Offer { offer: Box<AgentOffer>, at: Millis },
    /// Workers offered these agents at this time.
    Offered { names: Vec<String>, at: Millis },
    /// Those of these agents that nobody has offered since and that have no live task. Never
    /// refused; `gone` says how many they were, once it is committed.
    ForgetAgents { names: Vec<String>, before: Millis, gone: Tally },
    /// Keys of sends that are older than this, so many at once.
    ForgetKeys { before: Millis, limit: usize },
    /// Those of these tasks that have ended, with everything that is kept of them, unless the task
    /// that gave them lives: it may join them again. Never refused; `gone` says of how many it was
    /// true, once it is committed.
    Expire { ids: Vec<TaskId>, gone: Tally },
    /// A push configuration of a task.
    Push(PushWrite),
}

impl Write {
    /// The bytes that the write carries.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Insert { events, .. }
            | Self::Advance { events, .. }
            | Self::CompareAndSwap { events, .. } => {
                events.iter().map(|event| event.body.len()).sum()
            }
            Self::Erase { key, .. } => {
                key.as_ref().and_then(|key| key.reply.as_ref()).map_or(0, Bytes::len)
            }
            Self::Queue { .. }
            | Self::CountLate { .. }
            | Self::Offer { .. }
            | Self::Offered { .. }
            | Self::ForgetAgents { .. }
            | Self::ForgetKeys { .. }
            | Self::Expire { .. }
            | Self::Push(_) => 0,
        }
    }
}

/// An agent as it was last offered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) offer: AgentOffer,
    /// The time of the last change of the offer.
    pub(crate) changed: Millis,
    /// When a worker last offered it, as far as that was written down.
    pub(crate) offered: Millis,
}

/// The number of rows of a write, read when it is durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<AtomicU64>);

impl Tally {
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl PartialEq for Tally {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

/// Rows that are written in the same transaction as a step of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Extras {
    pub(crate) key: Option<KeyRow>,
    pub(crate) pushes: Vec<PushRow>,
}

/// The name of an idempotency key: the same name means the same send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyName {
    pub(crate) principal: String,
    pub(crate) agent: String,
    pub(crate) key: String,
}

/// A send that was accepted under an idempotency key, and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyRow {
    pub(crate) name: KeyName,
    pub(crate) task_id: TaskId,
    /// The digest of the request: the same key with another request is rejected.
    pub(crate) digest: Digest,
    /// The bare message it was answered with, encoded; `None`: the answer is the task.
    pub(crate) reply: Option<Bytes>,
    pub(crate) created: Millis,
}

/// SHA-256.
pub(crate) type Digest = [u8; 32];

/// The result of one write.
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
    /// The lease has ended, and other coordinators may own its tasks. `recover` starts again.
    #[error("the lease has lapsed")]
    Lapsed,
    #[error("the store cannot read: {0}")]
    Unavailable(String),
    #[error("task {id} is damaged in the store: {what}")]
    Damaged { id: TaskId, what: String },
}

/// The visible tasks: principal and agents. Tasks outside do not exist for the caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scope {
    /// `None`: everybody's.
    pub(crate) principal: Option<String>,
    /// Only this one's.
    pub(crate) agent: Option<String>,
    /// Only these agents'; empty: every agent's.
    pub(crate) agents: Vec<String>,
}

impl Scope {
    pub(crate) fn contains(&self, row: &Row) -> bool {
        self.principal.as_ref().is_none_or(|p| *p == row.principal)
            && self.agent.as_ref().is_none_or(|a| *a == row.agent)
            && (self.agents.is_empty() || self.agents.contains(&row.agent))
    }
}

/// The worker ids that one credential may bind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindingQuota {
    pub(crate) max: usize,
    /// Bindings of ids that were last seen before this give way to new ones.
    pub(crate) stale_before: Millis,
}

/// Which tasks, and from where on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Filter {
    pub(crate) scope: Scope,
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
    /// Before paging, and no further than `limits::LIST_TOTAL_MAX`: counting all that somebody ever
    /// had would take the longer the more that is.
    pub(crate) total: usize,
}

/// A task as stored: its fold, and how many late reports were dropped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) task: Task,
    pub(crate) late: u32,
    /// It belongs to this coordinator.
    pub(crate) ours: bool,
}

/// A task that may have been kept for long enough.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Aged {
    pub(crate) id: TaskId,
    pub(crate) agent: String,
    /// When it ended. `None`: it has not, or its parent has not.
    pub(crate) ended: Option<Millis>,
    pub(crate) events: u64,
}

/// Folds a task from its events and completes it from its row. `all`: no event was left out.
fn replay<B: AsRef<[u8]>>(
    row: Row,
    bodies: impl IntoIterator<Item = B>,
    all: bool,
) -> Result<Task, ReadError> {
    let damaged = |what: String| ReadError::Damaged { id: row.id, what };
    let mut task = Task::blank(row.id, row.agent, row.context_id, row.created);
    for body in bodies {
        let decoded = Event::decode(body.as_ref()).map_err(|e| damaged(e.to_string()))?;
        task.apply(&decoded);
    }
    if all && (task.seq != row.seq || task.state != row.state) {
        return Err(damaged(format!("its row says {:?} at {}", row.state, row.seq)));
    }
    task.version = row.version;
    task.seq = row.seq;
    task.reported = row.reported;
    Ok(task)
}

/// The secret that signs attempt tokens.
pub(crate) type SigningSecret = [u8; 32];

pub(crate) type Reading<'a, T> = BoxFuture<'a, Result<T, ReadError>>;

pub(crate) trait Store: Send + Sync + 'static {
    /// The part for several coordinators. `None`: the store serves one only.
    fn cluster(&self) -> Option<&dyn Cluster>;

    /// Made once, and kept for as long as the tasks: tokens outlive a restart.
    fn secret(&self) -> &SigningSecret;

    /// Commits all writes at once, in order; each gets its own answer. At most one batch is under
    /// way at a time: the caller waits for the answer before it sends the next.
    fn commit(&self, batch: Vec<Write>) -> oneshot::Receiver<Written>;

    /// One task, folded from its events. One out of scope costs and tells as much as none.
    fn task(&self, id: TaskId, scope: Scope) -> Reading<'_, Option<Stored>>;

    /// The events of a task after `seq`, in order, at most `limit`.
    fn events(&self, id: TaskId, after: u64, limit: usize) -> Reading<'_, Vec<StoredEvent>>;

    fn list(&self, filter: Filter) -> Reading<'_, Page>;

    /// The children of a task, oldest first, at most `limit`.
    fn children(&self, id: TaskId, scope: Scope, limit: usize) -> Reading<'_, Vec<Child>>;

    /// Everybody's tasks as rows, the last to change first, at most `limit` after a place.
    fn tasks(&self, wanted: Wanted, after: Option<Cursor>, limit: usize) -> Reading<'_, Rows>;

    /// Those of these tasks that there are, as rows.
    fn rows(&self, ids: Vec<TaskId>) -> Reading<'_, Vec<Row>>;

    /// The events of a task after `seq`, at most `limit`, and fewer if they are large.
    /// `None`: there is no such task in scope.
    fn story(
        &self,
        id: TaskId,
        scope: Scope,
        after: u64,
        limit: usize,
    ) -> Reading<'_, Option<Story>>;

    /// How many tasks of each agent began and ended, by the time in their ids and of their last
    /// status. Agents by name.
    fn activity(&self, over: Buckets) -> Reading<'_, Vec<AgentActivity>>;

    /// Counts of failed tasks by reason and origin, in no order.
    fn failures(&self, over: Buckets) -> Reading<'_, Vec<FailureCount>>;

    /// Every task that has not ended and is no other coordinator's. They now belong to this start
    /// of the coordinator; where several share the store, it has a new lease from here on.
    fn recover(&self) -> Reading<'_, Vec<Task>>;

    /// Every agent that is remembered, or the one of this name.
    fn agents(&self, only: Option<String>) -> Reading<'_, Vec<Remembered>>;

    /// The send under a key, if it is not older.
    fn key(&self, name: KeyName, since: Millis) -> Reading<'_, Option<KeyRow>>;

    /// When the oldest key that is kept was used.
    fn oldest_key(&self) -> Reading<'_, Option<Millis>>;

    /// Tasks between two ids, which sort by the time they were made, the oldest first, at most
    /// `limit`: retention goes through them in steps.
    fn aged(&self, after: TaskId, before: TaskId, limit: usize) -> Reading<'_, Vec<Aged>>;

    fn push(&self, key: PushKey) -> Reading<'_, Option<PushRow>>;

    /// The push configurations of a task by id, after this one, at most `limit`.
    fn pushes(&self, task: TaskId, after: String, limit: usize) -> Reading<'_, Vec<PushRow>>;

    /// Every push configuration that still has something to send and that nobody else sees to.
    fn unfinished_pushes(&self) -> Reading<'_, Vec<PushKey>>;

    /// Binds a worker's id to a credential unless it is bound already, for all coordinators on this
    /// store. The binding in force, once it is durable; `None`: the id is new and the credential
    /// has used up its quota.
    fn introduce(
        &self,
        worker: WorkerId,
        to: Binding,
        at: Millis,
        quota: BindingQuota,
    ) -> Reading<'_, Option<Binding>>;

    /// Keeps the bindings of these workers, and forgets those of workers that no coordinator has
    /// kept since `before`.
    fn keep_introduced(
        &self,
        workers: Vec<WorkerId>,
        at: Millis,
        before: Millis,
    ) -> Reading<'_, ()>;
}

/// Opens the store that the configuration names; `Config::bind` has refused every other URL.
pub(crate) async fn open(config: &Config) -> Result<Box<dyn Store>, StartError> {
    if let Some(path) = config.sqlite() {
        return Ok(Box::new(sqlite::Sqlite::open(path)?));
    }
    let settings = postgres::Settings {
        lease: Duration::from_millis(config.lease_ms),
        connections: config.store_connections,
    };
    Ok(Box::new(postgres::Postgres::open(&config.store, settings).await?))
}

/// How long a key is kept.
pub(crate) fn key_retention() -> Millis {
    limits::IDEMPOTENCY_RETENTION.as_millis() as Millis
}
