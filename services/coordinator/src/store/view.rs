//! What operators ask of everybody's tasks: which, how many, what of. It is answered from the
//! columns of tasks, and no task is folded for it.

use faultline_proto::{a2a::TaskState, id::TaskId, v1};

use super::{Row, StoredEvent};
use crate::task::{Millis, Task, is_final, timestamp};

/// What is kept of the failure that ended a task beside the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureKey {
    /// As it was at its origin, whatever hops have made of it since.
    pub(crate) reason: String,
    /// The agent it was born in.
    pub(crate) origin: String,
    /// The same for every task that it ended.
    pub(crate) id: String,
}

impl FailureKey {
    pub(super) fn of(task: &Task) -> Option<Box<Self>> {
        let failure = task.failure.as_ref()?;
        let root = failure.causes.last();
        let origin = match failure.origin_agent() {
            "" => root.map_or(task.agent.as_str(), |cause| &cause.agent),
            agent => agent,
        };
        Some(Box::new(Self {
            reason: root.map_or(&failure.reason, |cause| &cause.reason).clone(),
            origin: origin.to_owned(),
            id: failure.id.clone(),
        }))
    }
}

/// Which tasks. What is unset or empty excludes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) agent: Option<String>,
    pub(crate) principal: Option<String>,
    /// Only those that no other task delegated.
    pub(crate) roots: bool,
    pub(crate) states: Vec<TaskState>,
    pub(crate) reason: Option<String>,
    pub(crate) origin: Option<String>,
    /// When the status last changed: not before the one, and before the other.
    pub(crate) from: Option<Millis>,
    pub(crate) to: Option<Millis>,
}

impl Wanted {
    pub(crate) fn fits(&self, row: &Row) -> bool {
        let failure = row.failure.as_deref();
        self.concerns(row)
            && (self.states.is_empty() || self.states.contains(&row.state))
            && self.reason.as_ref().is_none_or(|r| failure.is_some_and(|f| f.reason == *r))
            && self.origin.as_ref().is_none_or(|o| failure.is_some_and(|f| f.origin == *o))
            && self.from.is_none_or(|from| row.status_at >= from)
            && self.to.is_none_or(|to| row.status_at < to)
    }

    /// The same as far as it never changes with the task.
    pub(crate) fn concerns(&self, row: &Row) -> bool {
        self.agent.as_ref().is_none_or(|agent| *agent == row.agent)
            && self.principal.as_ref().is_none_or(|principal| *principal == row.principal)
            && (!self.roots || row.parent.is_none())
    }

    /// Whether a task that fits may cease to. One that has ended never changes.
    pub(crate) fn may_lose(&self) -> bool {
        self.to.is_some() || self.states.iter().any(|state| !is_final(*state))
    }
}

/// A part of the list, which is by status time, newest first, then by id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<Row>,
    /// There are more after the last.
    pub(crate) more: bool,
}

/// Some of what happened to a task, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Story {
    pub(crate) events: Vec<StoredEvent>,
    pub(crate) more: bool,
}

/// Time in equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    pub(crate) from: Millis,
    pub(crate) width: Millis,
    pub(crate) count: usize,
}

impl Buckets {
    /// The part that a time lies in.
    pub(crate) fn at(&self, time: Millis) -> Option<usize> {
        let at = usize::try_from(time.checked_sub(self.from)?.div_euclid(self.width)).ok()?;
        (at < self.count).then_some(at)
    }
}

impl From<Row> for v1::TaskSummary {
    fn from(row: Row) -> Self {
        let failure = row.failure.map(|key| *key);
        let (reason, origin, failure_id) =
            failure.map_or_else(Default::default, |key| (key.reason, key.origin, key.id));
        Self {
            task_id: row.id.to_string(),
            agent: row.agent,
            state: row.state as i32,
            principal: row.principal,
            context_id: row.context_id,
            created: Some(timestamp(row.created)),
            changed: Some(timestamp(row.status_at)),
            attempts: row.attempt,
            parent_id: row.parent.as_ref().map(TaskId::to_string).unwrap_or_default(),
            reason,
            origin,
            failure_id,
        }
    }
}
