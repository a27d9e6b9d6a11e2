//! Take-over after the loss of a coordinator: its peers acquire ownership of its tasks when the
//! lease expires, without loss or duplicates.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use faultline_tests::{
    Cluster, Plan, Rpc,
    rpc::message,
    task::{self, COMPLETED, is_final},
    until,
    wait::SOON,
    webhook::Webhook,
};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

const REPLICAS: usize = 3;
const SUBMITTED: &str = "TASK_STATE_SUBMITTED";
/// A lease that is not renewed for this time may be taken over.
const LEASE: Duration = Duration::from_secs(2);

/// A gateway for each coordinator; no workers yet.
fn plan(lease: Duration) -> Plan {
    let plan = Plan::replicas(REPLICAS).gateways(REPLICAS).one_coordinator_each().workers(&[]);
    plan.with(&format!("lease_ms = {}", lease.as_millis())).with("reattach_grace_ms = 4000")
}

async fn ended(rpc: &Rpc, id: &str) -> Value {
    until("the task has ended", 2 * SOON, async || {
        let task = rpc.try_call("GetTask", json!({"id": id})).await.ok()?.ok()?;
        is_final(task::state(&task)).then_some(task)
    })
    .await
}

async fn until_status(rpc: &Rpc, id: &str, text: &str) {
    until("the task reports its status", SOON, async || {
        let task = rpc.task(id).await;
        (task::text(&task["status"]["message"]) == text).then_some(())
    })
    .await;
}

/// A worker that knows all coordinators and is attached to this one.
async fn attach_first_to(cluster: &mut Cluster, coordinator: usize) {
    for (n, proxy) in cluster.coordinator_proxies.iter().enumerate() {
        if n != coordinator {
            proxy.sever();
        }
    }
    cluster.add_worker("echo,script", 64).await;
    let rpc = cluster.rpc_at(coordinator);
    until("the worker is attached", SOON, async || {
        let workers = rpc.mesh("Workers", json!({})).await;
        (workers["workers"][0]["attached"] == true).then_some(())
    })
    .await;
    cluster.coordinator_proxies.iter().for_each(|proxy| proxy.heal());
    for gateway in 0..cluster.gateways.len() {
        let rpc = cluster.rpc_at(gateway);
        until("every gateway serves the agent again", SOON, async || {
            let sent = rpc.agent("echo").try_call("SendMessage", message("hello")).await;
            sent.ok()?.ok()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_completes_in_the_same_attempt_when_its_worker_changes_coordinator() {
    let mut cluster = plan(LEASE).start().await;
    attach_first_to(&mut cluster, 0).await;
    let rpc = cluster.rpc_at(1);
    let script = "chunk a; say here; sleep 3s; chunk b; sleep 10ms; chunk c";
    let sent = rpc.agent("script").send_immediately(script).await;
    let id = task::id(&sent);
    until_status(&rpc, id, "here").await;
    let subscriber = rpc.header("last-event-id", 0);
    let stream = subscriber.stream("SubscribeToTask", json!({"id": id})).await.unwrap();
    cluster.coordinators[0].kill().await;
    let done = ended(&rpc, id).await;
    assert_eq!(task::state(&done), COMPLETED, "{done}");
    assert_eq!(task::artifacts(&done)["output"], "abc");
    let inspected = cluster.rpc_at(2).inspect(id).await;
    let outcomes = inspected["attempts"].as_array().unwrap().iter().map(|a| &a["outcome"]);
    assert_eq!(outcomes.collect::<Vec<_>>(), ["OUTCOME_ENDED"], "{inspected}");
    // A subscriber at another coordinator sees an uninterrupted stream.
    let seen = stream.all().await;
    let replay = rpc.header("last-event-id", 0).stream("SubscribeToTask", json!({"id": id})).await;
    assert_eq!(seen, replay.unwrap().all().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_tasks_of_a_dead_coordinator_are_run_by_its_peers() {
    let mut cluster = plan(LEASE).with("max_attempts = 5").start().await;
    cluster.add_worker_of(0, "echo,script", 1).await;
    let rpc = cluster.rpc_at(0).agent("script");
    until("the worker is attached", SOON, async || {
        rpc.try_call("SendMessage", message("chunk x")).await.ok()?.ok()
    })
    .await;
    let running = rpc.send_immediately("say here; sleep 2s; chunk held").await;
    until_status(&rpc, task::id(&running), "here").await;
    // The only slot is taken.
    let echo = cluster.rpc_at(0).agent("echo");
    let waiting = join_all((0..10).map(async |n| {
        let task = echo.send_immediately(&n.to_string()).await;
        assert_eq!(task::state(&task), SUBMITTED, "{task}");
        (n.to_string(), task::id(&task).to_owned())
    }))
    .await;
    cluster.coordinators[0].kill().await;
    cluster.workers[0].kill().await;
    cluster.add_worker_of(1, "echo,script", 1).await;
    let others = cluster.rpc_at(2);
    for (text, id) in &waiting {
        let done = ended(&others, id).await;
        assert_eq!(task::artifacts(&done).get("echo"), Some(text), "{done}");
        assert_eq!(others.inspect(id).await["attempts"].as_array().map(Vec::len), Some(1));
    }
    let done = ended(&others, task::id(&running)).await;
    assert_eq!(task::artifacts(&done)["output"], "held", "{done}");
    // The restarted coordinator no longer owns the tasks, and changes none.
    cluster.coordinators[0].restart().await;
    let list = cluster.rpc_at(0);
    until("the coordinator answers again", SOON, async || {
        let listed = list.try_call("ListTasks", json!({"pageSize": 100})).await.ok()?.ok()?;
        let tasks = listed["tasks"].as_array()?;
        tasks.iter().all(|task| task::state(task) == COMPLETED).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_coordinator_hands_over_without_waiting_for_its_lease() {
    let mut cluster = plan(3 * SOON).start().await;
    attach_first_to(&mut cluster, 0).await;
    let rpc = cluster.rpc_at(1);
    let sent = rpc.agent("script").send_immediately("say here; sleep 1s; chunk done").await;
    until_status(&rpc, task::id(&sent), "here").await;
    let started = Instant::now();
    cluster.coordinators[0].terminate().await;
    let ended_with =
        cluster.coordinators[0].exit_within(SOON).await.expect("the coordinator exits");
    assert!(ended_with.success(), "{}", cluster.coordinators[0].log());
    let done = ended(&rpc, task::id(&sent)).await;
    assert_eq!(task::artifacts(&done)["output"], "done", "{done}");
    assert!(started.elapsed() < SOON, "the hand-over does not wait for the lease");
    let inspected = rpc.inspect(task::id(&sent)).await;
    assert_eq!(inspected["attempts"].as_array().map(Vec::len), Some(1), "{inspected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_coordinator_changes_nothing_after_a_take_over() {
    let mut cluster = plan(LEASE).with("max_attempts = 5").start().await;
    attach_first_to(&mut cluster, 0).await;
    let rpc = cluster.rpc_at(1);
    let script = "chunk a; say here; sleep 8s; chunk b";
    let sent = rpc.agent("script").send_immediately(script).await;
    let id = task::id(&sent);
    until_status(&rpc, id, "here").await;
    cluster.coordinators[0].pause().await;
    // Its peers consider it dead, and its worker gets no answer.
    let done = ended(&rpc, id).await;
    assert_eq!(task::artifacts(&done)["output"], "ab", "{done}");
    cluster.coordinators[0].resume().await;
    let late = cluster.rpc_at(0);
    until("the stalled coordinator answers as its peers do", SOON, async || {
        let task = late.try_call("GetTask", json!({"id": id})).await.ok()?.ok()?;
        (task == done).then_some(())
    })
    .await;
    let events = rpc.mesh("Events", json!({"taskId": id, "pageSize": 500})).await;
    let events = events["events"].as_array().unwrap();
    let ends = events.iter().filter(|event| event["event"].get("ended").is_some()).count();
    assert_eq!(ends, 1, "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_receives_every_status_after_the_loss_of_its_coordinator() {
    let is_up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_up);
    let webhook = Webhook::answering(move |_| Some(if answers.load(SeqCst) { 200 } else { 503 }));
    let webhook = webhook.await;
    let plan = plan(LEASE).with("push.allow_private = true").with("push.pause_ms = 20");
    let mut cluster = plan.start().await;
    attach_first_to(&mut cluster, 1).await;
    let mut params = message("say one; sleep 100ms; say two; sleep 3s; say three");
    let config = json!({"url": webhook.url()});
    params["configuration"] =
        json!({"returnImmediately": true, "taskPushNotificationConfig": config});
    let sent = cluster.rpc_at(0).agent("script").call("SendMessage", params).await.unwrap();
    let id = task::id(&sent["task"]);
    until("the webhook is called", SOON, async || webhook.received().first().cloned()).await;
    cluster.coordinators[0].kill().await;
    is_up.store(true, SeqCst);
    let rpc = cluster.rpc_at(2);
    ended(&rpc, id).await;
    until("the webhook accepts the final status", 2 * SOON, async || {
        webhook.states().iter().any(|state| is_final(state)).then_some(())
    })
    .await;
    let all = rpc.header("last-event-id", 0).stream("SubscribeToTask", json!({"id": id})).await;
    let frames = all.unwrap().all().await;
    let updates = frames.into_iter().map(|frame| frame.body["statusUpdate"].clone());
    let statuses: Vec<_> = updates.filter(|update| !update.is_null()).collect();
    let mut taken = webhook.accepted();
    taken.dedup();
    assert_eq!(taken, statuses, "all in order; consecutive duplicates are allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_switches_to_another_coordinator() {
    let plan = Plan::replicas(2).workers(&["echo,script"]);
    let mut cluster = plan.with("lease_ms = 2000").start().await;
    let rpc = cluster.rpc().agent("script");
    for dying in [0, 1, 0] {
        let mut params = message("chunk a; say here; sleep 1s; chunk b");
        params["configuration"] = json!({"returnImmediately": true});
        let keyed = rpc.header("idempotency-key", format!("{:x}", rand::random::<u64>()));
        let send = async || keyed.try_call("SendMessage", params.clone()).await.ok()?.ok();
        let before = until("the send is accepted", SOON, send).await;
        cluster.coordinators[dying].kill().await;
        let after = until("the other coordinator accepts the send", SOON, send).await;
        assert_eq!(before["task"]["id"], after["task"]["id"], "both coordinators know the key");
        let done = ended(&rpc, task::id(&before["task"])).await;
        assert_eq!(task::artifacts(&done)["output"], "ab", "{done}");
        cluster.coordinators[dying].restart().await;
    }
}
