//! Cancellation of tasks and their descendants in every state. An agent that ignores the cancel
//! becomes an orphan: it occupies a slot of its worker and delays no caller.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use faultline_tests::{
    Rpc,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, WORKING},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker};
use futures::future::{join_all, try_join_all};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Running, start, start_with};

async fn cancel(rpc: &Rpc, id: &str) -> Result<Value, Value> {
    rpc.call("CancelTask", json!({"id": id})).await
}

async fn worker(rpc: &Rpc, name: &str) -> Value {
    let workers = rpc.mesh("Workers", json!({})).await;
    let mut all = workers["workers"].as_array().expect("a list").iter();
    all.find(|w| w["name"] == name).unwrap_or_else(|| panic!("no {name}: {workers}")).clone()
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or(0)
}

/// Waits until the worker reports these numbers of used slots and orphans.
async fn worker_has(rpc: &Rpc, name: &str, used: u64, orphans: u64) {
    until(&format!("{name} has {used} used, {orphans} orphans"), SOON, async || {
        let worker = worker(rpc, name).await;
        let has = (number(&worker, "used"), number(&worker, "orphans"));
        (has == (used, orphans)).then_some(())
    })
    .await;
}

async fn until_working(rpc: &Rpc, id: &str) {
    until("the task works", SOON, async || {
        (task::state(&rpc.task(id).await) == WORKING).then_some(())
    })
    .await;
}

/// Ignores cancellation until the test drops its guard. A blocked thread cannot be aborted; an
/// async loop can.
struct Stubborn {
    blocks: bool,
    held: Weak<()>,
}

impl Agent for Stubborn {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.status("started").await?;
        cx.settled().await?;
        while self.held.strong_count() > 0 {
            if self.blocks {
                std::thread::sleep(Duration::from_millis(10))
            } else {
                tokio::time::sleep(Duration::from_millis(10)).await
            }
        }
        cx.artifact("late", "but done").await
    }
}

async fn with_stubborn(blocks: bool) -> (Running, Rpc, Arc<()>) {
    let mut up = start().await;
    let hold = Arc::new(());
    let offer = Offer::new("stubborn", Stubborn { blocks, held: Arc::downgrade(&hold) });
    let config = Config { name: Some("stubborn".into()), slots: 2, ..Config::default() };
    up.mesh
        .attach(config, |config| Worker::new(config).offer(offer))
        .await
        .expect("a worker attaches");
    let stubborn = up.rpc.agent("stubborn");
    (up, stubborn, hold)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn agent_that_cannot_be_stopped_is_an_orphan_until_it_ends() {
    let (_up, stubborn, hold) = with_stubborn(true).await;
    let sent = stubborn.send_immediately("go").await;
    let id = task::id(&sent);
    until("the agent has started", SOON, async || {
        let status = stubborn.task(id).await["status"]["message"].clone();
        (task::text(&status) == "started").then_some(())
    })
    .await;
    let before = Instant::now();
    let canceled = cancel(&stubborn, id).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    assert!(before.elapsed() < Duration::from_secs(2), "the cancel does not wait for the agent");
    assert_eq!(
        number(&worker(&stubborn, "stubborn").await, "orphans"),
        0,
        "an orphan only after the stop timeout"
    );
    worker_has(&stubborn, "stubborn", 1, 1).await;
    assert!(before.elapsed() >= Duration::from_secs(5));
    drop(hold);
    worker_has(&stubborn, "stubborn", 0, 0).await;
    assert_eq!(stubborn.task(id).await, canceled, "a late result changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn async_agent_that_ignores_cancellation_is_dropped() {
    let (_up, stubborn, _hold) = with_stubborn(false).await;
    let sent = stubborn.send_immediately("go").await;
    until_working(&stubborn, task::id(&sent)).await;
    let canceled = cancel(&stubborn, task::id(&sent)).await.unwrap();
    worker_has(&stubborn, "stubborn", 0, 0).await;
    assert_eq!(stubborn.task(task::id(&sent)).await, canceled);
}

/// Delegates its message to `script` many times in parallel.
struct Wide(usize);

impl Agent for Wide {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let all = (0..self.0).map(|n| {
            let work = cx.delegate("script", cx.text()).key(format!("n-{n}"));
            async move { work.await }
        });
        try_join_all(all).await.map(|_| ())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tree_of_tasks_is_cancelled_in_one_commit() {
    let mut up = start_with(|config| config.worker.slots = 200).await;
    let offer = Offer::new("wide", Wide(20));
    up.mesh.attach(Config::default(), |config| Worker::new(config).offer(offer)).await.unwrap();
    let wide = up.rpc.agent("wide");
    let root = wide.send_immediately("delegate script { delegate script { sleep 60s } }").await;
    let tasks = async || {
        let list = up.rpc.call("ListTasks", json!({"pageSize": 100})).await.unwrap();
        list["tasks"].as_array().unwrap().clone()
    };
    until("all 61 tasks work", SOON, async || {
        let at_work = tasks().await.iter().filter(|t| task::state(t) == WORKING).count();
        (at_work == 61).then_some(())
    })
    .await;
    assert_eq!(task::state(&cancel(&wide, task::id(&root)).await.unwrap()), CANCELED);
    // One commit: a reader that sees the root canceled sees all tasks canceled.
    for task in tasks().await {
        assert_eq!(task::state(&task), CANCELED, "{task}");
        assert_eq!(task["metadata"]["faultline.dev/failure"]["errorType"], "cancelled", "{task}");
    }
    worker_has(&up.rpc, "local", 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_is_cancelled_in_every_waiting_state() {
    let up = start_with(|config| config.worker.slots = 1).await;
    // A task that waits for an answer: its question is closed too.
    let asked = up.script.send("delegate script { ask \"well?\" }").await;
    assert_eq!(task::state(&asked), INPUT_REQUIRED);
    let canceled = cancel(&up.script, task::id(&asked)).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    let inspected = up.rpc.inspect(task::id(&asked)).await;
    assert!(inspected.get("interrupts").is_none(), "{inspected}");
    let late = up.script.call("SendMessage", answer(task::id(&asked), "yes")).await.unwrap_err();
    assert_eq!(late["code"], -32004, "{late}");
    // A task that waits for another agent, which sleeps.
    let delegates = up.script.send_immediately("delegate script { say on it; sleep 60s }").await;
    until("the only slot is taken", SOON, async || {
        (number(&worker(&up.rpc, "local").await, "used") == 1).then_some(())
    })
    .await;
    // A task that waits for a slot.
    let mut params = message("chunk x");
    params["message"]["contextId"] = "queued".into();
    let sending = up.script.call("SendMessage", params);
    let stopping = async {
        let queued = until("the task is queued", SOON, async || {
            let list = up.rpc.call("ListTasks", json!({"contextId": "queued"})).await.unwrap();
            Some(list["tasks"].get(0)?.clone())
        })
        .await;
        cancel(&up.script, task::id(&queued)).await.unwrap()
    };
    let (sent, canceled) = futures::join!(sending, stopping);
    assert_eq!(task::state(&canceled), CANCELED);
    assert_eq!(sent.unwrap()["task"], canceled, "the waiting call returns the canceled task");
    let inspected = up.rpc.inspect(task::id(&canceled)).await;
    assert!(inspected.get("attempts").is_none(), "no attempt was made: {inspected}");
    let canceled = cancel(&up.script, task::id(&delegates)).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED, "{canceled}");
    assert_eq!(task::artifacts(&up.script.send("chunk on").await)["output"], "on");
    worker_has(&up.rpc, "local", 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_task_cannot_be_cancelled() {
    let up = start().await;
    let canceled = up.script.send_immediately("sleep 60s").await;
    cancel(&up.script, task::id(&canceled)).await.unwrap();
    let mut ended = vec![(task::id(&canceled).to_owned(), CANCELED)];
    for (script, state) in
        [("chunk x", COMPLETED), ("fail ABORTED", FAILED), ("reject \"no\"", REJECTED)]
    {
        ended.push((task::id(&up.script.send(script).await).to_owned(), state));
    }
    for (id, state) in ended {
        let before = up.script.task(&id).await;
        assert_eq!(task::state(&before), state);
        let refused = cancel(&up.script, &id).await.unwrap_err();
        assert_eq!(refused["code"], -32002, "{refused}");
        assert_eq!(up.script.task(&id).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reason_of_the_caller_is_recorded() {
    let up = start().await;
    let sent = up.script.send_immediately("sleep 60s").await;
    let mut params = json!({"id": task::id(&sent)});
    params["metadata"] = json!({"faultline.dev/cancel": {"reason": 7}});
    let refused = up.script.call("CancelTask", params.clone()).await.unwrap_err();
    assert_eq!(refused["code"], -32602, "{refused}");
    params["metadata"] = json!({"faultline.dev/cancel": {"reason": "too dear"}});
    let canceled = up.script.call("CancelTask", params).await.unwrap();
    let failure = &canceled["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["publicMessage"], "cancelled by the caller: too dear", "{failure}");
    let cancel = &failure["cancel"];
    assert_eq!((&cancel["initiator"], &cancel["reason"]), (&json!("user"), &json!("too dear")));
    assert!(cancel["at"].is_string(), "the time is a field of its own: {cancel}");
    assert_eq!(
        (&failure["reason"], &failure["errorType"]),
        (&json!("CANCELLED"), &json!("cancelled"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn first_of_end_and_cancel_is_final() {
    let up = start().await;
    // Every second task ends by itself at about the same time.
    let race = async |n: u64| {
        let script =
            if n.is_multiple_of(2) { "say on it; sleep 60s" } else { "say on it; chunk x" };
        let sent = up.script.send_immediately(script).await;
        let id = task::id(&sent);
        let state = match cancel(&up.script, id).await {
            Ok(task) => {
                assert_eq!(task::state(&task), CANCELED);
                CANCELED
            }
            Err(refused) => {
                assert_eq!(refused["code"], -32002, "{refused}");
                COMPLETED
            }
        };
        assert!(state == CANCELED || n % 2 == 1, "a sleeping task cannot end before the cancel");
        (id.to_owned(), state)
    };
    let raced = join_all((0..100).map(race)).await;
    worker_has(&up.rpc, "local", 0, 0).await;
    for (id, state) in &raced {
        assert_eq!(task::state(&up.rpc.task(id).await), *state);
    }
}
