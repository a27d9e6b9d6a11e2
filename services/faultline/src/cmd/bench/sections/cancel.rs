//! The cost of cancellation: one cancel of a root task with hundreds of live descendants on many
//! workers. The workers run in this process, attached over sockets, so that the time at which each
//! agent receives the stop is observed directly.

use std::{
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use faultline_chassis::{Drain, MeshConfig};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker};
use futures::future::try_join_all;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::cmd::bench::{
    Report,
    chain::{
        Chain,
        process::{ScratchDir, TOKEN},
    },
    figures::{human, round},
    load::rpc::{call, message, post, request},
    progress,
};

const WORKERS: usize = 20;
/// The subtasks of the root, and the subtasks of each of them: 500 descendants in total.
const BRANCHES: usize = 20;
const LEAVES: usize = 24;
const TASKS: usize = 1 + BRANCHES + BRANCHES * LEAVES;
const ROUNDS: usize = 5;
/// Bound on the time until every task is canceled in the store, and on the time until no agent
/// runs.
const STORED_MAX: Duration = Duration::from_secs(1);
const QUIET_AFTER: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The observations of the agents. The agents update it; the section reads and resets it.
#[derive(Default)]
struct StopObserver {
    /// The number of agents that have begun, and of those that still run.
    begun: AtomicUsize,
    running: AtomicUsize,
    /// The time at which each agent received the stop.
    notified: Mutex<Vec<Instant>>,
}

/// A guard that counts an agent as running.
struct RunningGuard<'a>(&'a StopObserver);

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

/// An agent that delegates to `below` others and waits for them; the leaves wait for ever.
struct Node {
    next: &'static str,
    below: usize,
    observer: Arc<StopObserver>,
}

impl Agent for Node {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        self.observer.begun.fetch_add(1, SeqCst);
        self.observer.running.fetch_add(1, SeqCst);
        let _runs = RunningGuard(&self.observer);
        let work = async {
            let below = (0..self.below).map(|n| cx.delegate(self.next, "go").key(n.to_string()));
            try_join_all(below.map(IntoFuture::into_future)).await?;
            std::future::pending::<Result<(), Error>>().await
        };
        tokio::select! {
            biased;
            () = cx.cancelled() => {
                self.observer.notified.lock().push(Instant::now());
                Ok(())
            }
            done = work => done,
        }
    }
}

impl StopObserver {
    fn worker(self: &Arc<Self>, config: Config) -> Worker {
        let node = |next, below| Node { next, below, observer: Arc::clone(self) };
        Worker::new(config)
            .offer(Offer::new("root", node("branch", BRANCHES)))
            .offer(Offer::new("branch", node("leaf", LEAVES)))
            .offer(Offer::new("leaf", node("", 0)))
    }

    /// Resets the observations before the next round.
    fn reset(&self) {
        self.begun.store(0, SeqCst);
        self.notified.lock().clear();
    }

    fn notified(&self) -> Vec<Instant> {
        self.notified.lock().clone()
    }
}

/// The times of one cancel, counted from its send.
struct Round {
    answered: Duration,
    stored: Duration,
    notified: Duration,
    /// The CPU time of the servers, which other load on the machine affects less.
    cpu: Option<Duration>,
    /// The number of tasks not canceled and of agents running after `QUIET_AFTER`.
    left: usize,
}

pub(crate) async fn run() -> anyhow::Result<Report> {
    let scratch = ScratchDir::new("cancel")?;
    let mut mesh = Chain::mesh(scratch.path(), "echo").await?;
    let coordinator = format!("http://{}", mesh.coordinator_mut()?.address);
    let observer = Arc::new(StopObserver::default());
    let workers = attach(&observer, &coordinator).await?;
    wait_until("all workers are attached", async || {
        let (attached, _) = attached_and_used(mesh.address).await?;
        // Every mesh of the bench has one more worker.
        Ok((attached == WORKERS + 1).then_some(()))
    })
    .await?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        progress(&format!("round {} of {ROUNDS}", round + 1));
        rounds.push(cancel(&mesh, &observer).await?);
    }
    drop(workers);
    mesh.stop().await?;
    Ok(report(&rounds))
}

/// Attaches workers. A drop of the handles stops them.
async fn attach(
    observer: &Arc<StopObserver>,
    coordinator: &str,
) -> anyhow::Result<Vec<AbortOnDropHandle<()>>> {
    let mut workers = Vec::new();
    for n in 0..WORKERS {
        let coordinator = coordinator.to_owned();
        let name = Some(format!("w-{n}"));
        let mesh = MeshConfig { token: Some(TOKEN.clone()), ..MeshConfig::default() };
        let service =
            observer.worker(Config { coordinator, name, mesh, ..Config::default() }).bind();
        let service = service.await.context("a worker cannot start")?;
        let running = async move {
            if let Err(error) = service.run(Drain::new()).await {
                eprintln!("a worker of the bench ended: {error}");
            }
        };
        workers.push(AbortOnDropHandle::new(tokio::spawn(running)));
    }
    Ok(workers)
}

async fn cancel(chain: &Chain, observer: &StopObserver) -> anyhow::Result<Round> {
    let mesh = chain.address;
    observer.reset();
    let before = count_in_state(mesh, "CANCELED").await?;
    let mut params = message(&json!({ "parts": [{ "text": "go" }] }));
    params["configuration"] = json!({ "returnImmediately": true });
    let sent = call(mesh, &request("/agents/root", "SendMessage", &params)).await?;
    let id = sent["result"]["task"]["id"].as_str().with_context(|| format!("no task: {sent}"))?;
    wait_until("all run", async || Ok((observer.begun.load(SeqCst) == TASKS).then_some(())))
        .await?;

    let start = Instant::now();
    let busy = chain.cpu();
    let canceled = call(mesh, &request("/", "CancelTask", &json!({ "id": id }))).await?;
    let answered = start.elapsed();
    ensure!(canceled["error"].is_null(), "the cancel was refused: {canceled}");
    wait_until("all are canceled", async || {
        Ok((count_in_state(mesh, "CANCELED").await? == before + TASKS).then_some(()))
    })
    .await?;
    let stored = start.elapsed();
    wait_until("all are notified", async || Ok((observer.notified().len() == TASKS).then_some(())))
        .await?;
    let notified =
        observer.notified().into_iter().max().map_or(Duration::ZERO, |last| last - start);

    let cpu = chain.cpu().zip(busy).map(|(after, before)| after - before);

    sleep(QUIET_AFTER.saturating_sub(start.elapsed())).await;
    let (_, used) = attached_and_used(mesh).await?;
    let live = count_in_state(mesh, "SUBMITTED").await? + count_in_state(mesh, "WORKING").await?;
    let left = observer.running.load(SeqCst) + used + live;
    Ok(Round { answered, stored, notified, cpu, left })
}

async fn wait_until<T>(
    what: &str,
    look: impl AsyncFn() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        sleep(POLL_INTERVAL).await;
    }
    bail!("not in time: {what}")
}

/// The number of stored tasks in a state.
async fn count_in_state(mesh: SocketAddr, state: &str) -> anyhow::Result<usize> {
    let params = json!({ "status": format!("TASK_STATE_{state}"), "pageSize": 1 });
    let list = call(mesh, &request("/", "ListTasks", &params)).await?;
    let total = list["result"]["totalSize"].as_u64();
    Ok(total.with_context(|| format!("no list: {list}"))? as usize)
}

/// The number of attached workers and of their used slots.
async fn attached_and_used(mesh: SocketAddr) -> anyhow::Result<(usize, usize)> {
    let workers = call(mesh, &post("/mesh/Workers", &json!({}))).await?;
    let workers = workers["workers"].as_array().context("no workers")?;
    let used = workers.iter().filter_map(|worker| worker["used"].as_u64()).sum::<u64>();
    Ok((workers.iter().filter(|worker| worker["attached"] == true).count(), used as usize))
}

fn report(rounds: &[Round]) -> Report {
    let worst = |of: fn(&Round) -> Duration| rounds.iter().map(of).max().unwrap_or_default();
    let stored = worst(|round| round.stored);
    let notified = worst(|round| round.notified);
    let left: usize = rounds.iter().map(|round| round.left).sum();
    let holds = |yes| if yes { "holds" } else { "DOES NOT HOLD" };
    let soon = human(STORED_MAX);
    let quiet = QUIET_AFTER.as_secs();
    let mut text = format!(
        "A root with {} live descendants on {WORKERS} workers is canceled, {ROUNDS} times\n",
        TASKS - 1
    );
    for round in rounds {
        let _ = writeln!(
            text,
            "  answered after {}, all canceled in the store after {}, all agents notified after \
             {}{}",
            human(round.answered),
            human(round.stored),
            human(round.notified),
            round.cpu.map(|cpu| format!(", CPU {}", human(cpu))).unwrap_or_default(),
        );
    }
    let _ = writeln!(
        text,
        "  canceled in the store: at most {} < {soon}: {}\n  \
         agents notified: at most {}\n  \
         running or taking a slot {quiet} s later: {left} = 0: {}",
        human(stored),
        holds(stored < STORED_MAX),
        human(notified),
        holds(left == 0),
    );
    let ms = |span: Duration| round(span.as_secs_f64() * 1e3, 1);
    let json = json!({
        "descendants": TASKS - 1,
        "workers": WORKERS,
        "stored_max_ms": ms(STORED_MAX),
        "rounds": rounds.iter().map(|round| json!({
            "answered_ms": ms(round.answered),
            "stored_ms": ms(round.stored),
            "told_ms": ms(round.notified),
            "cpu_ms": round.cpu.map(ms),
            "left_after_2_s": round.left,
        })).collect::<Vec<_>>(),
        "holds": stored < STORED_MAX && left == 0,
    });
    Report { text, json, failed: left as u64 }
}
