//! Deadlines of tasks: shrinking budgets along a chain, expiry in a queue, waiting for people, and
//! restarts of the coordinator.

use std::{sync::Mutex, time::Duration};

use faultline::LocalMesh;
use faultline_tests::{
    Plan, Rpc, in_process,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING, is_final},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker};
use serde_json::{Value, json};
use tokio::sync::oneshot;

const TIMEOUT: &str = "faultline-timeout-ms";

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

async fn tasks(rpc: &Rpc) -> Vec<Value> {
    let list = rpc.call("ListTasks", json!({"pageSize": 100})).await.expect("tasks are listed");
    list["tasks"].as_array().expect("tasks are a list").clone()
}

/// Delegates its message to the next agent; the last agent sleeps.
struct Hop(Option<&'static str>);

impl Agent for Hop {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        match self.0 {
            Some(next) => cx.delegate(next, cx.text()).await.map(|_| ()),
            None => cx.sleep(Duration::from_secs(60)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn innermost_hop_expires_first_and_the_chain_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let hops = [("top", Some("middle")), ("middle", Some("bottom")), ("bottom", None)];
    let build = |config| {
        let offers = hops.map(|(name, next)| Offer::new(name, Hop(next)));
        offers.into_iter().fold(Worker::new(config), Worker::offer)
    };
    mesh.attach(Config::default(), build).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr());
    // Each hop reserves a twentieth of its time for the way back. For two hops that is most of a
    // second, enough for a busy disk.
    let top = rpc.agent("top").header(TIMEOUT, 8000).send("go").await;
    assert_eq!(task::state(&top), FAILED, "{top}");
    let seen = failure(&top);
    assert_eq!((&seen["reason"], &seen["hop"]), (&json!("TASK_TIMEOUT"), &json!(2)), "{seen}");
    assert_eq!(seen["code"], 4, "DEADLINE_EXCEEDED and not CANCELLED: {seen}");
    assert_eq!(seen["origin"]["agent"], "bottom", "{seen}");
    assert_eq!((&seen["retryable"], &seen["retryAfter"]), (&json!(false), &json!("10s")), "{seen}");
    let message = seen["publicMessage"].as_str().unwrap();
    assert!(message.starts_with("bottom: agent 'bottom' did not finish within "), "{seen}");
    assert!(message.ends_with(" (via middle)"), "{seen}");
    let tasks = tasks(&rpc).await;
    assert_eq!(tasks.len(), 3);
    for task in &tasks {
        assert_eq!(task::state(task), FAILED, "no task is left running: {task}");
    }
    // Each task has less time than its parent, and operators see the limits.
    let mut limits = Vec::new();
    for task in &tasks {
        let inspected = rpc.inspect(task::id(task)).await;
        let agent = inspected["agent"].as_str().unwrap().to_owned();
        let limit: u64 = inspected["timeoutMs"].as_str().unwrap().parse().unwrap();
        assert!(inspected["remainingMs"].is_string(), "{inspected}");
        limits.push((limit, agent));
    }
    limits.sort();
    let agents: Vec<_> = limits.iter().map(|(_, agent)| agent.as_str()).collect();
    assert_eq!((agents, limits[2].0), (vec!["bottom", "middle", "top"], 8000), "{limits:?}");
    let bottom = tasks.iter().find(|t| failure(t)["hop"].is_null()).expect("one is the origin");
    let text = failure(bottom)["publicMessage"].as_str().unwrap();
    assert!(text.starts_with("agent 'bottom' did not finish within "), "{text}");
    until("every slot is free", SOON, async || {
        let workers = rpc.mesh("Workers", json!({})).await;
        let used = |w: &Value| w["used"].as_u64().unwrap_or(0) == 0;
        workers["workers"].as_array().unwrap().iter().all(used).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_task_expires() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    config.worker.slots = 1;
    let mesh = LocalMesh::start(config).await.unwrap();
    let script = Rpc::at(mesh.gateway_addr()).agent("script");
    let first = script.send_immediately("sleep 60s").await;
    let second = script.header(TIMEOUT, 200).send("chunk x").await;
    assert_eq!(failure(&second)["reason"], "TASK_TIMEOUT", "{second}");
    let inspected = script.inspect(task::id(&second)).await;
    assert!(inspected.get("attempts").is_none(), "no attempt was made: {inspected}");
    assert_eq!(task::state(&script.task(task::id(&first)).await), WORKING);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_of_a_person_does_not_count_against_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let script = Rpc::at(mesh.gateway_addr()).agent("script");
    let asked = script.header(TIMEOUT, 1000).send("delegate script { ask \"well?\" }").await;
    assert_eq!(task::state(&asked), INPUT_REQUIRED);
    // Nothing may happen in this time.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let still = script.task(task::id(&asked)).await;
    assert_eq!(task::state(&still), INPUT_REQUIRED);
    let done = script.call("SendMessage", answer(task::id(&asked), "yes")).await.unwrap();
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
    for task in tasks(&script).await {
        assert_eq!(task::state(&task), COMPLETED, "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn question_outlasts_every_timeout() {
    let plan = Plan::default()
        .with("reattach_grace_ms = 200")
        .with("wait_for_worker_ms = 200")
        .with("heartbeat_ms = 200");
    let mut cluster = plan.start().await;
    let script = cluster.rpc().agent("script");
    let hasty = script.header(TIMEOUT, 300);
    let answered = hasty.send("ask \"well?\"; chunk $answer").await;
    let canceled = hasty.send("ask \"well?\"").await;
    let interrupt = &answered["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    assert!(interrupt["expiresAt"].is_null(), "a question does not expire by default: {interrupt}");
    cluster.workers[0].kill().await;
    // Nothing may happen in this time, without a worker.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for asked in [&answered, &canceled] {
        assert_eq!(script.task(task::id(asked)).await, *asked, "the task is unchanged");
    }
    let ended = script.call("CancelTask", json!({"id": task::id(&canceled)})).await.unwrap();
    assert_eq!(task::state(&ended), CANCELED);
    cluster.workers[0].restart().await;
    let done = script.call("SendMessage", answer(task::id(&answered), "yes")).await.unwrap();
    assert_eq!(task::artifacts(&done["task"])["output"], "yes", "{done}");
}

/// Sleeps until 60 ms are left, delegates, and reports the remaining time and the refusal.
struct Late(Mutex<Option<oneshot::Sender<(Duration, String)>>>);

impl Agent for Late {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let left = cx.remaining().expect("the task has a deadline");
        tokio::time::sleep(left.saturating_sub(Duration::from_millis(60))).await;
        let left = cx.remaining().unwrap_or_default();
        let refused =
            cx.delegate("echo", "quick").await.expect_err("the remaining time is too short");
        if let Some(report) = self.0.lock().expect("the lock is not poisoned").take() {
            let _ = report.send((left, format!("{refused:?}")));
        }
        Err(refused)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delegation_without_enough_time_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let (report, received) = oneshot::channel();
    let offer = Offer::new("late", Late(Mutex::new(Some(report)))).timeout(Duration::from_secs(1));
    mesh.attach(Config::default(), |config| Worker::new(config).offer(offer)).await.unwrap();
    let late = Rpc::at(mesh.gateway_addr()).agent("late");
    let task = late.send("go").await;
    assert_eq!(task::state(&task), FAILED, "{task}");
    let (left, refused) = received.await.expect("the agent was refused");
    assert!(left <= Duration::from_millis(60), "the agent sees its remaining time: {left:?}");
    // On a busy machine the task may expire before its call is handled.
    if failure(&task)["reason"] != "TASK_TIMEOUT" {
        assert_eq!(failure(&task)["reason"], "DEADLINE_BUDGET_EXHAUSTED", "{task}");
        assert_eq!(failure(&task)["origin"]["agent"], "late", "{task}");
        assert!(refused.contains("agent 'late' has "), "{refused}");
    }
    assert_eq!(tasks(&late.agent("echo")).await.len(), 0, "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_continues_after_a_coordinator_restart() {
    let mut cluster = Plan::default().start().await;
    let script = cluster.rpc().agent("script");
    let task = script.header(TIMEOUT, 3000).send_immediately("sleep 60s").await;
    let id = task::id(&task);
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    let ended = until("the task has expired", SOON, async || {
        let found = script.try_call("GetTask", json!({"id": id})).await.ok()?.ok()?;
        is_final(task::state(&found)).then_some(found)
    })
    .await;
    assert_eq!(failure(&ended)["reason"], "TASK_TIMEOUT", "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_timeout_ends_the_call_and_a_deadline_ends_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let script = Rpc::at(mesh.gateway_addr()).agent("script").header("prefer", "wait=1");
    let refused = script.call("SendMessage", message("sleep 1500ms; chunk x")).await.unwrap_err();
    assert_eq!(refused["code"], -31004, "{refused}");
    let id = refused["data"][0]["metadata"]["taskId"].as_str().expect("the failure names the task");
    let text = refused["message"].as_str().unwrap();
    assert!(text.contains(id) && text.contains("GetTask"), "the message has the remedy: {text}");
    let done = until("the task has ended", SOON, async || {
        Some(script.task(id).await).filter(|t| is_final(task::state(t)))
    })
    .await;
    assert_eq!(task::artifacts(&done)["output"], "x");
    let task = script.header(TIMEOUT, 200).send("sleep 60s").await;
    assert_eq!(failure(&task)["reason"], "TASK_TIMEOUT", "{task}");
}
