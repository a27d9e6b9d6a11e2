//! The view of a task that may leave the coordinator: the state that the store has confirmed.

use std::ops::Deref;

use faultline_proto::a2a;

use crate::task::Task;

/// A task in a durable state. Code that answers a caller, acknowledges a worker or rejects a call
/// reads this type; the task in memory may be ahead of the store and has no A2A view of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmed<'a>(&'a Task);

impl<'a> Confirmed<'a> {
    /// A task that was read from the store, or an active task up to its watermark.
    pub(crate) fn of(task: &'a Task) -> Self {
        Self(task)
    }

    /// A state that is not durable yet, for an effect that is carried out after its commit only.
    pub(crate) fn on_commit(task: &'a Task) -> Self {
        Self(task)
    }

    pub(crate) fn to_a2a(self, history: Option<i32>, artifacts: bool) -> a2a::Task {
        self.0.to_a2a(history, artifacts)
    }

    /// The same without copying the task.
    pub(crate) fn into_a2a(task: Task, history: Option<i32>) -> a2a::Task {
        task.into_a2a(history)
    }
}

impl Deref for Confirmed<'_> {
    type Target = Task;

    fn deref(&self) -> &Task {
        self.0
    }
}
