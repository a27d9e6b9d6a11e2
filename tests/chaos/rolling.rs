//! Rolling restart under load: every process drains and is started again, one after the other. No
//! call may fail, with an idempotency key or without, except calls to a gateway while it restarts,
//! and the other gateway serves those.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_client::{Answer, Client, Draft, Retry, a2a::TaskState, text};
use faultline_tests::{
    Cluster, Plan, Process,
    task::{self, COMPLETED},
    until,
    wait::SOON,
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    check,
    observations::{self, Expected, Observation},
};

const CLIENTS_A_GATEWAY: usize = 4;
/// Time limit for a process to drain. A worker finishes its attempts or hands them back.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// Time limit for the clients to finish after the last restart.
const FINISH: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
/// Tasks that must end between two restarts.
const TASKS_BETWEEN: usize = 20;

/// A failed call: its gateway, and the time that it took.
struct Refused {
    gateway: usize,
    from: Instant,
    to: Instant,
    error: String,
}

#[derive(Default)]
struct Report {
    observations: Vec<Observation>,
    refused: Vec<Refused>,
}

/// One client of the load. Its task owns it for the run and returns its report.
struct Caller {
    name: usize,
    /// Its preferred gateway, which it calls first.
    gateway: usize,
    clients: Vec<Client>,
    /// Whether sends have idempotency keys. Without one, a broken send is not repeated by the mesh.
    has_keys: bool,
    sent: usize,
    done: Arc<std::sync::atomic::AtomicUsize>,
    report: Report,
}

impl Caller {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Report {
        while !stop.load(Relaxed) {
            self.sent += 1;
            match self.sent % 3 {
                0 => self.follow().await,
                1 => self.send("sleep 30ms; delegate script { CHUNKS }").await,
                _ => self.send("CHUNKS").await,
            }
            self.done.fetch_add(1, Relaxed);
            sleep(PAUSE).await;
        }
        self.report
    }

    /// A script that runs longer than the drain of a coordinator.
    fn script(&self, around: &str) -> (String, String) {
        let chunks = (1..6).map(|n| format!("{}.{}.{n} ", self.name, self.sent));
        let steps = chunks.clone().map(|chunk| format!("chunk \"{chunk}\"; sleep 100ms; "));
        (around.replace("CHUNKS", &steps.collect::<String>()), chunks.collect())
    }

    fn draft(&self, script: String) -> Draft {
        let draft = text(script);
        if self.has_keys { draft.idempotent() } else { draft }
    }

    /// Calls its preferred gateway, then the other, which must succeed.
    async fn send(&mut self, around: &str) {
        let (script, expected) = self.script(around);
        let draft = self.draft(script);
        let message_id = draft.message_id().to_owned();
        for turn in 0..self.clients.len() {
            let gateway = (self.gateway + turn) % self.clients.len();
            let from = Instant::now();
            match self.clients[gateway].send(draft.clone()).await {
                Ok(Answer::Task(task)) => {
                    return self.note(&task.id, message_id, expected);
                }
                Ok(Answer::Message(message)) => panic!("a message instead of a task: {message:?}"),
                Err(error) => self.refused(gateway, from, error.to_string()),
            }
        }
        self.refused_by_all();
    }

    /// Follows a task; the client library resumes a broken stream.
    async fn follow(&mut self) {
        let (script, expected) = self.script("CHUNKS");
        let draft = self.draft(script);
        let message_id = draft.message_id().to_owned();
        for turn in 0..self.clients.len() {
            let gateway = (self.gateway + turn) % self.clients.len();
            let from = Instant::now();
            let mut follow = match self.clients[gateway].follow(draft.clone()).await {
                Ok(follow) => follow,
                Err(error) => {
                    self.refused(gateway, from, error.to_string());
                    continue;
                }
            };
            let mut seqs = Vec::new();
            while let Some(event) = follow.next().await {
                let event = event.unwrap_or_else(|e| panic!("a stream is not resumed: {e}"));
                seqs.push(event.seq);
            }
            assert!(seqs.is_sorted_by(|a, b| a < b), "each event once and in order: {seqs:?}");
            let task = follow.task_so_far();
            let state = task.status.as_ref().map(|status| status.state());
            assert_eq!(state, Some(TaskState::Completed), "{task:?}");
            let id = task.id.clone();
            return self.note(&id, message_id, expected);
        }
        self.refused_by_all();
    }

    fn refused_by_all(&self) -> ! {
        let last = self.report.refused.iter().rev().take(self.clients.len());
        let errors: Vec<_> = last.map(|refused| refused.error.as_str()).collect();
        panic!("no gateway accepted a call: {errors:?}");
    }

    fn note(&mut self, id: &str, message_id: String, expected: String) {
        self.report.observations.push(Observation {
            client: format!("client {} of gateway {}", self.name, self.gateway),
            task_id: id.to_owned(),
            message_id,
            expected: Expected::Artifact("output", expected),
            answered: None,
            finals: vec![COMPLETED.to_owned()],
            views: Vec::new(),
            canceling: false,
        });
    }

    fn refused(&mut self, gateway: usize, from: Instant, error: String) {
        self.report.refused.push(Refused { gateway, from, to: Instant::now(), error });
    }
}

/// Drains and restarts a process; returns when it was away.
async fn roll(process: &mut Process) -> (Instant, Instant) {
    let from = Instant::now();
    process.terminate().await;
    let ended = process.exit_within(DRAIN_MAX).await;
    let code = ended.map(|status| status.code());
    assert_eq!(
        code,
        Some(Some(0)),
        "{} drains with exit code 0: {}",
        process.name(),
        process.log()
    );
    process.restart().await;
    (from, Instant::now())
}

async fn roll_out(shape: Plan) {
    let _turn = crate::turn().await;
    let mut cluster = shape.start().await;
    let urls: Vec<_> =
        cluster.addresses.iter().map(|address| format!("http://{address}")).collect();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let callers: Vec<_> = (0..CLIENTS_A_GATEWAY * urls.len())
        .map(|name| {
            // No retries: this test must see failures. Streams are still resumed.
            let client = |url: &String| Client::builder(url).retry(Retry::never()).direct();
            let clients = urls.iter().map(|url| client(url).expect("a URL").agent("script"));
            let caller = Caller {
                name,
                gateway: name % urls.len(),
                clients: clients.collect(),
                has_keys: name / urls.len() % 2 == 0,
                sent: 0,
                done: Arc::clone(&done),
                report: Report::default(),
            };
            tokio::spawn(caller.run(Arc::clone(&stop)))
        })
        .collect();
    let load = async || {
        let before = done.load(Relaxed);
        until("there is load", 2 * SOON, async || {
            (done.load(Relaxed) >= before + TASKS_BETWEEN).then_some(())
        })
        .await;
    };
    let mut away = Vec::new();
    load().await;
    // A single coordinator has no replacement.
    for n in (0..cluster.coordinators.len()).filter(|_| cluster.coordinator_proxies.len() > 1) {
        roll(&mut cluster.coordinators[n]).await;
        load().await;
    }
    for n in 0..cluster.gateways.len() {
        away.push(roll(&mut cluster.gateways[n]).await);
        load().await;
    }
    for n in 0..cluster.workers.len() {
        roll(&mut cluster.workers[n]).await;
        load().await;
    }
    stop.store(true, Relaxed);
    let mut all = Report::default();
    for caller in callers {
        let report = timeout(FINISH, caller).await.expect("no client is stuck");
        let report = report.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        all.observations.extend(report.observations);
        all.refused.extend(report.refused);
    }
    let count = all.observations.len();
    let refused = all.refused.len();
    eprintln!("{count} tasks, {refused} calls to a restarting gateway");
    for Refused { gateway, from, to, error } in &all.refused {
        let (left, back) = away[*gateway];
        assert!(*from < back && *to > left, "gateway {gateway} was not restarting: {error}");
    }
    check_all(&cluster, &all.observations).await;
}

/// All tasks completed without a lost attempt, those unknown to clients included.
async fn check_all(cluster: &Cluster, observations: &[Observation]) {
    let rpc = cluster.rpc();
    until("no task is running", 2 * SOON, async || {
        let filter = json!({"filter": {"states": ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"]}});
        let tasks = rpc.mesh("Tasks", filter).await;
        tasks["tasks"].as_array().is_none_or(Vec::is_empty).then_some(())
    })
    .await;
    let (store, unreadable) = observations::read(&rpc, observations).await;
    let violations = check::check(observations, &store, &unreadable);
    violations.iter().for_each(|violation| eprintln!("{violation}"));
    assert!(violations.is_empty(), "{} violations", violations.len());
    for stored in store.values() {
        let task = &stored.inspected["task"];
        assert_eq!(task::state(task), COMPLETED, "{}", stored.inspected);
        let lost = stored.events.iter().find(|event| {
            // A drained worker releases its attempts, and no attempt counts as lost.
            event.kind == "lost" && event.body["released"] != true
        });
        assert!(lost.is_none(), "an attempt was lost: {lost:?} of {}", stored.inspected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_of_every_process_fails_no_call() {
    let plan = Plan::replicas(3).gateways(2).workers(&["script"; 3]);
    roll_out(plan.with("lease_ms = 3000")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_of_workers_and_gateways_needs_one_coordinator_only() {
    roll_out(Plan::default().gateways(2).workers(&["script"; 3])).await;
}
