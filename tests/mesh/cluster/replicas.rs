//! Several coordinators on one store: each answers for the tasks of all. Each gateway here knows
//! one coordinator only, so a test addresses a coordinator through its gateway.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use faultline_chassis::{
    Drain,
    client::{Channel, Dial},
};
use faultline_tests::{
    Cluster, Frame, Plan, Rpc, mesh_config,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, Fold, INPUT_REQUIRED, WORKING, is_final},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Question, Worker};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::operators::keda;

const REPLICAS: usize = 3;
/// Pairs of replicas: the first takes a task, the second acts on it.
const PAIRS: [(usize, usize); 4] = [(0, 1), (1, 0), (1, 2), (2, 0)];

/// One gateway per coordinator, and these workers, attached round robin.
async fn start(workers: &[&'static str]) -> Cluster {
    let plan = Plan::replicas(REPLICAS).gateways(REPLICAS).one_coordinator_each().workers(workers);
    let cluster = plan.with("lease_ms = 2000").start().await;
    if !workers.is_empty() {
        until_known(&cluster, "script").await;
    }
    cluster
}

/// Waits until every replica knows the agent.
async fn until_known(cluster: &Cluster, agent: &str) {
    for gateway in 0..cluster.gateways.len() {
        let rpc = cluster.rpc_at(gateway);
        until("every replica knows the agent", SOON, async || {
            let agents = rpc.mesh("Agents", json!({"name": agent})).await;
            agents["agents"][0]["name"].is_string().then_some(())
        })
        .await;
    }
}

async fn ended(rpc: &Rpc, id: &str) -> Value {
    until("the task has ended", 2 * SOON, async || {
        Some(rpc.task(id).await).filter(|task| is_final(task::state(task)))
    })
    .await
}

async fn in_state(rpc: &Rpc, id: &str, state: &str) -> Value {
    until(&format!("the task is {state}"), SOON, async || {
        Some(rpc.task(id).await).filter(|task| task::state(task) == state)
    })
    .await
}

/// All public events of a task, replayed from the store.
async fn replayed(rpc: &Rpc, id: &str) -> Vec<Frame> {
    let rpc = rpc.header("last-event-id", 0);
    let frames = rpc.stream("SubscribeToTask", json!({"id": id})).await;
    frames.expect("an ended task can be replayed").all().await
}

/// A worker in this process, attached to this coordinator only.
async fn attach(cluster: &Cluster, coordinator: usize, offer: Offer) -> AbortOnDropHandle<()> {
    let name = offer.name().to_owned();
    let coordinator = format!("http://{}", cluster.coordinator_proxies[coordinator].address);
    let worker =
        Worker::new(Config { coordinator, mesh: mesh_config(), ..Config::default() }).offer(offer);
    let service = worker.bind().await.expect("a worker starts");
    let running = tokio::spawn(async move {
        service.run(Drain::new()).await.expect("a worker runs until it is dropped");
    });
    until_known(cluster, &name).await;
    AbortOnDropHandle::new(running)
}

#[tokio::test(flavor = "multi_thread")]
async fn task_of_one_replica_is_read_listed_and_inspected_at_any() {
    let cluster = start(&["echo,script"]).await;
    for (here, there) in PAIRS {
        let here = cluster.rpc_at(here);
        let there = cluster.rpc_at(there);
        let sent = here.agent("script").send("chunk a; sleep 10ms; chunk b").await;
        assert_eq!(task::state(&sent), COMPLETED, "{sent}");
        let id = task::id(&sent);
        assert_eq!(there.task(id).await, sent, "each replica reads the tasks of its peers at once");
        let listed = there.call("ListTasks", json!({"pageSize": 1})).await.unwrap();
        assert_eq!(task::id(&listed["tasks"][0]), id, "{listed}");
        assert_eq!(there.inspect(id).await, here.inspect(id).await);
        assert_eq!(replayed(&there, id).await, replayed(&here, id).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn question_at_one_replica_is_answered_at_another() {
    let cluster = start(&["echo,script"]).await;
    for (here, there) in PAIRS {
        let here = cluster.rpc_at(here).agent("script");
        let there = cluster.rpc_at(there);
        let asks = here.send("chunk \"hello \"; ask \"who?\"; chunk $answer").await;
        assert_eq!(task::state(&asks), INPUT_REQUIRED, "{asks}");
        let id = task::id(&asks);
        assert_eq!(there.task(id).await, asks);
        let answered = there.agent("script").call("SendMessage", answer(id, "ada")).await;
        let answered = &answered.expect("the question is open at every replica")["task"];
        assert_eq!(task::state(answered), COMPLETED, "{answered}");
        assert_eq!(task::artifacts(answered)["output"], "hello ada");
        assert_eq!(here.task(id).await, *answered);
        let again = here.call("SendMessage", answer(id, "bob")).await;
        assert!(again.is_err(), "the question was answered at another replica: {again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_of_one_replica_is_cancelled_at_another() {
    let cluster = start(&["echo,script"]).await;
    for (here, there) in PAIRS {
        let here = cluster.rpc_at(here).agent("script");
        let there = cluster.rpc_at(there);
        let mut stream = here.stream("SendStreamingMessage", message("say on; sleep 60s")).await;
        let stream = stream.as_mut().expect("the stream opens");
        let first = stream.next().await.unwrap().expect("the task");
        let id = task::id(&first.body["task"]).to_owned();
        in_state(&there, &id, WORKING).await;
        let stopped =
            there.call("CancelTask", json!({"id": id})).await.expect("the task is cancelled");
        assert_eq!(task::state(&stopped), CANCELED, "{stopped}");
        let mut last = Value::Null;
        while let Some(frame) = stream.next().await.expect("the stream ends in order") {
            last = frame.body;
        }
        assert_eq!(
            task::state(&last["statusUpdate"]),
            CANCELED,
            "the stream ends with the cancel: {last}"
        );
        let again = here.call("CancelTask", json!({"id": id})).await.unwrap_err();
        assert_eq!(again["code"], -32002, "{again}");
    }
    until("no slot is held", SOON, async || {
        let agents = cluster.rpc().mesh("Agents", json!({"name": "script"})).await;
        (agents["agents"][0]["computing"].as_u64().unwrap_or(0) == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_of_one_replica_serves_tasks_of_all() {
    let mut cluster = start(&[]).await;
    cluster.add_worker_of(1, "echo,script", 4).await;
    until_known(&cluster, "script").await;
    let sends = (0..30).map(async |n: usize| {
        let rpc = cluster.rpc_at(n % REPLICAS).agent("script");
        rpc.send(&format!("sleep 20ms; chunk {n}")).await
    });
    for (n, task) in join_all(sends).await.iter().enumerate() {
        assert_eq!(task::state(task), COMPLETED, "{task}");
        assert_eq!(task::artifacts(task)["output"], n.to_string());
    }
    for gateway in 0..REPLICAS {
        let rpc = cluster.rpc_at(gateway);
        until("every replica lists the worker", SOON, async || {
            let agents = rpc.mesh("Agents", json!({"name": "script"})).await;
            let workers = rpc.mesh("Workers", json!({})).await;
            let listed = workers["workers"].as_array().map_or(0, Vec::len);
            (agents["agents"][0]["workers"] == 1 && listed == 1).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_at_each_replica_see_every_event_once_in_order() {
    let cluster = start(&["echo,script"]).await;
    let chunks: String = (0..200).map(|n| format!("chunk \"{n} \"; sleep 2ms; ")).collect();
    let sent = cluster.rpc_at(2).agent("script").send_immediately(&chunks).await;
    let id = task::id(&sent);
    // Resumption after a future event is refused.
    until("there are 40 events", SOON, async || {
        let resumed = cluster.rpc().header("last-event-id", 40);
        resumed.stream("SubscribeToTask", json!({"id": id})).await.ok()
    })
    .await;
    let read = |gateway: usize, after: u64| {
        let rpc = cluster.rpc_at(gateway).header("last-event-id", after);
        async move {
            let stream = rpc.stream("SubscribeToTask", json!({"id": id})).await;
            stream.expect("the subscription opens").all().await
        }
    };
    let live = join_all((0..REPLICAS).flat_map(|at| [read(at, 0), read(at, 40)])).await;
    let stored = replayed(&cluster.rpc(), id).await;
    let ids: Vec<_> = stored.iter().map(|frame| frame.id.unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b) && ids.len() > 200, "{ids:?}");
    for (n, frames) in live.iter().enumerate() {
        let after = if n % 2 == 0 { 0 } else { 40 };
        let due: Vec<_> = stored.iter().filter(|f| f.id > Some(after)).cloned().collect();
        assert!(*frames == due, "reader {n}: {} events of {}", frames.len(), due.len());
    }
    let whole = Fold::of(&live[0]);
    assert_eq!(whole.finals(), [COMPLETED]);
    assert_eq!(whole.artifacts, task::artifacts(&cluster.rpc_at(1).task(id).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_send_at_another_replica_is_the_same_task() {
    let cluster = start(&["echo,script"]).await;
    let keyed = |gateway: usize, key: &str| {
        cluster.rpc_at(gateway).agent("script").header("idempotency-key", key)
    };
    let params = message("chunk once");
    let first = keyed(0, "k").call("SendMessage", params.clone()).await.unwrap();
    for gateway in 0..REPLICAS {
        let again = keyed(gateway, "k").call("SendMessage", params.clone()).await.unwrap();
        assert_eq!(again, first, "at gateway {gateway}");
    }
    let other = keyed(2, "k").call("SendMessage", message("chunk other")).await;
    assert!(other.is_err(), "a key belongs to one body at every replica: {other:?}");
    // Concurrently, at all replicas.
    for round in 0..10 {
        let key = format!("at once {round}");
        let params = message("sleep 50ms; chunk once");
        let calls = (0..9).map(|n| {
            let rpc = keyed(n % REPLICAS, &key);
            let params = params.clone();
            async move { rpc.call("SendMessage", params).await }
        });
        let ids: Vec<_> = join_all(calls)
            .await
            .into_iter()
            .map(|sent| sent.expect("the send is accepted")["task"]["id"].clone())
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
    let list = cluster.rpc_at(1).call("ListTasks", json!({})).await.unwrap();
    assert_eq!(list["totalSize"], 11, "{list}");
}

/// Asks and writes the answer, or waits for a cancel and counts it.
struct PeerAgent {
    stopped: Arc<AtomicUsize>,
}

impl Agent for PeerAgent {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        if cx.text() == "ask" {
            let answer = cx.ask(Question::input("who?")).await?;
            return cx.artifact("output", answer.text()).await;
        }
        cx.status("here").await?;
        cx.cancelled().await;
        self.stopped.fetch_add(1, SeqCst);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn question_of_a_child_at_another_replica_is_answered_at_a_third() {
    let cluster = start(&["script"]).await;
    let peer = PeerAgent { stopped: Arc::default() };
    let _worker = attach(&cluster, 1, Offer::new("peer", peer)).await;
    let asks = cluster.rpc_at(0).agent("script").send("delegate peer { ask }").await;
    assert_eq!(task::state(&asks), INPUT_REQUIRED, "{asks}");
    let third = cluster.rpc_at(2);
    let id = task::id(&asks);
    let child = third.inspect(id).await["children"][0].clone();
    assert_eq!(child["agent"], "peer");
    let answered =
        third.call("SendMessage", answer(id, "ada")).await.expect("the question is open there");
    assert_eq!(task::state(&answered["task"]), COMPLETED, "{answered}");
    assert_eq!(task::artifacts(&answered["task"])["output"], "ada");
    let child = third.inspect(child["taskId"].as_str().unwrap()).await;
    assert_eq!(task::state(&child["task"]), COMPLETED, "{child}");
    assert_eq!(child["attempts"].as_array().map(Vec::len), Some(1), "{child}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_a_parent_reaches_children_at_other_replicas() {
    let cluster = start(&["script"]).await;
    let stopped = Arc::new(AtomicUsize::new(0));
    let peer = PeerAgent { stopped: Arc::clone(&stopped) };
    let _worker = attach(&cluster, 1, Offer::new("peer", peer)).await;
    let script = "delegate script { delegate peer { wait } }";
    let sent = cluster.rpc_at(0).agent("script").send_immediately(script).await;
    let rpc = cluster.rpc_at(2);
    let id = task::id(&sent);
    let line = until("the child of the child runs", SOON, async || {
        let child = rpc.inspect(id).await["children"][0]["taskId"].as_str()?.to_owned();
        let last = rpc.inspect(&child).await["children"][0]["taskId"].as_str()?.to_owned();
        let text = task::text(&rpc.task(&last).await["status"]["message"]);
        (text == "here").then_some([child, last])
    })
    .await;
    rpc.call("CancelTask", json!({"id": id})).await.expect("the task is cancelled");
    for child in &line {
        assert_eq!(task::state(&ended(&rpc, child).await), CANCELED);
    }
    until("the agent sees the cancel", SOON, async || (stopped.load(SeqCst) == 1).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keda_demand_at_each_replica_covers_all_replicas() {
    let mut cluster = start(&["echo,script"]).await;
    // The agent was offered, so it is known; no worker offers it now.
    cluster.workers[0].terminate().await;
    assert!(cluster.workers[0].exit_within(SOON).await.is_some());
    // The sends wait for a worker, which decides between a message and a task.
    let sends = (0..2 * REPLICAS).map(|n| {
        let script = cluster.rpc_at(n % REPLICAS).agent("script");
        tokio::spawn(async move { script.send("chunk done").await })
    });
    let sends: Vec<_> = sends.collect();
    for proxy in &cluster.coordinator_proxies {
        let dial = Dial { address: format!("http://{}", proxy.address), ..Dial::default() };
        let scaler = keda::Scaler::new(Channel::lazy(&dial).unwrap());
        // Six tasks on workers with two slots.
        keda::until_desired(&scaler, 3).await;
    }
    cluster.add_worker_of(2, "echo,script", 2).await;
    for proxy in &cluster.coordinator_proxies {
        let dial = Dial { address: format!("http://{}", proxy.address), ..Dial::default() };
        keda::until_desired(&keda::Scaler::new(Channel::lazy(&dial).unwrap()), 0).await;
    }
    for sent in join_all(sends).await {
        assert_eq!(task::state(&sent.unwrap()), COMPLETED);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_notifications_are_found_by_the_periodic_comparison() {
    let plan = Plan::replicas(2).gateways(2).one_coordinator_each().workers(&["echo,script"]);
    let plan = plan.with("lease_ms = 1200").env("FAULTLINE_CHAOS_MUTE", "1");
    let cluster = plan.start().await;
    until_known(&cluster, "script").await;
    // The worker is attached to the first coordinator; notifications are off.
    let here = cluster.rpc_at(0).agent("script");
    let there = cluster.rpc_at(1).agent("script");
    let sent = there.send("chunk a; sleep 10ms; chunk b").await;
    assert_eq!(task::artifacts(&sent)["output"], "ab", "the waiting task is claimed: {sent}");

    let asks = here.send("ask \"who?\"; chunk $answer").await;
    let answered = there.call("SendMessage", answer(task::id(&asks), "ada")).await.unwrap();
    assert_eq!(task::artifacts(&answered["task"])["output"], "ada", "{answered}");

    let parent = here.send_immediately("delegate script { say on; sleep 60s }").await;
    let subscriber = there.stream("SubscribeToTask", json!({"id": task::id(&parent)})).await;
    let child = until("the task has a child", SOON, async || {
        here.inspect(task::id(&parent)).await["children"][0]["taskId"].as_str().map(str::to_owned)
    })
    .await;
    there
        .call("CancelTask", json!({"id": task::id(&parent)}))
        .await
        .expect("the task is cancelled");
    assert_eq!(task::state(&ended(&there, &child).await), CANCELED);
    let seen = subscriber.expect("the subscription opens").all().await;
    let last = seen.last().expect("there is an end");
    assert_eq!(task::state(&last.body["statusUpdate"]), CANCELED, "{last:?}");
    until("no slot is held", SOON, async || {
        let agents = here.mesh("Agents", json!({"name": "script"})).await;
        (agents["agents"][0]["computing"].as_u64().unwrap_or(0) == 0).then_some(())
    })
    .await;
}
