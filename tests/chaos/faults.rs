//! Continuous faults: a worker is killed every second, one agent fails three of ten attempts and
//! another hangs. Every task still ends as COMPLETED, or as FAILED with a complete failure record.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_chassis::Drain;
use faultline_proto::reason;
use faultline_tests::{
    Cluster, Plan, Rpc,
    rpc::message,
    task::{self, COMPLETED, FAILED, is_final},
    until,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker};
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, interval, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::{check::failure_flaw, setting};

const CLIENTS: u64 = 16;
/// Tasks of healthy agents before the faults begin, for comparison.
const QUIET_TASKS: u64 = 400;
const KILLS_MIN: u64 = 3;
const KILL_EVERY: Duration = Duration::from_secs(1);
/// Deadline of a task that hangs, and the time limit for its end.
const HANG_TIMEOUT: Duration = Duration::from_millis(500);
const HANG_END_MAX: Duration = Duration::from_secs(20);
/// Time limit of all other tasks, retries included.
const TASK_TIME: Duration = Duration::from_secs(120);
const SETTLE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Fails three of ten attempts as UNAVAILABLE.
struct Flaky;

impl Agent for Flaky {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let fails = rand::rng().random_bool(0.3);
        if fails {
            return Err(Error::new(&reason::UNAVAILABLE).because("out for a moment"));
        }
        cx.artifact("flaky", cx.text()).await
    }
}

/// Never returns, and ignores a cancel.
struct Hanging;

impl Agent for Hanging {
    async fn run(&self, _: &Context) -> Result<(), Error> {
        std::future::pending().await
    }
}

/// Attaches a worker with the two faulty agents, in this process, where it is not killed.
async fn attach_faulty_agents(cluster: &Cluster) -> AbortOnDropHandle<()> {
    let coordinator = format!("http://{}", cluster.coordinator_proxies[0].address);
    let mesh = faultline_tests::mesh_config();
    let config = Config { coordinator, mesh, slots: 1024, ..Config::default() };
    let worker =
        Worker::new(config).offer(Offer::new("flaky", Flaky)).offer(Offer::new("hanging", Hanging));
    let service = worker.bind().await.expect("a worker starts");
    let running = AbortOnDropHandle::new(tokio::spawn(async move {
        service.run(Drain::new()).await.expect("a worker runs until it is dropped");
    }));
    until("the faulty agents are attached", SETTLE, async || {
        let agents = cluster.rpc().mesh("Agents", json!({"name": "hanging"})).await;
        (agents["agents"][0]["workers"] == 1).then_some(())
    })
    .await;
    running
}

/// Outcomes of the tasks of one client.
#[derive(Default)]
struct Tally {
    completed: u64,
    failed: BTreeMap<String, u64>,
    /// Calls that were refused with a reason, and repeated.
    refused: BTreeMap<String, u64>,
    /// Durations of tasks of healthy agents.
    healthy: Vec<Duration>,
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { completed, failed, refused, .. } = self;
        write!(f, "{completed} completed, failed {failed:?}, refused {refused:?}")
    }
}

impl Tally {
    fn join(&mut self, other: Tally) {
        self.completed += other.completed;
        self.healthy.extend(other.healthy);
        for (to, from) in [(&mut self.failed, other.failed), (&mut self.refused, other.refused)] {
            from.into_iter().for_each(|(reason, count)| *to.entry(reason).or_default() += count);
        }
    }

    fn ended(&self) -> u64 {
        self.completed + self.failed.values().sum::<u64>()
    }

    fn p99(&mut self) -> Duration {
        self.healthy.sort_unstable();
        self.healthy[self.healthy.len() * 99 / 100]
    }

    fn note(&mut self, task: &Value) {
        match task::state(task) {
            COMPLETED => self.completed += 1,
            _ => *self.failed.entry(check_failed(task)).or_default() += 1,
        }
    }
}

/// Checks the failure record of a failed task and returns its reason.
fn check_failed(task: &Value) -> String {
    assert_eq!(task::state(task), FAILED, "a task may only complete or fail: {task}");
    assert_eq!(failure_flaw(task), None, "the failure record is incomplete");
    let reason = task["metadata"]["faultline.dev/failure"]["reason"].as_str();
    reason.expect("checked").to_owned()
}

/// The reason in the error of a refused call.
fn refusal(error: &Value) -> String {
    let reasons = error["data"].as_array().into_iter().flatten();
    let reason = reasons.filter_map(|detail| detail["reason"].as_str()).next();
    let reason = reason.unwrap_or_else(|| panic!("refused without a reason: {error}"));
    assert!(reason::named(reason).is_some(), "the reason is not in the table: {error}");
    reason.to_owned()
}

struct Client {
    rpc: Rpc,
    tally: Tally,
}

impl Client {
    async fn one(&mut self, number: u64) {
        match number % 100 {
            0 => self.hang().await,
            1..30 => self.send("flaky", "x").await,
            30..60 => {
                let script = "delegate script { chunk a; sleep 20ms; delegate flaky { x } }";
                self.send("script", script).await;
            }
            _ => {
                let start = Instant::now();
                self.send("echo", "hello").await;
                self.tally.healthy.push(start.elapsed());
            }
        }
    }

    async fn send(&mut self, agent: &str, text: &str) {
        let rpc = self.rpc.agent(agent).within(TASK_TIME);
        let sent = self.accepted(&rpc, message(text)).await;
        self.tally.note(&sent["task"]);
    }

    /// Sends a task that only its deadline ends.
    async fn hang(&mut self) {
        let rpc = self.rpc.agent("hanging");
        let rpc = rpc.header("faultline-timeout-ms", HANG_TIMEOUT.as_millis());
        let mut params = message("x");
        params["configuration"] = json!({"returnImmediately": true});
        let sent = self.accepted(&rpc, params).await;
        let id = task::id(&sent["task"]);
        let ended = until("a hanging task is ended by its deadline", HANG_END_MAX, async || {
            Some(rpc.task(id).await).filter(|task| is_final(task::state(task)))
        });
        self.tally.note(&ended.await);
    }

    /// Repeats a call until it is accepted.
    async fn accepted(&mut self, rpc: &Rpc, params: Value) -> Value {
        let end = Instant::now() + TASK_TIME;
        loop {
            match rpc.call("SendMessage", params.clone()).await {
                Ok(sent) => return sent,
                Err(error) => *self.tally.refused.entry(refusal(&error)).or_default() += 1,
            }
            assert!(Instant::now() < end, "refused until the time limit: {:?}", self.tally.refused);
            sleep(PAUSE).await;
        }
    }
}

/// Hands out task numbers until enough tasks are sent and enough workers are killed.
struct Work {
    next: AtomicU64,
    count: u64,
    kills: AtomicU64,
    kills_min: u64,
}

impl Work {
    fn new(count: u64, kills_min: u64) -> Arc<Self> {
        Arc::new(Self { next: AtomicU64::new(0), count, kills: AtomicU64::new(0), kills_min })
    }

    fn draw(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Relaxed);
        (number < self.count || self.kills.load(Relaxed) < self.kills_min).then_some(number)
    }
}

async fn run(rpc: &Rpc, work: &Arc<Work>, only_healthy: bool) -> Tally {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (work, rpc) = (Arc::clone(work), rpc.clone());
            tokio::spawn(async move {
                let mut client = Client { rpc, tally: Tally::default() };
                while let Some(number) = work.draw() {
                    client.one(if only_healthy { 99 } else { number }).await;
                }
                client.tally
            })
        })
        .collect();
    let mut tally = Tally::default();
    for client in clients {
        tally.join(client.await.expect("no client panics"));
    }
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn every_task_ends_with_a_reason_while_workers_die_and_agents_fail() {
    let _turn = crate::turn().await;
    let count = setting("FAULTLINE_TASKS").unwrap_or(500);
    let plan = Plan::default()
        .workers(&["echo", "script", "script"])
        .with("reattach_grace_ms = 300")
        .with("heartbeat_ms = 200")
        .with("max_attempts = 10")
        .slots(1024);
    let mut cluster = plan.start().await;
    let _faulty = attach_faulty_agents(&cluster).await;
    let rpc = cluster.rpc();
    let mut quiet = run(&rpc, &Work::new(QUIET_TASKS, 0), true).await;

    let start = Instant::now();
    let work = Work::new(count, KILLS_MIN);
    let clients = run(&rpc, &work, false);
    tokio::pin!(clients);
    let mut ticks = interval(KILL_EVERY);
    ticks.tick().await;
    let mut tally = loop {
        tokio::select! {
            tally = &mut clients => break tally,
            _ = ticks.tick() => {}
        }
        let killed = work.kills.fetch_add(1, Relaxed);
        let worker = &mut cluster.workers[1 + killed as usize % 2];
        tokio::select! {
            tally = &mut clients => break tally,
            () = async { worker.kill().await; worker.restart().await } => {}
        }
    };
    let took = start.elapsed();
    let kills = work.kills.load(Relaxed);
    let before = quiet.p99();
    let during = tally.p99();
    eprintln!("{} tasks in {took:.1?}, {kills} workers killed: {tally:?}", tally.ended());
    eprintln!("p99 of healthy agents: {before:.1?} without faults, {during:.1?} with faults");

    assert!(tally.ended() >= count && kills >= KILLS_MIN, "there was too little load");
    assert!(
        tally.completed > 0 && tally.healthy.len() as u64 > count / 4,
        "too few tasks completed"
    );
    assert!(tally.failed.contains_key("TASK_TIMEOUT"), "no task hung");
    check_store(&rpc).await;
}

/// No task is running, and every failed task, delegated ones included, has a complete record.
async fn check_store(rpc: &Rpc) {
    for state in ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"] {
        until(&format!("no task is in {state}"), SETTLE, async || {
            let listed = rpc.call("ListTasks", json!({"status": state, "pageSize": 1})).await;
            let listed = listed.expect("tasks can be listed");
            (listed["totalSize"].as_u64().unwrap_or(0) == 0).then_some(())
        })
        .await;
    }
    let mut page = json!("");
    loop {
        let params = json!({"status": FAILED, "pageSize": 100, "pageToken": page});
        let listed = rpc.call("ListTasks", params).await.expect("tasks can be listed");
        for task in listed["tasks"].as_array().into_iter().flatten() {
            check_failed(task);
        }
        page = listed["nextPageToken"].clone();
        if page.as_str().is_none_or(str::is_empty) {
            return;
        }
    }
}
