//! `kill -9` of any process at random moments, under load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_tests::{Cluster, Plan};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    clients::{Client, Kind},
    history, setting,
};

const LOAD: [(Kind, usize); 5] = [
    (Kind::Blocking, 3),
    (Kind::Streaming, 4),
    (Kind::Polling, 2),
    (Kind::Answering, 2),
    (Kind::Canceling, 1),
];
/// Time limit for the clients to finish after the last round.
const FINISH: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// First in the order: the other processes need it in order to start.
    Coordinator,
    Gateway,
    Worker(usize),
    /// No process: all connections to the coordinator are cut.
    Link,
}

/// One round: a pause, then the victims.
#[derive(Debug)]
struct Round {
    after: Duration,
    victims: Vec<Victim>,
}

/// Mostly one victim per round; sometimes several, as when a machine fails. The first rounds
/// contain every victim, for any seed.
fn plan(rng: &mut StdRng, rounds: u64) -> Vec<Round> {
    let all =
        [Victim::Coordinator, Victim::Gateway, Victim::Worker(0), Victim::Worker(1), Victim::Link];
    let round = |at: u64| {
        let after = Duration::from_millis(rng.random_range(50..700));
        let count = if rng.random_bool(0.2) { rng.random_range(2..=4) } else { 1 };
        let mut victims: Vec<_> = all.choose_multiple(rng, count).copied().collect();
        victims.extend(all.get(at as usize));
        victims.sort();
        victims.dedup();
        Round { after, victims }
    };
    (0..rounds).map(round).collect()
}

async fn kill(cluster: &mut Cluster, victims: &[Victim]) {
    for victim in victims {
        match victim {
            Victim::Coordinator => cluster.coordinators[0].kill().await,
            Victim::Gateway => cluster.gateways[0].kill().await,
            Victim::Worker(at) => cluster.workers[*at].kill().await,
            Victim::Link => cluster.coordinator_proxies[0].cut(),
        }
    }
    for victim in victims {
        match victim {
            Victim::Coordinator => cluster.coordinators[0].restart().await,
            Victim::Gateway => cluster.gateways[0].restart().await,
            Victim::Worker(at) => cluster.workers[*at].restart().await,
            Victim::Link => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_tasks_survive_kill_nine_of_any_process() {
    let _turn = crate::turn().await;
    let rounds = setting("FAULTLINE_ROUNDS").unwrap_or(10);
    let seed = setting("FAULTLINE_SEED").unwrap_or_else(rand::random);
    eprintln!("FAULTLINE_ROUNDS={rounds} FAULTLINE_SEED={seed}");
    let start = Instant::now();
    // Short intervals, so that a lost worker is detected within a round; and more attempts than
    // kills.
    let plan_of_mesh = Plan::default()
        .workers(&["echo,script", "echo,script"])
        .with("reattach_grace_ms = 400")
        .with("heartbeat_ms = 200")
        .with("max_attempts = 50");
    let mut cluster = plan_of_mesh.start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let kinds = LOAD.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count));
    let clients: Vec<_> = kinds
        .enumerate()
        .map(|(name, kind)| {
            let client = Client::new(kind, name, cluster.rpc(), seed);
            tokio::spawn(client.run(Arc::clone(&stop)))
        })
        .collect();
    for round in plan(&mut StdRng::seed_from_u64(seed), rounds) {
        sleep(round.after).await;
        assert!(!clients.iter().any(|c| c.is_finished()), "a client has panicked");
        kill(&mut cluster, &round.victims).await;
    }
    // All processes run again: tasks in progress come to their end.
    stop.store(true, Relaxed);
    let mut records = Vec::new();
    for client in clients {
        let ended = timeout(FINISH, client).await.expect("no client is stuck");
        records.extend(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())));
    }
    let summary = history::check(&cluster.rpc(), &records).await;
    eprintln!("{rounds} rounds in {:.1?}: {summary:?}", start.elapsed());
    assert!(summary.tasks > 0 && summary.events > 0, "there was no load: {summary:?}");
    let chaos = summary.lost_attempts > 0 && summary.resumed_streams > 0;
    assert!(chaos || rounds < 10, "no fault had an effect: {summary:?}");
}
