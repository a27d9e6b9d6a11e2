//! How long tasks are kept once they have ended: the operator's word for all agents, or for one.
//! Tasks are gone through by their ids, which sort by age, a step at a time, and never all at once.

use std::sync::Arc;

use faultline_proto::id::TaskId;

use crate::{
    Config,
    core::{Core, Effect, now},
    store::{Tally, Write},
    task::Millis,
};

/// Tasks looked at in one step, and forgotten in one commit at most.
const AT_ONCE: usize = 500;
const HOUR: Millis = 60 * 60 * 1000;

/// Before every task.
pub(crate) const START: [u8; 16] = [0; 16];

impl Config {
    /// `None`: for ever.
    fn kept_for(&self, agent: &str) -> Option<Millis> {
        let own = self.agents.get(agent).and_then(|own| own.keep_ended_hours);
        own.or(self.keep_ended_hours).and_then(millis)
    }

    /// What is younger need not be looked at.
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
    /// One step through old tasks, behind this one. Where to go on; `None`: that was all.
    pub(crate) async fn expire_tasks(&self, after: TaskId) -> Option<TaskId> {
        let now = now();
        let before = now.saturating_sub(self.config.kept_shortest()?).max(0);
        let page = match self.store.aged(after, made_at(before), AT_ONCE).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "tasks to forget were not looked for");
                return None;
            }
        };
        let next = page.last().map(|task| task.id).filter(|_| page.len() == AT_ONCE);
        let is_old = |ended: Millis, agent: &str| {
            let kept = self.config.kept_for(agent);
            kept.is_some_and(|kept| ended < now.saturating_sub(kept))
        };
        let old = page.iter().filter(|task| task.ended.is_some_and(|at| is_old(at, &task.agent)));
        let ids: Vec<_> = old.map(|task| task.id).collect();
        if !ids.is_empty() {
            // Others on the same store walk the same way: whoever was first counts.
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

/// Before all ids of this time, and behind all of before.
fn made_at(time: Millis) -> TaskId {
    let mut bytes = START;
    bytes[..6].copy_from_slice(&time.to_be_bytes()[2..]);
    TaskId::from_bytes(bytes)
}

#[cfg(test)]
#[path = "retention_tests.rs"]
mod tests;
