//! Operator queries over tasks of all principals, answered from the columns of tasks; no task
//! is folded for them.

use std::collections::{BTreeMap, HashMap, HashSet};

use faultline_proto::{
    a2a::TaskState,
    id::TaskId,
    v1::{self, event::Body},
};
use prost::Message;

use super::{ReadError, Row, StoredEvent};
use crate::task::{Millis, Task, is_final, timestamp};

/// The columns of the failure that ended a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureKey {
    /// The reason at its origin, not as later hops changed it.
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

/// A filter for tasks. Unset or empty fields exclude nothing.
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

/// The index that a question is answered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    Alive,
    Unwell,
    ByPrincipal,
}

impl Walk {
    pub(super) fn of(wanted: &Wanted) -> Self {
        use TaskState::{Canceled, Failed, Rejected};
        let all =
            |is: fn(&TaskState) -> bool| !wanted.states.is_empty() && wanted.states.iter().all(is);
        let failed = wanted.reason.is_some() || wanted.origin.is_some();
        if all(|state| !is_final(*state)) {
            Walk::Alive
        } else if failed || all(|state| matches!(state, Failed | Canceled | Rejected)) {
            Walk::Unwell
        } else {
            Walk::ByPrincipal
        }
    }
}

/// A part of the list, which is by status time, newest first, then by id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<Row>,
    /// There are more after the last.
    pub(crate) more: bool,
}

/// A page of the events of a task, oldest first.
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

/// Counts started and ended tasks, in the order of the rows.
pub(super) struct Activity {
    over: Buckets,
    agents: BTreeMap<String, v1::AgentActivity>,
}

impl Activity {
    pub(super) fn over(over: Buckets) -> Self {
        Self { over, agents: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, name: &str, state: TaskState, status_at: Millis, id: TaskId) {
        let began = self.over.at(id.made_at());
        let ended = self.over.at(status_at).filter(|_| is_final(state));
        if began.is_none() && ended.is_none() {
            return;
        }
        if !self.agents.contains_key(name) {
            self.agents.insert(name.to_owned(), still(name, self.over.count));
        }
        let Some(agent) = self.agents.get_mut(name) else { return };
        began.into_iter().for_each(|at| agent.submitted[at] += 1);
        let ends = match state {
            TaskState::Completed => &mut agent.completed,
            TaskState::Failed => &mut agent.failed,
            _ => &mut agent.stopped,
        };
        ended.into_iter().for_each(|at| ends[at] += 1);
    }

    pub(super) fn agents(self) -> Vec<v1::AgentActivity> {
        self.agents.into_values().collect()
    }
}

fn still(agent: &str, count: usize) -> v1::AgentActivity {
    let none = || vec![0; count];
    v1::AgentActivity {
        agent: agent.to_owned(),
        submitted: none(),
        completed: none(),
        failed: none(),
        stopped: none(),
    }
}

/// Those that were counted already.
type FailureIds = HashSet<Box<str>>;

/// Counts failures. The newest come first, so the first of each kind is its last.
pub(super) struct Failures {
    over: Buckets,
    kinds: HashMap<(String, String), (v1::FailureCount, FailureIds)>,
}

impl Failures {
    pub(super) fn over(over: Buckets) -> Self {
        Self { over, kinds: HashMap::new() }
    }

    /// A kind is a reason and an origin.
    pub(super) fn add(&mut self, at: Millis, id: TaskId, kind: (String, String), failure: &str) {
        let Some(bucket) = self.over.at(at) else { return };
        let (count, ids) = self.kinds.entry(kind).or_insert_with_key(|(reason, origin)| {
            let (reason, origin) = (reason.clone(), origin.clone());
            let (last, buckets) = (Some(timestamp(at)), vec![0; self.over.count]);
            let count = v1::FailureCount { reason, origin, last, buckets, ..Default::default() };
            (count, HashSet::new())
        });
        if count.tasks == 0 {
            count.last_task_id = id.to_string();
        }
        count.tasks += 1;
        count.buckets[bucket] += 1;
        count.failures += u32::from(!ids.contains(failure) && ids.insert(failure.into()));
    }

    pub(super) fn kinds(self) -> Vec<v1::FailureCount> {
        self.kinds.into_values().map(|(count, _)| count).collect()
    }
}

/// A child by its row and its first event, which has its key.
pub(super) fn child(row: Row, first: &[u8]) -> Result<v1::Child, ReadError> {
    let damaged = |what: String| ReadError::Damaged { id: row.id, what };
    let event = v1::Event::decode(first).map_err(|e| damaged(e.to_string()))?;
    let Some(Body::Submitted(v1::Submitted { parent: Some(parent), .. })) = event.body else {
        return Err(damaged("its row has a parent, its first event has none".to_owned()));
    };
    Ok(v1::Child {
        task_id: row.id.to_string(),
        agent: row.agent,
        key: parent.key,
        detached: parent.detached,
        state: row.state as i32,
    })
}
