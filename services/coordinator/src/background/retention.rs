//! Retention of ended tasks, as configured for all agents or for one. The scan follows the task
//! ids, which sort by age, in bounded steps.

use std::sync::Arc;

use faultline_proto::id::TaskId;

use crate::{
    Config,
    clock::now,
    engine::{core::Core, effect::Effect},
    store::{Aged, Tally, Write},
    task::Millis,
};

/// Tasks scanned in one step, and erased in one commit at most.
const AT_ONCE: usize = 500;
/// Events erased in one commit, so that other writes do not wait long.
const EVENTS_AT_ONCE: u64 = 20_000;
const HOUR: Millis = 60 * 60 * 1000;

/// The position before every task.
pub(crate) const START: [u8; 16] = [0; 16];

impl Config {
    /// The retention of an agent; `None`: for ever.
    fn kept_for(&self, agent: &str) -> Option<Millis> {
        let own = self.agents.get(agent).and_then(|own| own.keep_ended_hours);
        own.or(self.keep_ended_hours).and_then(millis)
    }

    /// The shortest retention: younger tasks are skipped.
    fn kept_shortest(&self) -> Option<Millis> {
        let own = self.agents.values().filter_map(|own| own.keep_ended_hours);
        own.chain(self.keep_ended_hours).filter_map(millis).min()
    }
}

fn millis(hours: u64) -> Option<Millis> {
    let hours = Millis::try_from(hours).ok().filter(|hours| *hours > 0)?;
    Some(hours.saturating_mul(HOUR))
}

impl Core {
    /// Scans one step of old tasks after this one. Returns the next position; `None`: the scan is
    /// complete.
    pub(crate) async fn expire_tasks(&self, after: TaskId) -> Option<TaskId> {
        let now = now();
        let before = now.saturating_sub(self.config.kept_shortest()?).max(0);
        let page = match self.store.aged(after, made_at(before), AT_ONCE).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "retention scan failed");
                return None;
            }
        };
        let is_old = |task: &Aged| {
            let kept = self.config.kept_for(&task.agent);
            task.ended.zip(kept).is_some_and(|(ended, kept)| ended < now.saturating_sub(kept))
        };
        let (ids, next) = chosen(&page, is_old);
        if !ids.is_empty() {
            // Coordinators on one store scan the same tasks: the one that erases a task counts it.
            let (gone, meters) = (Tally::default(), Arc::clone(&self.meters));
            let count = {
                let gone = gone.clone();
                Effect::Run(Box::new(move || meters.expired.add(gone.get())))
            };
            self.change(|state| state.commit_write(Write::Expire { ids, gone }, vec![count]));
        }
        next
    }
}

/// The tasks of a page that fit in one commit, and the next position.
fn chosen(page: &[Aged], is_old: impl Fn(&Aged) -> bool) -> (Vec<TaskId>, Option<TaskId>) {
    let (mut ids, mut events) = (Vec::new(), 0);
    for (at, task) in page.iter().enumerate().filter(|(_, task)| is_old(task)) {
        events += task.events;
        if events > EVENTS_AT_ONCE && !ids.is_empty() {
            return (ids, page[..at].last().map(|before| before.id));
        }
        ids.push(task.id);
    }
    (ids, page.last().map(|task| task.id).filter(|_| page.len() == AT_ONCE))
}

/// A position before all ids of this time and after all earlier ids.
fn made_at(time: Millis) -> TaskId {
    let mut bytes = START;
    bytes[..6].copy_from_slice(&time.to_be_bytes()[2..]);
    TaskId::from_bytes(bytes)
}

#[cfg(test)]
mod tests;
