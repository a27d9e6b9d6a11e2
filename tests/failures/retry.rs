//! Retries, circuit breaker, failover, slot limits and fairness for failing agents, through whole
//! meshes.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use faultline::LocalMesh;
use faultline_gateway::{Auth, Scope, Token};
use faultline_tests::{
    Plan, Rpc, in_process,
    rpc::message,
    task::{self, COMPLETED, FAILED, Fold, WORKING},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Skill, Worker, reason};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A configuration with short retry pauses.
fn quick(dir: &Path) -> faultline::Config {
    let mut config = in_process(dir);
    config.coordinator.retry_base_ms = 20;
    config.coordinator.retry_cap_ms = 2000;
    config
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

fn outcomes(inspected: &Value) -> Vec<&str> {
    let attempts = inspected["attempts"].as_array().expect("there were attempts");
    attempts.iter().map(|a| a["outcome"].as_str().expect("each has an outcome")).collect()
}

async fn health(rpc: &Rpc, agent: &str) -> Value {
    rpc.mesh("Agents", json!({"name": agent})).await["agents"][0]["health"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn flaky_agent_completes_and_failures_stay_with_their_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(quick(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let script = "chunk a; fail UNAVAILABLE times=2 code=E7 text=\"not now\"; chunk b";
    let stream = rpc.stream("SendStreamingMessage", message(script)).await.unwrap();
    let frames = stream.all().await;
    let fold = Fold::of(&frames);
    assert_eq!(fold.finals(), [COMPLETED]);
    assert_eq!(fold.artifacts["output"], "ab", "output of failed attempts does not occur twice");
    let task = rpc.task(&fold.id).await;
    assert_eq!(task::artifacts(&task)["output"], "ab");
    assert!(failure(&task).is_null(), "{task}");
    let seen = rpc.inspect(&fold.id).await;
    assert_eq!(outcomes(&seen), ["OUTCOME_FAILED", "OUTCOME_FAILED", "OUTCOME_ENDED"], "{seen}");
    for attempt in &seen["attempts"].as_array().unwrap()[..2] {
        assert_eq!(attempt["failure"]["reason"], "UNAVAILABLE", "{attempt}");
        assert_eq!(attempt["failure"]["businessCode"], "E7", "{attempt}");
        assert_eq!(attempt["failure"]["publicMessage"], "not now", "{attempt}");
    }
    assert_eq!(health(&rpc, "script").await["healthy"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn last_failure_ends_the_task_with_the_number_of_retries() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(quick(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let task = rpc.send("fail UNAVAILABLE").await;
    assert_eq!(task::state(&task), FAILED);
    assert_eq!(failure(&task)["retriesSpent"], 3, "{task}");
    let seen = rpc.inspect(task::id(&task)).await;
    let failed = "OUTCOME_FAILED";
    assert_eq!(outcomes(&seen), [failed, failed, failed, "OUTCOME_ENDED"], "{seen}");
    assert_eq!(health(&rpc, "script").await["consecutiveFailures"], 1);
    // Permanent failures are not retried.
    for reason in ["NOT_FOUND", "INVALID_ARGUMENT", "INTERNAL", "UNKNOWN"] {
        let task = rpc.send(&format!("fail {reason} code=40401")).await;
        assert_eq!(failure(&task)["reason"], reason, "{task}");
        let seen = rpc.inspect(task::id(&task)).await;
        assert_eq!(outcomes(&seen), ["OUTCOME_ENDED"], "{seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_delay_is_respected_up_to_the_cap() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(quick(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let began = Instant::now();
    let task = rpc.send("fail RATE_LIMITED retry_after=700ms times=1; chunk done").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    let began = Instant::now();
    let task = rpc.send("fail RATE_LIMITED retry_after=120s times=1; chunk done").await;
    assert_eq!(failure(&task)["reason"], "RATE_LIMITED", "{task}");
    assert_eq!(failure(&task)["retryAfter"], "120s", "the caller may wait: {task}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(outcomes(&rpc.inspect(task::id(&task)).await), ["OUTCOME_ENDED"]);
}

/// Counts its calls, and fails until `serves` is set.
#[derive(Clone, Default)]
struct Counting {
    calls: Arc<AtomicU32>,
    serves: Arc<AtomicU32>,
}

impl Counting {
    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Agent for Counting {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.serves.load(Ordering::SeqCst) {
            0 => Err(Error::new(&reason::UNAVAILABLE).because("the model is away")),
            _ => cx.artifact("out", "served").await,
        }
    }
}

async fn attach(mesh: &mut LocalMesh, slots: u32, offers: Vec<Offer>) {
    let config = Config { slots, ..Config::default() };
    let attached = mesh.attach(config, |config| {
        offers.into_iter().fold(Worker::new(config), |worker, offer| worker.offer(offer))
    });
    attached.await.expect("a worker attaches");
}

#[tokio::test(flavor = "multi_thread")]
async fn delegated_task_is_tried_exactly_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut mesh = LocalMesh::start(quick(dir.path())).await.unwrap();
    let counting = Counting::default();
    attach(&mut mesh, 4, vec![Offer::new("counting", counting.clone())]).await;
    let rpc = Rpc::at(mesh.gateway_addr());
    for round in 1..=2 {
        let task = rpc.agent("script").send("delegate counting { hi }").await;
        assert_eq!(task::state(&task), FAILED);
        assert_eq!(counting.calls(), 2 * round);
        let failure = failure(&task);
        assert_eq!(failure["origin"]["agent"], "counting", "{failure}");
        assert_eq!((&failure["retriesSpent"], &failure["hop"]), (&json!(1), &json!(1)));
        let seen = rpc.inspect(task::id(&task)).await;
        assert_eq!(outcomes(&seen), ["OUTCOME_ENDED"], "the calling task is not retried: {seen}");
        assert_eq!(health(&rpc, "counting").await["consecutiveFailures"], round);
    }
    assert_eq!(health(&rpc, "script").await["consecutiveFailures"].as_u64().unwrap_or(0), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn circuit_opens_refuses_at_once_admits_one_probe_and_closes() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = quick(dir.path());
    config.coordinator.retries = 0;
    config.coordinator.breaker_open_ms = 1500;
    let mut mesh = LocalMesh::start(config).await.unwrap();
    let counting = Counting::default();
    attach(&mut mesh, 4, vec![Offer::new("counting", counting.clone())]).await;
    let rpc = Rpc::at(mesh.gateway_addr()).agent("counting");
    for _ in 0..3 {
        assert_eq!(task::state(&rpc.send("hi").await), FAILED);
    }
    let asked = Instant::now();
    let refused = rpc.call("SendMessage", message("hi")).await.unwrap_err();
    assert!(asked.elapsed() < Duration::from_millis(500), "at once: {:?}", asked.elapsed());
    assert_eq!(refused["code"], -31014, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("CIRCUIT_OPEN") && text.contains("'counting'"), "{text}");
    assert!(text.contains("retryDelay") || text.contains("retryAfter"), "{text}");
    assert_eq!(counting.calls(), 3, "the fourth task is not sent");
    let open = health(&rpc, "counting").await;
    assert_eq!(open["circuit"], "CIRCUIT_OPEN", "{open}");
    assert!(open["openUntil"].is_string() && open["lastFailure"].is_string(), "{open}");
    // A delegating task fails with the same reason, and the origin is the failing agent.
    let parent = rpc.agent("script").send("delegate counting { hi }").await;
    assert_eq!(failure(&parent)["reason"], "CIRCUIT_OPEN", "{parent}");
    assert_eq!(failure(&parent)["origin"]["agent"], "counting", "{parent}");
    assert_eq!(counting.calls(), 3);
    let half_open = until("the circuit is half open", SOON, async || {
        let health = health(&rpc, "counting").await;
        (health["circuit"] == "CIRCUIT_HALF_OPEN").then_some(health)
    });
    assert_eq!(half_open.await["consecutiveFailures"], 3);
    counting.serves.store(1, Ordering::SeqCst);
    assert_eq!(task::state(&rpc.send("hi").await), COMPLETED);
    let closed = health(&rpc, "counting").await;
    assert_eq!((&closed["circuit"], &closed["healthy"]), (&json!("CIRCUIT_CLOSED"), &json!(true)));
    counting.serves.store(0, Ordering::SeqCst);
    assert_eq!(task::state(&rpc.send("hi").await), FAILED);
    assert_eq!(
        health(&rpc, "counting").await["circuit"],
        "CIRCUIT_CLOSED",
        "the count of failures starts again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_agent_does_not_starve_other_agents_of_slots() {
    let plan = Plan::default().slots(4).with("agents.script.slots_max = 3");
    let cluster = plan.start().await;
    let rpc = cluster.rpc();
    let _calls = send_many(&rpc.agent("script"), "sleep 60s", 10);
    until("all tasks are counted", SOON, async || {
        let agent = &rpc.mesh("Agents", json!({"name": "script"})).await["agents"][0];
        (agent["computing"] == 3 && agent["queued"] == 7).then_some(())
    })
    .await;
    for _ in 0..20 {
        assert_eq!(task::state(&rpc.agent("echo").send("hello").await), COMPLETED);
    }
    let agent = &rpc.mesh("Agents", json!({"name": "script"})).await["agents"][0];
    assert_eq!((&agent["computing"], &agent["queued"]), (&json!(3), &json!(7)));
}

/// Concurrent calls, which are cancelled on drop.
fn send_many(rpc: &Rpc, script: &'static str, calls: usize) -> JoinSet<()> {
    let calls = (0..calls).map(|_| {
        let rpc = rpc.clone();
        async move {
            // A call that is cancelled at the end of the test has no answer.
            let _ = rpc.try_call("SendMessage", message(script)).await;
        }
    });
    calls.collect()
}

/// Writes its own name.
struct Named(&'static str);

impl Agent for Named {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("out", self.0).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_goes_to_an_agent_with_the_same_skill() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = quick(dir.path());
    config.coordinator.retries = 1;
    let policy = config.coordinator.agents.entry("first".to_owned()).or_default();
    policy.failover = vec!["unrelated".to_owned(), "second".to_owned()];
    let mut mesh = LocalMesh::start(config).await.unwrap();
    let skill = |id: &str| Skill::new(id, id, "For a test");
    let counting = Counting::default();
    let offers = vec![
        Offer::new("first", counting.clone()).skill(skill("sum")),
        Offer::new("second", Named("second")).skill(skill("other")).skill(skill("sum")),
        Offer::new("unrelated", Named("unrelated")).skill(skill("sing")),
    ];
    attach(&mut mesh, 8, offers).await;
    let rpc = Rpc::at(mesh.gateway_addr()).agent("first");
    let task = rpc.send("hi").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert_eq!(task::artifacts(&task)["out"], "second");
    assert_eq!(counting.calls(), 2, "retries come before failover");
    let seen = rpc.inspect(task::id(&task)).await;
    assert_eq!(seen["agent"], "first", "the agent of the task does not change for callers");
    assert_eq!(outcomes(&seen), ["OUTCOME_FAILED", "OUTCOME_FAILED", "OUTCOME_ENDED"], "{seen}");
    assert_eq!(seen["attempts"][2]["agent"], "second", "{seen}");
    assert_eq!(seen["attempts"][1]["failure"]["origin"]["agent"], "first", "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_pause_survives_a_coordinator_restart() {
    let mut cluster = Plan::default().with("retry_cap_ms = 10000").start().await;
    let rpc = cluster.rpc().agent("script");
    let began = Instant::now();
    let sent = rpc.send_immediately("fail RATE_LIMITED retry_after=4s times=1; chunk done").await;
    let id = task::id(&sent).to_owned();
    until("the attempt has failed", SOON, async || {
        let seen = rpc.inspect(&id).await;
        (outcomes(&seen) == ["OUTCOME_FAILED"]).then_some(())
    })
    .await;
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    let task = until("the task has ended", SOON, async || {
        let task = rpc.call("GetTask", json!({"id": id})).await.ok()?;
        task::is_final(task::state(&task)).then_some(task)
    })
    .await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    let seen = rpc.inspect(&id).await;
    assert_eq!(outcomes(&seen), ["OUTCOME_FAILED", "OUTCOME_ENDED"], "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn task_waiting_for_a_retry_is_working_and_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let sent = rpc.send_immediately("fail UNAVAILABLE retry_after=20s").await;
    let id = task::id(&sent);
    until("the attempt has failed", SOON, async || {
        (outcomes(&rpc.inspect(id).await) == ["OUTCOME_FAILED"]).then_some(())
    })
    .await;
    assert_eq!(task::state(&rpc.task(id).await), WORKING);
    let stopped = rpc.call("CancelTask", json!({"id": id})).await.unwrap();
    assert_eq!(task::state(&stopped), task::CANCELED);
    assert_eq!(rpc.task(id).await, stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn principal_with_many_tasks_does_not_starve_another() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    config.worker.slots = 1;
    config.auth = two_principals();
    let mesh = LocalMesh::start(config).await.unwrap();
    let rpc = |token: &str| {
        let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
        rpc.header("authorization", format!("Bearer {token}"))
    };
    let many = rpc("many-token");
    let few = rpc("few-token");
    let _calls = send_many(&many, "sleep 200ms", 60);
    until("all tasks are counted", SOON, async || {
        let listed = many.call("ListTasks", json!({"pageSize": 1})).await.unwrap();
        (listed["totalSize"] == 60).then_some(())
    })
    .await;
    let began = Instant::now();
    assert_eq!(task::state(&few.send("chunk mine").await), COMPLETED);
    let listed = many.call("ListTasks", json!({"pageSize": 100})).await.unwrap();
    let tasks = listed["tasks"].as_array().unwrap().iter();
    let left = tasks.filter(|task| !task::is_final(task::state(task))).count();
    assert!(left > 20, "only {left} of 60 were left after {:?}", began.elapsed());
}

/// The hashes are of `printf many-token | sha256sum` and of `few-token`.
fn two_principals() -> Auth {
    let token = |sha256: &str, principal: &str| Token {
        sha256: sha256.to_owned(),
        principal: principal.to_owned(),
        agents: vec!["script".to_owned()],
        scopes: vec![Scope::Send, Scope::Read],
    };
    let many = "0eadad572d5d0d8fa996e22cf6bb4837f3894ebac903c81dc199636ecf73fb7f";
    let few = "b4169edea61537af2c94fa90491f56b73b6ac3e7c2b29e60cc760e238e224fb1";
    Auth { token: vec![token(many, "many"), token(few, "few")] }
}

#[tokio::test(flavor = "multi_thread")]
async fn delegation_to_a_full_agent_waits_for_the_requested_delay_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = quick(dir.path());
    let policy = config.coordinator.agents.entry("busy".to_owned()).or_default();
    policy.slots_max = Some(1);
    policy.queue_max = Some(1);
    let mut mesh = LocalMesh::start(config).await.unwrap();
    attach(&mut mesh, 8, vec![Offer::new("busy", Busy)]).await;
    let rpc = Rpc::at(mesh.gateway_addr());
    for text in ["600", "0"] {
        rpc.agent("busy").send_immediately(text).await;
    }
    let began = Instant::now();
    let task = rpc.agent("script").send("delegate busy { 0 }").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert!(began.elapsed() >= Duration::from_secs(1), "the delegation waits for the delay");
    let seen = rpc.inspect(task::id(&task)).await;
    assert_eq!(outcomes(&seen), ["OUTCOME_ENDED"], "the calling task is not retried");
}

/// Sleeps for the number of milliseconds in its message.
struct Busy;

impl Agent for Busy {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.sleep(Duration::from_millis(cx.text().trim().parse()?)).await
    }
}
