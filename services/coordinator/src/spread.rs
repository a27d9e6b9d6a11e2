//! Workers attach to a coordinator by chance and stay there, so the one that started last after a
//! rollout has none, and whatever is sent to it is done by way of another. Here those that have
//! more than their share send some elsewhere. Where they go is chance again, and what others have
//! may be a second old, so it takes a few rounds and comes to rest.

use std::{collections::BTreeMap, time::Duration};

use faultline_proto::{
    id::WorkerId,
    v1::{Drain, ToWorker, to_worker},
};

use tokio::time::Instant;

use crate::{core::State, registry::Worker};

/// Who was sent away and is here again found nobody better: it does not know the one that has too
/// few, or cannot reach it. It is left alone for so long.
const SENT_AGAIN_AFTER: Duration = Duration::from_secs(10 * 60);

/// Workers that offer the same agents can stand in for one another. Each such pool is spread on its
/// own, or one coordinator would have all of one agent and none of the other.
type Pool<'a> = Vec<&'a str>;

fn pool(agents: &[String]) -> Pool<'_> {
    let mut pool: Vec<_> = agents.iter().map(String::as_str).collect();
    pool.sort_unstable();
    pool
}

impl State {
    /// Sends workers elsewhere of which others have too few.
    pub(crate) fn spread_workers(&mut self) {
        if self.closed.is_some() {
            return;
        }
        self.registry.sent.retain(|_, at| at.elapsed() < SENT_AGAIN_AFTER);
        for id in self.too_many() {
            self.registry.sent.insert(id, Instant::now());
            tracing::info!(worker = %id, "sent elsewhere: others have fewer");
            self.tell(id, ToWorker { body: Some(to_worker::Body::Drain(Drain {})) });
        }
    }

    /// Of each pool those that have the least to take along.
    fn too_many(&self) -> Vec<WorkerId> {
        let mut here = BTreeMap::<Pool, Vec<(WorkerId, &Worker)>>::new();
        for (id, worker) in &self.registry.workers {
            if worker.is_attached() && !worker.draining {
                here.entry(pool(&worker.agents)).or_default().push((*id, worker));
            }
        }
        let mut chosen = Vec::new();
        for (pool_, workers) in here {
            let others = self.registry.elsewhere.workers_at_each(|agents| pool(agents) == pool_);
            let count = too_many(workers.len(), &others);
            let may_go = |id: &WorkerId| !self.registry.sent.contains_key(id);
            let mut movable: Vec<_> = workers.into_iter().filter(|(id, _)| may_go(id)).collect();
            movable.sort_by_key(|(_, worker)| worker.running().count());
            chosen.extend(movable.into_iter().take(count).map(|(id, _)| id));
        }
        chosen
    }
}

/// Half of what is above the share, as others do the same meanwhile, and at least one.
fn too_many(here: usize, others: &[usize]) -> usize {
    let all = here + others.iter().sum::<usize>();
    let share = all.div_ceil(1 + others.len());
    here.saturating_sub(share).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_proto::v1::Presence;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use tokio::sync::mpsc;

    use crate::{
        elsewhere::Elsewhere,
        testing::{Bench, offer},
    };

    #[tokio::test]
    async fn who_comes_back_is_not_sent_round_in_circles() {
        let mut bench = Bench::start(vec![offer("a")]).await;
        bench.worker = WorkerId::new();
        let _first = std::mem::replace(&mut bench.messages, mpsc::channel(1).1);
        bench.attach_again(&["a"], 1, vec![]);
        let spread = || {
            bench.core.change(|state| {
                let before = state.registry.sent.len();
                state.registry.elsewhere.followed_by(Elsewhere::new(vec![Presence::default()]));
                state.spread_workers();
                state.registry.sent.len() - before
            })
        };
        assert_eq!(spread(), 1, "one of two is too many while another has none");
        assert_eq!(spread(), 1, "the first did not find it, so it is the other's turn");
        assert_eq!(spread(), 0, "nor did that one");
    }

    #[test]
    fn who_has_no_more_than_a_share_keeps_it() {
        assert_eq!(too_many(5, &[]), 0, "there is nobody else");
        assert_eq!(too_many(1, &[0]), 0);
        assert_eq!(too_many(2, &[1]), 0);
        assert_eq!(too_many(2, &[2, 2]), 0);
        assert_eq!(too_many(2, &[0]), 1);
        assert_eq!(too_many(6, &[0, 0]), 2);
        assert_eq!(too_many(300, &[0, 0]), 100);
    }

    proptest! {
        /// Everybody sends at once, and who is sent goes anywhere else.
        #[test]
        fn whatever_it_was_it_comes_to_rest(
            mut at in proptest::collection::vec(0usize..60, 2..6),
            seed: u64,
        ) {
            let mut rng = StdRng::seed_from_u64(seed);
            let share = at.iter().sum::<usize>().div_ceil(at.len());
            for _ in 0..300 {
                let sent: Vec<_> = (0..at.len()).map(|n| {
                    let others: Vec<_> = (0..at.len()).filter(|o| *o != n).map(|o| at[o]).collect();
                    too_many(at[n], &others)
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
