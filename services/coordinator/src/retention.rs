//! How long tasks are kept once they have ended: the operator's word for all agents, or for one.
//! Tasks are gone through by their ids, which sort by age, a step at a time, and never all at once.

use faultline_proto::id::TaskId;

use crate::{
    Config,
    core::{Core, now},
    store::Write,
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
            self.meters.expired.add(ids.len() as u64);
            self.change(|state| state.commit_write(Write::Expire { ids }, Vec::new()));
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        AgentPolicy,
        store::fill::{Past, finished},
        testing::{Bench, offer},
    };

    async fn put(bench: &Bench, agent: &str, hours: u64) {
        let ago = Duration::from_secs(hours * 3600);
        bench.write(finished(Past { agent: agent.to_owned(), ago, ..Past::default() })).await;
    }

    #[tokio::test]
    async fn ended_tasks_are_kept_as_long_as_the_operator_says() {
        let keeps = |hours| AgentPolicy { keep_ended_hours: Some(hours), ..<_>::default() };
        let agents = [("brief".to_owned(), keeps(1)), ("ever".to_owned(), keeps(0))].into();
        let config = Config { keep_ended_hours: Some(10), agents, ..Config::default() };
        let mut bench = Bench::start_with(config, vec![offer("echo")]).await;
        for hours in [0, 2, 20] {
            for agent in ["echo", "brief", "ever"] {
                put(&bench, agent, hours).await;
            }
        }
        bench.root("echo").await;
        assert_eq!(bench.count().await, 10);
        assert_eq!(bench.core.expire_tasks(TaskId::from_bytes(START)).await, None, "all at once");
        bench.core.flushed().await;
        assert_eq!(bench.count().await, 7, "one of echo, two of brief");
    }

    #[tokio::test]
    async fn many_are_forgotten_step_by_step_and_none_unless_asked_to() {
        let config = Config { keep_ended_hours: Some(1), ..Config::default() };
        let bench = Bench::start_with(config, Vec::new()).await;
        for _ in 0..AT_ONCE + 1 {
            let past = Past { ago: Duration::from_secs(7200), ..Past::default() };
            bench.core.change(|state| state.commit_write(finished(past), Vec::new()));
        }
        bench.core.flushed().await;
        let place = bench.core.expire_tasks(TaskId::from_bytes(START)).await;
        bench.core.flushed().await;
        assert_eq!(bench.count().await, 1);
        assert_eq!(bench.core.expire_tasks(place.expect("there are more")).await, None);
        bench.core.flushed().await;
        assert_eq!(bench.count().await, 0);
        let keeps = Bench::start(Vec::new()).await;
        put(&keeps, "echo", 10_000).await;
        assert_eq!(keeps.core.expire_tasks(TaskId::from_bytes(START)).await, None);
        keeps.core.flushed().await;
        assert_eq!(keeps.count().await, 1, "for ever");
    }
}
