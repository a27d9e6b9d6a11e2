//! Random faults on a cluster under load, and the check of its history once all faults are undone.
//!
//! ```sh
//! FAULTLINE_SEED=7 FAULTLINE_SECONDS=60 cargo test -p faultline-tests --test chaos cluster
//! ```
//!
//! repeats one plan, but not the timing of the machine. `FAULTLINE_SEEDS` is the number of random
//! seeds.

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
    fault_injector,
    observations::{self, number},
    plan::{self, Fault, LinkFault, Shape, Step, Target},
    setting,
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

/// Time limits after the faults: for clients to finish, and for the mesh to become idle.
#[derive(Clone, Copy)]
struct Limits {
    finish: Duration,
    settle: Duration,
}

const LIMITS: Limits = Limits { finish: Duration::from_secs(150), settle: Duration::from_secs(60) };
/// For a comparison with a mesh that may never become idle. Both meshes have the same limits, so
/// that a violation is not caused by a shorter time.
const SHORT: Limits = Limits { finish: Duration::from_secs(40), settle: Duration::from_secs(20) };
/// Number of tasks whose events are printed after violations.
const SHOWN: usize = 3;
/// Time for a worker to release cancelled attempts: it drops the agents, and reports the slots with
/// its next heartbeat.
const RELEASE_MAX: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Short, so that leases expire within a plan.
const LEASE: Duration = Duration::from_secs(2);

/// Result of one plan, made by `run` after the check.
struct Outcome {
    violations: Vec<Violation>,
    /// Failures of clients and processes that no fault explains.
    unexpected: Vec<String>,
    tasks: usize,
    resumed: usize,
    attempts_lost: usize,
    refused: usize,
}

fn mesh(shape: Shape) -> Plan {
    // More attempts than faults, and no circuit breaker: no task may fail because of a fault.
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
    if shape.has_server { plan.with(&format!("lease_ms = {}", LEASE.as_millis())) } else { plan }
}

async fn run(mesh: Plan, steps: &[Step], seed: u64, limits: Limits) -> Outcome {
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
    let mut unexpected = fault_injector::run(&mut cluster, steps, Instant::now()).await;
    // All faults are undone: tasks in progress come to their end.
    stop.store(true, Relaxed);
    let mut observations = Vec::new();
    let mut refused = 0;
    let finished = Instant::now() + limits.finish;
    for mut caller in callers {
        let Ok(report) = timeout_at(finished, &mut caller).await else {
            caller.abort();
            unexpected.push("a client is stuck".to_owned());
            continue;
        };
        let report: Report =
            report.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        observations.extend(report.observations);
        unexpected.extend(report.unexpected);
        if !steps.iter().any(|step| step.fault.affects_store()) {
            unexpected.extend(report.early);
        }
        refused += report.refused;
    }
    settle(&cluster, limits.settle).await;
    unexpected.extend(still_computing(&cluster.rpc(), RELEASE_MAX).await);
    let (store, unreadable) = observations::read(&cluster.rpc(), &observations).await;
    let violations = check::check(&observations, &store, &unreadable);
    show(&violations, &store);
    if !violations.is_empty() || !unexpected.is_empty() {
        eprintln!("the logs of the processes are in {}", cluster.dir.keep().display());
    }
    let lost =
        |stored: &observations::Stored| stored.events.iter().filter(|e| e.kind == "lost").count();
    Outcome {
        violations,
        unexpected,
        tasks: observations.len(),
        resumed: observations
            .iter()
            .flat_map(|observed| &observed.views)
            .map(|view| view.resumed)
            .sum(),
        attempts_lost: store.values().map(lost).sum(),
        refused,
    }
}

/// Waits until no task is running, known to a client or not. The checker reports those that are.
async fn settle(cluster: &Cluster, within: Duration) {
    let rpc = cluster.rpc();
    let busy = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"];
    let idle = until("no task is at work", 2 * within, async || {
        let filter = json!({"filter": {"states": busy}, "pageSize": 1});
        let tasks = rpc.mesh("Tasks", filter).await;
        tasks["tasks"].as_array().is_none_or(Vec::is_empty).then_some(())
    });
    if timeout(within, idle).await.is_err() {
        eprintln!("tasks are still running after {within:?}");
    }
}

/// Workers with running attempts although every task has ended, if there are any after `within`.
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
            return Some(format!(
                "no task is running, and these workers are busy after {within:?}: {busy:?}"
            ));
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Prints all violations, and the events of the first tasks with one.
fn show(violations: &[Violation], store: &observations::Store) {
    violations.iter().for_each(|violation| eprintln!("{violation}"));
    let ids: BTreeSet<_> = violations.iter().map(|violation| &violation.task_id).collect();
    for id in ids.into_iter().take(SHOWN) {
        let related = store.iter().filter(|(of, task)| *of == id || task.parent() == Some(id));
        related.for_each(|(id, stored)| eprint!("{id}: {stored}"));
    }
}

impl Outcome {
    /// Prints the result; returns whether there was load and nothing is wrong.
    fn is_fine(&self, seed: u64) -> bool {
        let Self { tasks, resumed, attempts_lost, refused, .. } = self;
        eprintln!(
            "seed {seed}: {tasks} tasks, {attempts_lost} attempts lost, {resumed} streams \
             resumed, {refused} calls refused"
        );
        self.unexpected.iter().for_each(|unexpected| eprintln!("{unexpected}"));
        if *tasks == 0 {
            eprintln!("there was no load");
        }
        self.violations.is_empty() && self.unexpected.is_empty() && *tasks > 0
    }
}

/// Runs every seed, and fails with the commands that repeat the bad ones.
async fn try_seeds(test: &str, shape: Shape, default_seeds: u64, default_seconds: u64) {
    let seconds = setting("FAULTLINE_SECONDS").unwrap_or(default_seconds);
    let seeds: Vec<u64> = match setting("FAULTLINE_SEED") {
        Some(seed) => vec![seed],
        None => match setting("FAULTLINE_SEEDS") {
            Some(count) => (0..count).map(|_| u64::from(rand::random::<u32>())).collect(),
            // Fixed seeds, so that a new failure is caused by a change of the code.
            None => (1..=default_seeds).collect(),
        },
    };
    let count = seeds.len();
    let mut bad = Vec::new();
    for seed in seeds {
        eprintln!("FAULTLINE_SEED={seed} FAULTLINE_SECONDS={seconds} on {shape:?}");
        let steps = plan::draw(seed, shape, Duration::from_secs(seconds));
        // A separate tokio task, so that a panic does not skip the other seeds.
        let tried = tokio::spawn(async move { run(mesh(shape), &steps, seed, LIMITS).await });
        let is_fine = tried.await.is_ok_and(|outcome| outcome.is_fine(seed));
        if !is_fine {
            eprintln!("seed {seed} is bad");
            bad.push(format!(
                "FAULTLINE_SEED={seed} FAULTLINE_SECONDS={seconds} \
                 cargo test -p faultline-tests --test chaos cluster::{test}"
            ));
        }
    }
    let bad_count = bad.len();
    let commands = bad.join("\n");
    assert!(bad.is_empty(), "{bad_count} of {count} seeds are bad; repeat with\n{commands}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_keeps_acknowledged_tasks_under_random_faults() {
    let _turn = crate::turn().await;
    try_seeds("cluster_keeps", CLUSTER, 2, 15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn single_coordinator_keeps_acknowledged_tasks_under_random_faults() {
    let _turn = crate::turn().await;
    try_seeds("single_coordinator", ALONE, 1, 10).await;
}

/// Faults that outlast the lease, after which a coordinator acts on tasks that it no longer owns.
/// Most stall the link to the database, so that delayed writes arrive after a take-over.
fn absences(seconds: u64) -> Vec<Step> {
    let lasts = 2 * LEASE;
    let every = LEASE * 5 / 4;
    let rounds = seconds * 1000 / every.as_millis() as u64;
    let round = |n: u64| {
        let at = Duration::from_millis(500) + every * n as u32;
        let coordinator = n as usize % CLUSTER.coordinators;
        let fault = match n % 4 {
            3 => Fault::Pause(Target::Coordinator(coordinator)),
            _ => Fault::IsolateFromStore(coordinator, LinkFault::Silent),
        };
        Step { at, fault, lasts }
    };
    (0..rounds).map(round).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn checker_detects_a_cluster_without_fencing() {
    let _turn = crate::turn().await;
    let steps = absences(24);
    let fenced = run(mesh(CLUSTER), &steps, 7, SHORT).await;
    assert!(fenced.is_fine(7), "a cluster with fencing breaks no rule");
    // The same with coordinators that ignore ownership, which debug builds allow.
    let unfenced = mesh(CLUSTER).env("FAULTLINE_CHAOS_UNFENCED", "1");
    let outcome = run(unfenced, &steps, 7, SHORT).await;
    let rules: BTreeSet<Rule> = outcome.violations.iter().map(|violation| violation.rule).collect();
    eprintln!("without fencing: {rules:?}, and {:?}", outcome.unexpected);
    // A slow end alone may have other reasons.
    let torn = rules.iter().any(|rule| *rule != Rule::Unended);
    assert!(torn, "the checker reports no violation: {rules:?}");
}
