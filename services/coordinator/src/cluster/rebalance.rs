//! Rebalancing of workers over coordinators. A worker attaches to any coordinator and stays, so the
//! coordinator that started last has too few. A coordinator with more than its share evicts some;
//! their next choice is random and the load of peers may be a heartbeat stale, so the rebalance
//! takes a few rounds and converges.

use crate::engine::workers::registry::Evicted;
use std::{collections::BTreeMap, time::Duration};

use faultline_proto::{
    id::WorkerId,
    v1::{Drain, ToWorker, to_worker},
};
use tokio::time::Instant;

use crate::engine::{core::State, workers::registry::Worker};

/// Pause for a worker that was evicted and came back: it does not know the coordinator that has too
/// few, or cannot reach it. The pause grows with each return (exponential backoff).
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(10 * 60);

/// A pool: workers that offer the same agents and can replace one another. Each pool is balanced on
/// its own; otherwise one coordinator could have all workers of one agent.
type Pool<'a> = Vec<&'a str>;

fn pool(agents: &[String]) -> Pool<'_> {
    let mut pool: Vec<_> = agents.iter().map(String::as_str).collect();
    pool.sort_unstable();
    pool
}

impl State {
    /// Evicts workers of which peers have too few.
    pub(crate) fn spread_workers(&mut self) {
        let is_there = |id: &WorkerId| self.registry.peer_load.has(id);
        let attached = self.registry.workers.iter().filter(|(_, worker)| worker.is_attached());
        // A worker that peers list and that is attached here has just moved: their heartbeat is
        // stale.
        let is_stale = attached.map(|(id, _)| id).any(is_there);
        if self.closed.is_some() || is_stale {
            return;
        }
        self.registry.evictions.retain(|_, sent| sent.at.elapsed() < 2 * PAUSE_MAX);
        for id in self.excess() {
            if let Some(worker) = self.registry.workers.get_mut(&id) {
                worker.evicted = true;
            }
            let before = self.registry.evictions.get(&id).map(|sent| sent.pause * 2);
            let pause = before.map_or(PAUSE_MIN, |pause| pause.min(PAUSE_MAX));
            self.registry.evictions.insert(id, Evicted { at: Instant::now(), pause });
            tracing::info!(worker = %id, "worker evicted: other coordinators have fewer");
            self.tell(id, ToWorker { body: Some(to_worker::Body::Drain(Drain {})) });
        }
    }

    /// The workers to evict: of each pool those with the fewest attempts.
    fn excess(&self) -> Vec<WorkerId> {
        let mut here = BTreeMap::<Pool, Vec<(WorkerId, &Worker)>>::new();
        for (id, worker) in &self.registry.workers {
            if worker.is_attached() && !worker.draining {
                here.entry(pool(&worker.agents)).or_default().push((*id, worker));
            }
        }
        let may_go = |(id, worker): &(WorkerId, &Worker)| {
            let sent = self.registry.evictions.get(id);
            !worker.evicted && sent.is_none_or(|sent| sent.at.elapsed() >= sent.pause)
        };
        let mut chosen = Vec::new();
        for (pool_, workers) in here {
            let others = self.registry.peer_load.workers_at_each(|agents| pool(agents) == pool_);
            let going = workers.iter().filter(|(_, worker)| worker.evicted).count();
            let count = excess(workers.len(), going, &others);
            let mut movable: Vec<_> = workers.into_iter().filter(may_go).collect();
            movable.sort_by_key(|(_, worker)| worker.running().count());
            chosen.extend(movable.into_iter().take(count).map(|(id, _)| id));
        }
        chosen
    }
}

/// Half of the surplus above the fair share, because peers evict at the same time, and at least
/// one. Workers that are `going` already count as gone.
fn excess(here: usize, going: usize, others: &[usize]) -> usize {
    let all = here + others.iter().sum::<usize>();
    let share = all.div_ceil(1 + others.len());
    (here - going).saturating_sub(share).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_proto::v1::Presence;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use tokio::sync::mpsc;

    use crate::{
        engine::peer_load::PeerLoad,
        testing::{Bench, offer},
    };

    #[tokio::test]
    async fn rebalance_evicts_only_the_surplus_and_no_worker_twice() {
        let mut bench = Bench::start(vec![offer("a")]).await;
        let (one, other) = (bench.worker, WorkerId::new());
        bench.worker = other;
        let _first = std::mem::replace(&mut bench.messages, mpsc::channel(1).1);
        bench.attach_again(&["a"], 1, vec![]);
        let spread = |bench: &Bench| {
            bench.core.change(|state| {
                state.registry.peer_load.followed_by(PeerLoad::new(vec![Presence::default()]));
                state.spread_workers();
                let is_going = |id| state.registry.workers[&id].evicted;
                (is_going(one), is_going(other))
            })
        };
        let first = spread(&bench);
        assert!(first.0 != first.1, "one of two workers is evicted");
        assert_eq!(spread(&bench), first, "no second worker is evicted meanwhile");
        // It comes back, so it is the other's turn; then nobody is left who might find a way.
        let again = |bench: &mut Bench, id| {
            bench.worker = id;
            let kept = std::mem::replace(&mut bench.messages, mpsc::channel(1).1);
            bench.attach_again(&["a"], 1, vec![]);
            kept
        };
        let (sent, stayed) = if first.0 { (one, other) } else { (other, one) };
        let _kept = again(&mut bench, sent);
        assert_eq!(spread(&bench), (first.1, first.0));
        let _kept = again(&mut bench, stayed);
        assert_eq!(spread(&bench), (false, false));
    }

    #[test]
    fn coordinator_within_its_share_evicts_nobody() {
        assert_eq!(excess(5, 0, &[]), 0, "there is nobody else");
        assert_eq!(excess(1, 0, &[0]), 0);
        assert_eq!(excess(2, 0, &[1]), 0);
        assert_eq!(excess(2, 0, &[2, 2]), 0);
        assert_eq!(excess(2, 0, &[0]), 1);
        assert_eq!(excess(6, 0, &[0, 0]), 2);
        assert_eq!(excess(300, 0, &[0, 0]), 100);
        assert_eq!(excess(6, 3, &[0, 0]), 1);
        assert_eq!(excess(6, 4, &[0, 0]), 0, "enough are on their way");
    }

    proptest! {
        /// Everybody sends at once, and who is sent goes anywhere else.
        #[test]
        fn rebalance_converges(
            mut at in proptest::collection::vec(0usize..60, 2..6),
            seed: u64,
        ) {
            let mut rng = StdRng::seed_from_u64(seed);
            let share = at.iter().sum::<usize>().div_ceil(at.len());
            for _ in 0..300 {
                let sent: Vec<_> = (0..at.len()).map(|n| {
                    let others: Vec<_> = (0..at.len()).filter(|o| *o != n).map(|o| at[o]).collect();
                    excess(at[n], 0, &others)
                }).collect();
                for (n, sent) in sent.into_iter().enumerate() {
                    for _ in 0..sent {
                        let to = (n + rng.random_range(1..at.len())) % at.len();
                        (at[n], at[to]) = (at[n] - 1, at[to] + 1);
                    }
                }
            }
            prop_assert!(at.iter().all(|count| *count <= share), "{at:?}, of which each {share}");
        }
    }
}
