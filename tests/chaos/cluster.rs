//! A cluster to which everything is done that a plan can think of, under load, and what must hold
//! when it is whole again.
//!
//! ```sh
//! FAULTLINE_SEED=7 FAULTLINE_SECONDS=60 cargo test -p faultline-tests --test chaos cluster
//! ```
//!
//! repeats one plan, though not what the machine made of it; `FAULTLINE_SEEDS` says how many others
//! are drawn.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_tests::{Cluster, Plan, Rpc, Store, until};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    callers::{Caller, Kind, Report},
    check::{self, Rule, Violation},
    deeds,
    plan::{self, Break, Deed, Shape, Step, Who},
    setting,
    told::{self, number},
};

const CLUSTER: Shape = Shape { coordinators: 3, gateways: 2, workers: 6, has_server: true };
const ALONE: Shape = Shape { coordinators: 1, gateways: 2, workers: 3, has_server: false };

const LOAD: [(Kind, usize); 6] = [
    (Kind::Repeating, 3),
    (Kind::Streaming, 4),
    (Kind::Delegating, 3),
    (Kind::Answering, 2),
    (Kind::Failing, 1),
    (Kind::Canceling, 2),
];

/// How long the clients may take to finish what they have begun, and the mesh to come to rest.
#[derive(Clone, Copy)]
struct Patience {
    finish: Duration,
    settle: Duration,
}

const PATIENCE: Patience =
    Patience { finish: Duration::from_secs(150), settle: Duration::from_secs(60) };
/// Where one of two is broken on purpose and may never come to rest. Both are given the same, so
/// that what is found in the one is not for want of time.
const LITTLE: Patience =
    Patience { finish: Duration::from_secs(40), settle: Duration::from_secs(20) };
/// How many stories are told when something is wrong.
const SHOWN: usize = 3;
/// What a worker may take to let go of what was stopped: its agents are dropped before that, and
/// then it is told of at the next beat.
const LETS_GO: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
/// Short, so that what a lease is for happens within a plan.
const LEASE: Duration = Duration::from_secs(2);

/// What came of a plan.
struct Outcome {
    violations: Vec<Violation>,
    /// What clients and processes did that they may not.
    odd: Vec<String>,
    tasks: usize,
    resumed: usize,
    attempts_lost: usize,
    refused: usize,
}

fn mesh(shape: Shape) -> Plan {
    // Attempts enough for all that is done to them, and nothing that fails for being tried.
    let plan = Plan {
        coordinators: shape.coordinators,
        store: if shape.has_server { Store::OwnPostgres } else { Store::Sqlite },
        ..Plan::default()
    };
    let plan = plan
        .gateways(shape.gateways)
        .workers(&vec!["echo,script"; shape.workers])
        .with("reattach_grace_ms = 1000")
        .with("heartbeat_ms = 300")
        .with("max_attempts = 100")
        .with("breaker_failures = 0");
    match shape.has_server {
        true => plan.with(&format!("lease_ms = {}", LEASE.as_millis())),
        false => plan,
    }
}

async fn run(mesh: Plan, steps: &[Step], seed: u64, patience: Patience) -> Outcome {
    steps.iter().for_each(|step| eprintln!("{step}"));
    let mut cluster = mesh.start().await;
    let gateways: Vec<_> = cluster.addresses.iter().map(|address| Rpc::at(*address)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let kinds = LOAD.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count));
    let callers: Vec<_> = kinds
        .enumerate()
        .map(|(name, kind)| {
            let caller = Caller::new(kind, name, &gateways, seed);
            tokio::spawn(caller.run(Arc::clone(&stop)))
        })
        .collect();
    let mut odd = deeds::run(&mut cluster, steps, Instant::now()).await;
    // All whole again: what is under way comes to its end.
    stop.store(true, Relaxed);
    let (mut told, mut refused) = (Vec::new(), 0);
    let finished = Instant::now() + patience.finish;
    for mut caller in callers {
        let Ok(report) = timeout_at(finished, &mut caller).await else {
            caller.abort();
            odd.push("a client is stuck".to_owned());
            continue;
        };
        let report: Report =
            report.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        told.extend(report.told);
        odd.extend(report.odd);
        if !steps.iter().any(|step| step.deed.takes_store_away()) {
            odd.extend(report.early);
        }
        refused += report.refused;
    }
    settle(&cluster, patience.settle).await;
    odd.extend(still_computing(&cluster.rpc(), LETS_GO).await);
    let (store, unreadable) = told::read(&cluster.rpc(), &told).await;
    let violations = check::check(&told, &store, &unreadable);
    show(&violations, &store);
    if !violations.is_empty() || !odd.is_empty() {
        eprintln!("what the processes said is in {}", cluster.dir.keep().display());
    }
    let lost = |stored: &told::Stored| stored.events.iter().filter(|e| e.kind == "lost").count();
    Outcome {
        violations,
        odd,
        tasks: told.len(),
        resumed: told.iter().flat_map(|told| &told.views).map(|view| view.resumed).sum(),
        attempts_lost: store.values().map(lost).sum(),
        refused,
    }
}

/// Nothing is left at work, whether anybody knows of it or not. If it is after this, the checker
/// says what.
async fn settle(cluster: &Cluster, within: Duration) {
    let rpc = cluster.rpc();
    let busy = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"];
    let idle = until("no task is at work", 2 * within, async || {
        let filter = json!({"filter": {"states": busy}, "pageSize": 1});
        let tasks = rpc.mesh("Tasks", filter).await;
        tasks["tasks"].as_array().is_none_or(Vec::is_empty).then_some(())
    });
    if timeout(within, idle).await.is_err() {
        eprintln!("the mesh has not come to rest within {within:?}");
    }
}

/// Tasks have ended, and so must what works for them have: the workers that compute all the same.
async fn still_computing(rpc: &Rpc, within: Duration) -> Option<String> {
    let end = Instant::now() + within;
    loop {
        let workers = rpc.mesh("Workers", json!({})).await;
        let workers = workers["workers"].as_array().cloned().unwrap_or_default();
        let computes = |w: &&Value| number(&w["used"]) > 0 || number(&w["orphans"]) > 0;
        let busy: Vec<String> = workers.iter().filter(computes).map(Value::to_string).collect();
        if busy.is_empty() {
            return None;
        }
        if Instant::now() > end {
            return Some(format!("no task is at work, and these are after {within:?}: {busy:?}"));
        }
        sleep(AGAIN).await;
    }
}

/// Everything that is wrong, and what became of the first tasks that it is wrong with.
fn show(violations: &[Violation], store: &told::Store) {
    violations.iter().for_each(|violation| eprintln!("{violation}"));
    let ids: BTreeSet<_> = violations.iter().map(|violation| &violation.task_id).collect();
    for id in ids.into_iter().take(SHOWN) {
        let family = store.iter().filter(|(of, task)| *of == id || task.parent() == Some(id));
        family.for_each(|(id, stored)| eprint!("{id}: {stored}"));
    }
}

impl Outcome {
    /// Tells of it, and whether nothing is wrong.
    fn is_fine(&self, seed: u64) -> bool {
        let Self { tasks, resumed, attempts_lost, refused, .. } = self;
        eprintln!(
            "seed {seed}: {tasks} tasks, {attempts_lost} attempts lost, {resumed} streams \
             resumed, {refused} calls refused"
        );
        self.odd.iter().for_each(|odd| eprintln!("{odd}"));
        if *tasks == 0 {
            eprintln!("there was no load");
        }
        self.violations.is_empty() && self.odd.is_empty() && *tasks > 0
    }
}

/// All of them, also when one is bad; fails with how to see each of those again.
async fn try_seeds(test: &str, shape: Shape, default_seeds: u64, default_seconds: u64) {
    let seconds = setting("FAULTLINE_SECONDS").unwrap_or(default_seconds);
    let seeds: Vec<u64> = match setting("FAULTLINE_SEED") {
        Some(seed) => vec![seed],
        None => match setting("FAULTLINE_SEEDS") {
            Some(count) => (0..count).map(|_| u64::from(rand::random::<u32>())).collect(),
            // Always the same, so that a change is to blame for what is new.
            None => (1..=default_seeds).collect(),
        },
    };
    let (count, mut bad) = (seeds.len(), Vec::new());
    for seed in seeds {
        eprintln!("FAULTLINE_SEED={seed} FAULTLINE_SECONDS={seconds} on {shape:?}");
        let steps = plan::draw(seed, shape, Duration::from_secs(seconds));
        // A task of its own, so that a panic costs the others nothing.
        let tried = tokio::spawn(async move { run(mesh(shape), &steps, seed, PATIENCE).await });
        let is_fine = tried.await.is_ok_and(|outcome| outcome.is_fine(seed));
        if !is_fine {
            eprintln!("seed {seed} is bad");
            bad.push(format!(
                "FAULTLINE_SEED={seed} FAULTLINE_SECONDS={seconds} \
                 cargo test -p faultline-tests --test chaos cluster::{test}"
            ));
        }
    }
    let (bad_count, again) = (bad.len(), bad.join("\n"));
    assert!(bad.is_empty(), "{bad_count} of {count} seeds are bad; again with\n{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_its_word_whatever_is_done_to_it() {
    let _turn = crate::turn().await;
    try_seeds("a_cluster_keeps", CLUSTER, 2, 15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_alone_keeps_its_word_whatever_is_done_to_it() {
    let _turn = crate::turn().await;
    try_seeds("a_coordinator_alone", ALONE, 1, 10).await;
}

/// Coordinators that are away for longer than their lease and come back to what is not theirs. Most
/// lose their database without being told, so that what they wrote arrives when others have it.
fn absences(seconds: u64) -> Vec<Step> {
    let (lasts, every) = (2 * LEASE, LEASE * 5 / 4);
    let rounds = seconds * 1000 / every.as_millis() as u64;
    let round = |n: u64| {
        let at = Duration::from_millis(500) + every * n as u32;
        let coordinator = n as usize % CLUSTER.coordinators;
        let deed = match n % 4 {
            3 => Deed::Pause(Who::Coordinator(coordinator)),
            _ => Deed::Strand(coordinator, Break::Silent),
        };
        Step { at, deed, lasts }
    };
    (0..rounds).map(round).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_fencing_is_found_out() {
    let _turn = crate::turn().await;
    let steps = absences(24);
    let fenced = run(mesh(CLUSTER), &steps, 7, LITTLE).await;
    assert!(fenced.is_fine(7), "what is fenced keeps its word");
    // The same, with coordinators that write whatever they like: see the debug builds of them.
    let unfenced = mesh(CLUSTER).env("FAULTLINE_CHAOS_UNFENCED", "1");
    let outcome = run(unfenced, &steps, 7, LITTLE).await;
    let rules: BTreeSet<Rule> = outcome.violations.iter().map(|violation| violation.rule).collect();
    eprintln!("without fencing: {rules:?}, and {:?}", outcome.odd);
    // Not only what is slow to end: that may have other reasons.
    let torn = rules.iter().any(|rule| *rule != Rule::Unended);
    assert!(torn, "the checker sees no difference: {rules:?}");
}
