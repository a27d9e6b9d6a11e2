//! The ids of tasks that changed since the watchers of the operators' view were last served.

use std::{collections::HashSet, sync::Arc};

use faultline_chassis::limits;
use faultline_proto::{
    id::TaskId,
    v1::{Event, event::Body},
};
use tokio::sync::broadcast;

use crate::store::Row;

/// The task ids that changed since watchers were last served. Changed under the state lock.
#[derive(Default)]
pub(crate) struct Feed {
    pub(crate) watched: bool,
    pub(crate) changed: HashSet<TaskId>,
    /// More ids changed than the bound keeps.
    pub(crate) missed: bool,
}

impl Feed {
    /// Notes a durable change of a task.
    pub(crate) fn note(&mut self, id: TaskId) {
        if !self.watched {
            return;
        }
        if self.changed.len() < limits::WATCH_TASKS_MAX {
            self.changed.insert(id);
        } else {
            self.missed |= !self.changed.contains(&id);
        }
    }

    /// Notes a step with these events. Artifacts and checkpoints do not appear in the views and are
    /// skipped.
    pub(crate) fn note_step(&mut self, id: TaskId, events: &[Event]) {
        let shows = |event: &Event| {
            !matches!(event.body, Some(Body::Artifact(_) | Body::Checkpointed(_)) | None)
        };
        if self.watched && events.iter().any(shows) {
            self.note(id);
        }
    }

    /// The changes are unknown: watchers read everything.
    pub(crate) fn lose(&mut self) {
        self.missed = self.watched;
    }

    pub(crate) fn take(&mut self) -> (HashSet<TaskId>, bool) {
        (std::mem::take(&mut self.changed), std::mem::take(&mut self.missed))
    }
}

/// One batch of changes for all watchers.
pub(crate) struct Changes {
    pub(crate) rows: Vec<Row>,
    /// Tasks that are no longer in the store, because their reply was a bare message.
    pub(crate) gone: Vec<TaskId>,
    pub(crate) missed: bool,
}

pub(crate) type Changed = broadcast::Sender<Arc<Changes>>;
