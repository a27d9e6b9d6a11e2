//! Questions that nobody answers in time. The answer is then that nobody did; what becomes of the
//! task is for its agent to say. The times are stored with the questions and so survive a restart.

use std::collections::BTreeSet;

use faultline_proto::id::TaskId;

use crate::{core::State, task::Millis};

/// Tasks that have a question which expires, the first to do so first.
#[derive(Default)]
pub(crate) struct Expiries(BTreeSet<(Millis, TaskId)>);

impl State {
    /// The questions of this task have changed.
    pub(crate) fn watch_expiry(&mut self, id: TaskId) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let next = live.task.next_expiry();
        if next == live.expires {
            return;
        }
        if let Some(before) = std::mem::replace(&mut live.expires, next) {
            self.expiries.0.remove(&(before, id));
        }
        if let Some(next) = next {
            self.expiries.0.insert((next, id));
        }
    }

    /// Closes what has expired.
    pub(crate) fn expire_questions(&mut self, now: Millis) {
        while let Some((at, id)) = self.expiries.0.first().copied().filter(|(at, _)| *at <= now) {
            self.expiries.0.remove(&(at, id));
            let Some(live) = self.live.get_mut(&id) else { continue };
            live.expires = None;
            for key in live.task.expired(now) {
                self.expire(id, key, now);
            }
            self.watch_expiry(id);
        }
    }

    fn expire(&mut self, id: TaskId, key: String, now: Millis) {
        let Some(live) = self.live.get(&id) else { return };
        tracing::info!(task = %id, question = key, "nobody answered in time");
        let body = live.task.decide_expire(key);
        self.answer(id, body, None, now, |_, _| {});
    }
}
