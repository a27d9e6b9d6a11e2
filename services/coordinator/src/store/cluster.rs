//! The part of the store that several coordinators need: leases, timed by the clock of the
//! database, and ownership. Each active task belongs to one lease; only its owner assigns it
//! and takes its reports.

use faultline_proto::{
    id::{TaskId, WorkerId},
    v1::Presence,
};
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::{PushKey, Reading};
use crate::task::Task;

pub(crate) trait Cluster: Send + Sync {
    /// Renews the lease, leaves word of how things are here, and tells how they are at every other
    /// coordinator whose lease is good. [`ReadError::Lapsed`](super::ReadError): it came too late.
    fn beat(&self, here: Presence) -> Reading<'_, Vec<Presence>>;

    /// Takes over at most so many tasks of coordinators whose lease has ended.
    fn take_over(&self, limit: usize) -> Reading<'_, Vec<Task>>;

    /// Unfinished push configurations that such coordinators saw to. They are ours now.
    fn take_over_pushes(&self) -> Reading<'_, Vec<PushKey>>;

    /// Whether this push configuration is still there, unfinished and ours: another coordinator may
    /// have been asked to delete or to replace it.
    fn sees_to(&self, key: PushKey) -> Reading<'_, bool>;

    /// Every task that this worker has, whoever it belongs to: it is attached here. They are ours
    /// now, if they were not already.
    fn adopt(&self, worker: WorkerId) -> Reading<'_, Vec<Task>>;

    /// At most so many tasks of others that wait for a worker of this agent, the oldest first. They
    /// are ours now and wait for nobody: whoever cannot place one queues it again.
    fn claim(&self, agent: String, limit: usize) -> Reading<'_, Vec<Task>>;

    /// Our tasks that live, with their versions.
    fn owned(&self) -> Reading<'_, Vec<(TaskId, u64)>>;

    /// Tells the others something that no commit tells them.
    fn tell(&self, notice: Notice);

    /// Gives up the lease: its tasks may be taken over at once. Nothing is written after it.
    fn leave(&self) -> BoxFuture<'_, ()>;

    /// Notices from the other coordinators. Taken once; a slow reader gets `Missed`.
    fn notices(&self) -> mpsc::Receiver<Notice>;
}

/// A notice from another coordinator: a hint that the store has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Steps of these tasks were committed, or they have another owner.
    Changed(Vec<TaskId>),
    /// Tasks wait for workers of these agents.
    Queued(Vec<String>),
    /// Agents are offered that were not, or otherwise.
    Offered,
    /// Somebody follows this task there.
    Followed(TaskId),
    /// A coordinator has left: its tasks may be taken over.
    Left,
    /// Anything may have been missed: look at everything.
    Missed,
}
