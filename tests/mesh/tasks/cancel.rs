//! Stopping: whatever a task does when somebody says stop, it is stopped, and so is everything
//! below it. Agents that do not listen cost their worker a slot, and nobody else anything.

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

/// Waits until the worker says so many slots are used and so many of them by orphans.
async fn worker_has(rpc: &Rpc, name: &str, used: u64, orphans: u64) {
    until(&format!("{name} has {used} used, {orphans} orphans"), SOON, async || {
        let worker = worker(rpc, name).await;
        let has = (number(&worker, "used"), number(&worker, "orphans"));
        (has == (used, orphans)).then_some(())
    })
    .await;
}

async fn works(rpc: &Rpc, id: &str) {
    until("the task is at work", SOON, async || {
        (task::state(&rpc.task(id).await) == WORKING).then_some(())
    })
    .await;
}

/// Hears nothing for as long as its test holds on to it, in a way that nobody can drop, or in one
/// that a worker can. A test that fails lets it go as well.
struct Deaf {
    blocks: bool,
    held: Weak<()>,
}

impl Agent for Deaf {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.status("deaf now").await?;
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

async fn with_deaf(blocks: bool) -> (Running, Rpc, Arc<()>) {
    let mut up = start().await;
    let hold = Arc::new(());
    let offer = Offer::new("deaf", Deaf { blocks, held: Arc::downgrade(&hold) });
    let config = Config { name: Some("deaf".into()), slots: 2, ..Config::default() };
    up.mesh
        .attach(config, |config| Worker::new(config).offer(offer))
        .await
        .expect("a worker attaches");
    let deaf = up.rpc.agent("deaf");
    (up, deaf, hold)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_that_cannot_be_stopped_is_an_orphan_until_it_ends() {
    let (_up, deaf, hold) = with_deaf(true).await;
    let sent = deaf.send_immediately("go").await;
    let id = task::id(&sent);
    until("the agent is deaf", SOON, async || {
        let said = deaf.task(id).await["status"]["message"].clone();
        (task::text(&said) == "deaf now").then_some(())
    })
    .await;
    let before = Instant::now();
    let canceled = cancel(&deaf, id).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    assert!(before.elapsed() < Duration::from_secs(2), "nobody waits for the agent");
    assert_eq!(number(&worker(&deaf, "deaf").await, "orphans"), 0, "not yet");
    worker_has(&deaf, "deaf", 1, 1).await;
    assert!(before.elapsed() >= Duration::from_secs(5));
    drop(hold);
    worker_has(&deaf, "deaf", 0, 0).await;
    assert_eq!(deaf.task(id).await, canceled, "canceled is canceled, whatever came later");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_listen_is_dropped() {
    let (_up, deaf, _hold) = with_deaf(false).await;
    let sent = deaf.send_immediately("go").await;
    works(&deaf, task::id(&sent)).await;
    let canceled = cancel(&deaf, task::id(&sent)).await.unwrap();
    worker_has(&deaf, "deaf", 0, 0).await;
    assert_eq!(deaf.task(task::id(&sent)).await, canceled);
}

/// Gives its message to `script` many times at once.
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
async fn a_whole_tree_stops_at_once() {
    let mut up = start_with(|config| config.worker.slots = 200).await;
    let offer = Offer::new("wide", Wide(20));
    up.mesh.attach(Config::default(), |config| Worker::new(config).offer(offer)).await.unwrap();
    let wide = up.rpc.agent("wide");
    let root = wide.send_immediately("delegate script { delegate script { sleep 60s } }").await;
    let tasks = async || {
        let list = up.rpc.call("ListTasks", json!({"pageSize": 100})).await.unwrap();
        list["tasks"].as_array().unwrap().clone()
    };
    until("all of it is at work", SOON, async || {
        let at_work = tasks().await.iter().filter(|t| task::state(t) == WORKING).count();
        (at_work == 61).then_some(())
    })
    .await;
    assert_eq!(task::state(&cancel(&wide, task::id(&root)).await.unwrap()), CANCELED);
    // It is one commit: whoever sees the root canceled sees all of them.
    for task in tasks().await {
        assert_eq!(task::state(&task), CANCELED, "{task}");
        assert_eq!(task["metadata"]["faultline.dev/failure"]["errorType"], "cancelled", "{task}");
    }
    worker_has(&up.rpc, "local", 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_can_be_stopped_wherever_it_waits() {
    let up = start_with(|config| config.worker.slots = 1).await;
    // For somebody's answer: the question is closed with it.
    let asked = up.script.send("delegate script { ask \"well?\" }").await;
    assert_eq!(task::state(&asked), INPUT_REQUIRED);
    let canceled = cancel(&up.script, task::id(&asked)).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    let inspected = up.rpc.inspect(task::id(&asked)).await;
    assert!(inspected.get("interrupts").is_none(), "{inspected}");
    let late = up.script.call("SendMessage", answer(task::id(&asked), "yes")).await.unwrap_err();
    assert_eq!(late["code"], -32004, "{late}");
    // For another agent, and that one for nothing.
    let delegates = up.script.send_immediately("delegate script { say on it; sleep 60s }").await;
    until("the only slot is taken", SOON, async || {
        (number(&worker(&up.rpc, "local").await, "used") == 1).then_some(())
    })
    .await;
    // For a slot.
    let mut params = message("chunk x");
    params["message"]["contextId"] = "queued".into();
    let sending = up.script.call("SendMessage", params);
    let stopping = async {
        let queued = until("it is in the queue", SOON, async || {
            let list = up.rpc.call("ListTasks", json!({"contextId": "queued"})).await.unwrap();
            Some(list["tasks"].get(0)?.clone())
        })
        .await;
        cancel(&up.script, task::id(&queued)).await.unwrap()
    };
    let (sent, canceled) = futures::join!(sending, stopping);
    assert_eq!(task::state(&canceled), CANCELED);
    assert_eq!(sent.unwrap()["task"], canceled, "whoever waits hears of it");
    let inspected = up.rpc.inspect(task::id(&canceled)).await;
    assert!(inspected.get("attempts").is_none(), "nobody ever had it: {inspected}");
    let canceled = cancel(&up.script, task::id(&delegates)).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED, "{canceled}");
    assert_eq!(task::artifacts(&up.script.send("chunk on").await)["output"], "on");
    worker_has(&up.rpc, "local", 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_is_not_cancelled() {
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
async fn who_cancels_may_say_why() {
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
    assert!(cancel["at"].is_string(), "no words are read to know: {cancel}");
    assert_eq!(
        (&failure["reason"], &failure["errorType"]),
        (&json!("CANCELLED"), &json!("cancelled"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_end_and_a_cancel_the_first_counts_for_good() {
    let up = start().await;
    // Half of them end by themselves just then.
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
        assert!(state == CANCELED || n % 2 == 1, "nothing came before the cancel");
        (id.to_owned(), state)
    };
    let raced = join_all((0..100).map(race)).await;
    worker_has(&up.rpc, "local", 0, 0).await;
    for (id, state) in &raced {
        assert_eq!(task::state(&up.rpc.task(id).await), *state);
    }
}
