//! The ids of tasks that changed since the watchers of the operators' view were last served.

use std::{collections::HashSet, sync::Arc};

use faultline_chassis::limits;
use faultline_proto::{
    id::TaskId,
    v1::{Event, event::Body},
};
use tokio::sync::broadcast;

use crate::store::Row;

/// What changed since watchers were last told.
#[derive(Default)]
pub(crate) struct Feed {
    pub(crate) watched: bool,
    pub(crate) changed: HashSet<TaskId>,
    /// More than is kept.
    pub(crate) missed: bool,
}

impl Feed {
    /// This task is not as it was, and the store knows.
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

    /// The same for a step of these events. What an agent makes and saves is on no list.
    pub(crate) fn note_step(&mut self, id: TaskId, events: &[Event]) {
        let shows = |event: &Event| {
            !matches!(event.body, Some(Body::Artifact(_) | Body::Checkpointed(_)) | None)
        };
        if self.watched && events.iter().any(shows) {
            self.note(id);
        }
    }

    /// Nobody knows what changed.
    pub(crate) fn lose(&mut self) {
        self.missed = self.watched;
    }

    pub(crate) fn take(&mut self) -> (HashSet<TaskId>, bool) {
        (std::mem::take(&mut self.changed), std::mem::take(&mut self.missed))
    }
}

/// What all watchers are told together.
pub(crate) struct Changes {
    pub(crate) rows: Vec<Row>,
    /// Of these there is nothing in the store: they were answered by a bare message.
    pub(crate) gone: Vec<TaskId>,
    pub(crate) missed: bool,
}

pub(crate) type Changed = broadcast::Sender<Arc<Changes>>;
