//! Outages of the database under a whole cluster, shorter and longer than a lease: callers get
//! STORE_UNAVAILABLE with a retry delay, and no task is lost or duplicated.

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

/// Checks a refusal during an outage: a retry delay, or the outcome is unknown.
fn check_refusal(error: &Value) {
    assert_eq!(error["code"], UNAVAILABLE, "{error}");
    let details = error["data"].as_array().cloned().unwrap_or_default();
    let is_unknown = details.iter().any(|detail| detail["reason"] == "OUTCOME_UNKNOWN");
    let has_delay = details.iter().any(|detail| detail["retryDelay"].is_string());
    assert!(is_unknown || has_delay, "no retry delay: {error}");
}

/// Clients that send with idempotency keys, one task at a time, and repeat refused sends.
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

    /// Sends until `stop` is set, round robin over the gateways.
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
                    // The task is stored, but the database is down: a repeat finds the task.
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
                    Err(error) => panic!("no answer from a gateway: {error}"),
                }
                assert!(Instant::now() < end, "'{text}' is not accepted in time");
                sleep(Duration::from_millis(50)).await;
            };
            assert_eq!(task::state(&task), COMPLETED, "{task}");
            assert_eq!(task::artifacts(&task)["output"], format!("{text}!"));
            self.done.fetch_add(1, SeqCst);
            tasks.push(task::id(&task).to_owned());
        }
        tasks
    }

    /// Waits until `more` further tasks complete.
    async fn until_progress(&self, more: usize) {
        let before = self.done.load(SeqCst);
        until("further tasks complete", 2 * SOON, async || {
            (self.done.load(SeqCst) >= before + more).then_some(())
        })
        .await;
    }

    /// Checks that every send is exactly one task.
    async fn check(&self, tasks: Vec<Vec<String>>) {
        let mut ids: Vec<_> = tasks.into_iter().flatten().collect();
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "each send is a separate task");
        let listed = self.cluster.rpc().call("ListTasks", json!({"pageSize": 1})).await;
        let listed = listed.expect("the cluster serves");
        assert_eq!(listed["totalSize"], count, "no task is lost or duplicated");
    }

    /// Runs the faults under the load of all clients.
    async fn during(&self, faults: impl AsyncFnOnce(&Server)) {
        let server = self.cluster.server.as_ref().expect("the plan has a private server");
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
async fn database_restart_delays_tasks_and_loses_none() {
    let cluster = plan().gateways(2).workers(&["echo,script"; 2]).start().await;
    let load = Load::on(&cluster);
    load.during(async |server| {
        for crash in [false, true] {
            load.until_progress(20).await;
            server.restart(crash).await;
            load.until_progress(20).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_longer_than_every_lease_delays_tasks_and_loses_none() {
    // Each gateway and worker must reconnect to its only coordinator.
    let plan = plan().gateways(REPLICAS).one_coordinator_each().workers(&["echo,script"; REPLICAS]);
    let cluster = plan.start().await;
    let load = Load::on(&cluster);
    load.during(async |server| {
        load.until_progress(20).await;
        server.stop();
        let refused = load.refused.load(SeqCst);
        let done = load.done.load(SeqCst);
        // Long enough for every lease to expire, and for its holder to notice.
        sleep(3 * LEASE).await;
        assert!(
            load.refused.load(SeqCst) > refused + CLIENTS,
            "callers are answered during the outage"
        );
        let meanwhile = load.done.load(SeqCst) - done;
        assert!(meanwhile <= CLIENTS, "{meanwhile} tasks completed without a database");
        server.start_again();
        load.until_progress(20).await;
    })
    .await;
    // Every coordinator, including those without calls.
    for gateway in 0..REPLICAS {
        let rpc = cluster.rpc_at(gateway).agent("echo");
        until("every coordinator is back", SOON, async || {
            rpc.try_call("SendMessage", message("hello")).await.ok()?.ok()
        })
        .await;
    }
}

/// Bound for an answer during an outage.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const SENDS: usize = 8;

/// Checks a refusal because of the store; returns whether its outcome is unknown.
fn is_unknown(error: &Value, has_key: bool) -> bool {
    assert_eq!(error["data"][0]["reason"], "STORE_UNAVAILABLE", "{error}");
    let text = error["message"].as_str().unwrap_or_default();
    if text.contains("this call changed nothing") {
        return false;
    }
    let remedy = if has_key {
        "repeat it with the same Idempotency-Key"
    } else {
        "look for the task before you repeat the call"
    };
    assert!(text.contains("it is unknown whether") && text.contains(remedy), "{error}");
    assert_eq!(error["data"][0]["metadata"]["retryable"], has_key.to_string(), "{error}");
    true
}

/// Cuts all coordinators off from the database.
fn disconnect_database(cluster: &Cluster, is_silent: bool) {
    for proxy in &cluster.store_proxies {
        if is_silent { proxy.stall() } else { proxy.sever() }
    }
}

async fn check_answers_without_database(is_silent: bool) {
    let plan = Plan::replicas(2).store(Store::Postgres).workers(&["script"; 2]);
    let cluster = plan.start().await;
    let rpc = |key: Option<&str>| {
        let rpc = cluster.rpc().agent("script").within(2 * SOON);
        key.map_or(rpc.clone(), |key| rpc.header("idempotency-key", key))
    };
    // Every second send has a key.
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
    disconnect_database(&cluster, is_silent);
    let outage = Instant::now();
    // Sends during the outage, with and without a key, blocking and streaming.
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
        let took = answered - outage;
        assert!(took < ANSWERED_WITHIN, "answered after {took:?}: {answer:?}");
        let is_unknown = is_unknown(&answer.expect_err("the database is down"), has_key);
        unknown_without_key += usize::from(is_unknown && !has_key);
    }
    let mut ids = Vec::new();
    for send in sends {
        let (sent, answered) = send.await.expect("no send panics");
        let took = answered.saturating_duration_since(outage);
        assert!(took < ANSWERED_WITHIN, "answered after {took:?}: {sent:?}");
        let task = sent.expect("the task is stored")["task"].clone();
        assert!([SUBMITTED, WORKING].contains(&task::state(&task)), "{task}");
        assert_eq!(task["metadata"]["faultline.dev/earlyAnswer"], "STORE_UNAVAILABLE", "{task}");
        ids.push(task::id(&task).to_owned());
    }
    cluster.store_proxies.iter().for_each(|proxy| proxy.heal());
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
