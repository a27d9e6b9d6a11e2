//! A database that goes away under a whole cluster, for a moment or for longer than any lease. Who
//! sends meanwhile is told to come again and nothing else, and nothing is lost or done twice.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use faultline_tests::{
    Cluster, Plan, Store,
    postgres::Server,
    rpc::message,
    task::{self, COMPLETED, SUBMITTED, WORKING},
    until,
    wait::SOON,
};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const REPLICAS: usize = 3;
const CLIENTS: usize = 4;
const UNAVAILABLE: i64 = -31014;
const LEASE: Duration = Duration::from_secs(2);

/// What a refusal has to say: that it passes, and after how long to come again, unless it may have
/// been done.
fn check_refusal(error: &Value) {
    assert_eq!(error["code"], UNAVAILABLE, "{error}");
    let details = error["data"].as_array().cloned().unwrap_or_default();
    let is_unknown = details.iter().any(|detail| detail["reason"] == "OUTCOME_UNKNOWN");
    let has_delay = details.iter().any(|detail| detail["retryDelay"].is_string());
    assert!(is_unknown || has_delay, "it does not say when to come again: {error}");
}

/// Clients that send with keys, one task after the other, and come again with what was refused.
struct Load<'a> {
    cluster: &'a Cluster,
    stop: AtomicBool,
    refused: AtomicUsize,
    done: AtomicUsize,
}

impl<'a> Load<'a> {
    fn on(cluster: &'a Cluster) -> Self {
        let refused = AtomicUsize::new(0);
        let done = AtomicUsize::new(0);
        Self { cluster, stop: AtomicBool::new(false), refused, done }
    }

    /// Until it is told to stop, each time at another gateway.
    async fn client(&self, name: usize) -> Vec<String> {
        let mut tasks = Vec::new();
        let mut tries = name;
        while !self.stop.load(SeqCst) {
            let text = format!("{name}.{}", tasks.len());
            let params = message(&format!("chunk \"{text}\"; sleep 50ms; chunk \"!\""));
            let end = Instant::now() + 2 * SOON;
            let task = loop {
                tries += 1;
                let rpc = self.cluster.rpc_at(tries % self.cluster.gateways.len());
                let rpc = rpc.agent("script").within(SOON).header("idempotency-key", &text);
                match rpc.try_call("SendMessage", params.clone()).await {
                    Ok(Ok(sent)) if task::is_final(task::state(&sent["task"])) => {
                        break sent["task"].clone();
                    }
                    // It is stored, and the database is away: the repeat finds the same task.
                    Ok(Ok(sent)) => {
                        assert!(
                            [SUBMITTED, WORKING].contains(&task::state(&sent["task"])),
                            "{sent}"
                        );
                    }
                    Ok(Err(error)) => {
                        check_refusal(&error);
                        self.refused.fetch_add(1, SeqCst);
                    }
                    Err(error) => panic!("a gateway always answers: {error}"),
                }
                assert!(Instant::now() < end, "'{text}' is never taken");
                sleep(Duration::from_millis(50)).await;
            };
            assert_eq!(task::state(&task), COMPLETED, "{task}");
            assert_eq!(task::artifacts(&task)["output"], format!("{text}!"));
            self.done.fetch_add(1, SeqCst);
            tasks.push(task::id(&task).to_owned());
        }
        tasks
    }

    /// Waits until so many more are done.
    async fn goes_on(&self, more: usize) {
        let before = self.done.load(SeqCst);
        until("the load goes on", 2 * SOON, async || {
            (self.done.load(SeqCst) >= before + more).then_some(())
        })
        .await;
    }

    /// Every send is one task, and there is no other.
    async fn check(&self, tasks: Vec<Vec<String>>) {
        let mut ids: Vec<_> = tasks.into_iter().flatten().collect();
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "each send is a task of its own");
        let listed = self.cluster.rpc().call("ListTasks", json!({"pageSize": 1})).await;
        let listed = listed.expect("the cluster serves");
        assert_eq!(listed["totalSize"], count, "nothing is lost, and nothing is there twice");
    }

    /// Under the load of all clients.
    async fn during(&self, faults: impl AsyncFnOnce(&Server)) {
        let server = self.cluster.server.as_ref().expect("it has its own");
        let faults = async {
            faults(server).await;
            self.stop.store(true, SeqCst);
        };
        let clients = join_all((0..CLIENTS).map(|name| self.client(name)));
        let (tasks, ()) = tokio::join!(clients, faults);
        self.check(tasks).await;
    }
}

fn plan() -> Plan {
    let plan = Plan::replicas(REPLICAS).store(Store::OwnPostgres).with("max_attempts = 20");
    plan.with(&format!("lease_ms = {}", LEASE.as_millis()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_database_is_a_pause_and_nothing_else() {
    let cluster = plan().gateways(2).workers(&["echo,script"; 2]).start().await;
    let load = Load::on(&cluster);
    load.during(async |server| {
        for crash in [false, true] {
            load.goes_on(20).await;
            server.restart(crash).await;
            load.goes_on(20).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_longer_than_every_lease_is_a_longer_pause_and_nothing_else() {
    // Whoever speaks to one coordinator only must find that one back.
    let plan = plan().gateways(REPLICAS).one_coordinator_each().workers(&["echo,script"; REPLICAS]);
    let cluster = plan.start().await;
    let load = Load::on(&cluster);
    load.during(async |server| {
        load.goes_on(20).await;
        server.stop();
        let refused = load.refused.load(SeqCst);
        let done = load.done.load(SeqCst);
        // Long enough for every lease to end, and for whoever holds one to know.
        sleep(3 * LEASE).await;
        assert!(load.refused.load(SeqCst) > refused + CLIENTS, "callers are answered meanwhile");
        let meanwhile = load.done.load(SeqCst) - done;
        assert!(meanwhile <= CLIENTS, "{meanwhile} were done without a database");
        server.start_again();
        load.goes_on(20).await;
    })
    .await;
    // Each of them, and not only those that were asked.
    for gateway in 0..REPLICAS {
        let rpc = cluster.rpc_at(gateway).agent("echo");
        until("every coordinator is back", SOON, async || {
            rpc.try_call("SendMessage", message("hello")).await.ok()?.ok()
        })
        .await;
    }
}

/// A caller is answered so soon while the database is away.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const SENDS: usize = 8;

/// Checks a refusal because of the store, and whether it calls the outcome unknown.
fn is_unknown(error: &Value, has_key: bool) -> bool {
    assert_eq!(error["data"][0]["reason"], "STORE_UNAVAILABLE", "{error}");
    let said = error["message"].as_str().unwrap_or_default();
    if said.contains("this call changed nothing") {
        return false;
    }
    let remedy = if has_key {
        "repeat it with the same Idempotency-Key"
    } else {
        "look for the task before you repeat the call"
    };
    assert!(said.contains("it is unknown whether") && said.contains(remedy), "{error}");
    assert_eq!(error["data"][0]["metadata"]["retryable"], has_key.to_string(), "{error}");
    true
}

/// Takes the database away from all coordinators.
fn take_away(cluster: &Cluster, is_silent: bool) {
    for wire in &cluster.store_proxies {
        if is_silent { wire.stall() } else { wire.sever() }
    }
}

async fn check_answers_without_database(is_silent: bool) {
    let plan = Plan::replicas(2).store(Store::Postgres).workers(&["script"; 2]);
    let cluster = plan.start().await;
    let rpc = |key: Option<&str>| {
        let rpc = cluster.rpc().agent("script").within(2 * SOON);
        key.map_or(rpc.clone(), |key| rpc.header("idempotency-key", key))
    };
    // Every second one has a key.
    let key_of = |n: usize| n.is_multiple_of(2).then(|| format!("before-{n}"));
    let params: Vec<_> = (0..SENDS).map(|_| message("sleep 1s; chunk done")).collect();
    let sends = params.iter().enumerate().map(|(n, params)| {
        let rpc = rpc(key_of(n).as_deref());
        let params = params.clone();
        tokio::spawn(async move { (rpc.call("SendMessage", params).await, Instant::now()) })
    });
    let sends: Vec<_> = sends.collect();
    until("all tasks are stored", SOON, async || {
        let listed = cluster.rpc().call("ListTasks", json!({"pageSize": 1})).await.ok()?;
        (listed["totalSize"] == SENDS).then_some(())
    })
    .await;
    take_away(&cluster, is_silent);
    let away = Instant::now();
    // Sends that come while it is away, with and without a key, blocking and streaming.
    let late = ["blocking", "streaming"].map(|kind| message(&format!("chunk {kind}")));
    let send = async |key: Option<&str>| {
        let sent = rpc(key).call("SendMessage", late[0].clone()).await;
        (sent.map(drop), key.is_some(), Instant::now())
    };
    let stream = async |key: Option<&str>| {
        let begun = rpc(key).stream("SendStreamingMessage", late[1].clone()).await;
        (begun.map(drop), key.is_some(), Instant::now())
    };
    let refused =
        tokio::join!(send(Some("blocking")), send(None), stream(Some("streaming")), stream(None));
    let mut unknown_without_key = 0;
    for (answer, has_key, answered) in [refused.0, refused.1, refused.2, refused.3] {
        let took = answered - away;
        assert!(took < ANSWERED_WITHIN, "answered after {took:?}: {answer:?}");
        let is_unknown = is_unknown(&answer.expect_err("the database is away"), has_key);
        unknown_without_key += usize::from(is_unknown && !has_key);
    }
    let mut ids = Vec::new();
    for send in sends {
        let (sent, answered) = send.await.expect("no send panics");
        let took = answered.saturating_duration_since(away);
        assert!(took < ANSWERED_WITHIN, "answered after {took:?}: {sent:?}");
        let task = sent.expect("its task is stored")["task"].clone();
        assert!([SUBMITTED, WORKING].contains(&task::state(&task)), "{task}");
        assert_eq!(task["metadata"]["faultline.dev/earlyAnswer"], "STORE_UNAVAILABLE", "{task}");
        ids.push(task::id(&task).to_owned());
    }
    cluster.store_proxies.iter().for_each(|wire| wire.heal());
    // The tasks go on, and each send with a key finds its one task.
    let ended = async |method: &str, key: Option<&str>, params: &Value| {
        until("the task ends", 2 * SOON, async || {
            let answer = rpc(key).call(method, params.clone()).await.ok()?;
            let task = answer.get("task").unwrap_or(&answer).clone();
            (task::state(&task) == COMPLETED).then_some(task)
        })
        .await
    };
    for (n, (params, id)) in params.iter().zip(&ids).enumerate() {
        let task = match key_of(n) {
            Some(key) => ended("SendMessage", Some(&key), params).await,
            None => ended("GetTask", None, &json!({"id": id})).await,
        };
        assert_eq!((task::id(&task), &*task::artifacts(&task)["output"]), (&**id, "done"));
    }
    ended("SendMessage", Some("blocking"), &late[0]).await;
    ended("SendMessage", Some("streaming"), &late[1]).await;
    let listed = cluster.rpc().call("ListTasks", json!({"pageSize": 1})).await;
    let listed = listed.expect("the database is back");
    let count = listed["totalSize"].as_u64().expect("a number") as usize;
    let least = SENDS + 2;
    assert!((least..=least + unknown_without_key).contains(&count), "{count} tasks");
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_are_answered_within_five_seconds_while_the_database_is_silent() {
    check_answers_without_database(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_are_answered_within_five_seconds_while_the_database_refuses_connections() {
    check_answers_without_database(false).await;
}
