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

/// Who here wants to hear of a task that is elsewhere.
pub(crate) struct RemoteWatch {
    /// The last event that was passed on.
    pub(crate) seq: u64,
    pub(crate) watchers: Vec<mpsc::Sender<Seen>>,
    pub(crate) waiters: Vec<Waiter>,
    /// The last event of ours that the store has confirmed, from when the task was ours: who waits
    /// for what is still on its way there is not answered yet, and perhaps refused.
    pub(crate) confirmed: u64,
    /// Nobody was told of a task, so that the answer may turn out to be a bare message.
    pub(crate) may_reply_without_task: bool,
    pub(crate) key: Option<Box<KeyRow>>,
    /// Set where there are waiters.
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

    /// Somebody still listens or waits.
    pub(crate) fn matters(&self) -> bool {
        !self.waiters.is_empty() || self.watchers.iter().any(|watcher| !watcher.is_closed())
    }

    pub(crate) fn is_followed(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.call.is_some())
            || self.watchers.iter().any(|watcher| !watcher.is_closed())
    }

    /// Like [`Live::take_impatient`].
    pub(crate) fn take_timed_out_waiters(&mut self) -> (Vec<Waiter>, Vec<Waiter>) {
        // A followed task is stored, but a step from when it was ours may not be.
        split(&mut self.waiters, self.confirmed.max(1))
    }

    pub(crate) fn waiters_mut(&mut self) -> &mut Vec<Waiter> {
        &mut self.waiters
    }

    /// Passes on what comes after what was passed on. Who does not keep up reads on from the store.
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
