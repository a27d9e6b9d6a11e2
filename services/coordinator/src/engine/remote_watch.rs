//! A task of another coordinator that has watchers or waiters here.

use std::sync::Arc;

use faultline_proto::v1::Event;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::{
    engine::{
        active_task::{Seen, Waiter},
        store_outage::split,
    },
    store::KeyRow,
};

/// The watchers and waiters here of a task that a peer owns.
///
/// Created under the state lock by a watcher or a waiter, or when this coordinator loses ownership.
/// Dropped when none of them is left, or when the task comes here.
pub(crate) struct RemoteWatch {
    /// The last event that was passed to the watchers.
    pub(crate) seq: u64,
    pub(crate) watchers: Vec<mpsc::Sender<Seen>>,
    pub(crate) waiters: Vec<Waiter>,
    /// The last event confirmed by the store while the task was owned here. Waiters of a later
    /// write of this coordinator are not answered yet: the store may refuse that write.
    pub(crate) confirmed: u64,
    /// The reply may still be a bare message, because no caller has seen the task.
    pub(crate) may_reply_without_task: bool,
    pub(crate) key: Option<Box<KeyRow>>,
    /// The context of the task, set if there are waiters.
    pub(crate) context_id: String,
}

impl RemoteWatch {
    pub(crate) fn new(seq: u64) -> Self {
        let (watchers, waiters) = (Vec::new(), Vec::new());
        let context_id = String::new();
        Self {
            seq,
            watchers,
            waiters,
            confirmed: 0,
            may_reply_without_task: false,
            key: None,
            context_id,
        }
    }

    /// Whether a watcher or a waiter is left.
    pub(crate) fn matters(&self) -> bool {
        !self.waiters.is_empty() || self.watchers.iter().any(|watcher| !watcher.is_closed())
    }

    pub(crate) fn is_followed(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.call.is_some())
            || self.watchers.iter().any(|watcher| !watcher.is_closed())
    }

    /// The waiters to answer during a store outage, as for an active task.
    pub(crate) fn take_timed_out_waiters(&mut self) -> (Vec<Waiter>, Vec<Waiter>) {
        // A remote task is stored, but a write from the time when it was owned here may not be.
        split(&mut self.waiters, self.confirmed.max(1))
    }

    pub(crate) fn waiters_mut(&mut self) -> &mut Vec<Waiter> {
        &mut self.waiters
    }

    /// Passes on an event after the last one. A watcher whose channel is full is dropped (flow
    /// control) and reads on from the store.
    pub(crate) fn publish(&mut self, seq: u64, event: &Arc<Event>) {
        if seq <= self.seq {
            return;
        }
        self.seq = seq;
        self.watchers.retain(|watcher| {
            let seen = Seen { seq, event: Arc::clone(event) };
            !matches!(watcher.try_send(seen), Err(TrySendError::Full(_) | TrySendError::Closed(_)))
        });
    }
}
