//! Delegation between agents: slots, failures, cancels and questions of a chain, and recovery after
//! a crash without duplicate children (an idempotency key per child).

use std::time::Duration;

use faultline_tests::{
    Cluster, Plan, Rpc,
    rpc::answer,
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING, is_final},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker};
use serde_json::{Value, json};

use crate::{Running, start, start_with};

/// `script` in a chain: each hop delegates to the next, and the last runs `work`.
fn chain(hops: usize, work: &str) -> String {
    (0..hops).fold(work.to_owned(), |inner, _| format!("delegate script {{ {inner} }}"))
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

async fn tasks(rpc: &Rpc) -> Vec<Value> {
    let list = rpc.call("ListTasks", json!({"pageSize": 100})).await.expect("tasks are listed");
    list["tasks"].as_array().expect("tasks are a list").clone()
}

/// The descendants of a task in a chain, from its child to the leaf.
async fn descendants(rpc: &Rpc, id: &str) -> Vec<Value> {
    let tasks = tasks(rpc).await;
    let child = |id: &str| tasks.iter().find(|t| t["metadata"]["faultline.dev/parent"] == *id);
    let mut line: Vec<Value> = Vec::new();
    let mut at = id.to_owned();
    while let Some(next) = child(&at) {
        at = task::id(next).to_owned();
        line.push(next.clone());
    }
    line
}

async fn until_descendants(rpc: &Rpc, id: &str, length: usize) -> Vec<Value> {
    let what = format!("{id} has {length} descendants");
    until(&what, SOON, async || Some(descendants(rpc, id).await).filter(|l| l.len() == length))
        .await
}

async fn ended(rpc: &Rpc, id: &str) -> Value {
    until("the task has ended", 2 * SOON, async || {
        Some(rpc.task(id).await).filter(|task| is_final(task::state(task)))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn six_hops_complete_on_one_slot() {
    let up = start_with(|config| config.worker.slots = 1).await;
    let task = up.script.send(&chain(5, "sleep 10ms; chunk deep")).await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert_eq!(task::artifacts(&task)["output"], "deep");
    let below = descendants(&up.rpc, task::id(&task)).await;
    assert_eq!(below.len(), 5);
    for child in &below {
        assert_eq!(task::state(child), COMPLETED);
        assert_eq!(child["contextId"], task["contextId"], "{child}");
    }
    until("the slot is free", SOON, async || {
        let workers = up.rpc.mesh("Workers", json!({})).await;
        (workers["workers"][0]["used"].as_u64().unwrap_or(0) == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_in_parallel_complete_on_one_slot() {
    let up = start_with(|config| config.worker.slots = 1).await;
    let script = chain(3, "chunk x");
    let sent = futures::future::join_all((0..20).map(|_| up.script.send(&script))).await;
    for task in sent {
        assert_eq!(task::artifacts(&task)["output"], "x", "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_of_the_leaf_reaches_the_root_with_every_hop() {
    let up = start_with(|config| config.coordinator.retries = 0).await;
    for retryable in [true, false] {
        check_chain(&up, retryable).await;
    }
}

async fn check_chain(up: &Running, retryable: bool) {
    let fault = format!(
        "fail RATE_LIMITED code=40401 text=\"slow down\" retry_after=2s retryable={retryable}"
    );
    let top = up.script.send(&chain(4, &fault)).await;
    assert_eq!(task::state(&top), FAILED);
    let below = descendants(&up.rpc, task::id(&top)).await;
    let line: Vec<&Value> = std::iter::once(&top).chain(&below).collect();
    assert_eq!(line.len(), 5);
    let root = failure(line[4]);
    assert_eq!(root["publicMessage"], "slow down", "{root}");
    assert_eq!(root["retryable"], retryable, "{root}");
    for (at, task) in line.iter().enumerate() {
        let failure = failure(task);
        let hops = 4 - at;
        assert_eq!(failure["hop"].as_u64().unwrap_or(0), hops as u64, "{failure}");
        for same in
            ["id", "origin", "reason", "businessCode", "traceId", "retryable", "retryAfter", "code"]
        {
            assert_eq!(failure[same], root[same], "{same}: {failure}");
            assert!(!root[same].is_null(), "{same}: {root}");
        }
        assert_eq!(failure["taskId"], task["id"], "{failure}");
        let via = vec!["script"; hops.saturating_sub(1)].join(", ");
        let text = match hops {
            0 => "slow down".to_owned(),
            1 => "script: slow down".to_owned(),
            _ => format!("script: slow down (via {via})"),
        };
        assert_eq!(failure["publicMessage"], text, "{failure}");
        let status_text = &task["status"]["message"]["parts"][0]["text"];
        assert_eq!(
            *status_text, text,
            "the status has the text of the origin and the path: {task}"
        );
        // The causes are those of the child with this hop in front.
        let causes = failure["causes"].as_array().expect("there are causes");
        let ids: Vec<_> = causes.iter().map(|c| &c["taskId"]).collect();
        let expected: Vec<_> = line[at..].iter().map(|t| &t["id"]).collect();
        assert_eq!(ids, expected, "{failure}");
        let numbers: Vec<_> = causes.iter().map(|c| c["hop"].as_u64().unwrap_or(0)).collect();
        assert_eq!(numbers, (0..=hops as u64).rev().collect::<Vec<_>>());
        let stored = &up.rpc.inspect(task::id(task)).await["failure"];
        assert_eq!(task::public(stored), *failure, "the stored failure is the same");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_of_a_child_may_be_caught() {
    let up = start().await;
    let script = "try { delegate script { delegate script { fail INTERNAL } } } \
                  else { chunk \"it was $failure\" }; chunk \"; all well\"";
    let task = up.script.send(script).await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert_eq!(task::artifacts(&task)["output"], "it was INTERNAL; all well");
    let rejected = up.script.send("try { delegate script { reject no } } else { chunk $failure }");
    assert_eq!(task::artifacts(&rejected.await)["output"], "TASK_REJECTED");
    let unknown = up.script.send("delegate nobody { hello }").await;
    assert_eq!(failure(&unknown)["reason"], "AGENT_NOT_FOUND", "{unknown}");
    let nothing_failed = up.script.send("try { chunk a } else { chunk b }; chunk c").await;
    assert_eq!(task::artifacts(&nothing_failed)["output"], "ac");
}

#[tokio::test(flavor = "multi_thread")]
async fn seventeenth_hop_is_refused() {
    let up = start().await;
    let task = up.script.send(&chain(16, "chunk deep")).await;
    assert_eq!(task::artifacts(&task)["output"], "deep", "{task}");
    let task = up.script.send(&chain(17, "chunk deep")).await;
    assert_eq!(failure(&task)["reason"], "DELEGATION_TOO_DEEP", "{task}");
    assert_eq!(failure(&task)["hop"], 16, "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_the_root_cancels_all_descendants() {
    let up = start().await;
    let root = up.script.send_immediately(&chain(3, "say here; sleep 60s")).await;
    let id = task::id(&root);
    let line = until_descendants(&up.rpc, id, 3).await;
    until("the leaf runs", SOON, async || {
        let last = up.rpc.task(task::id(&line[2])).await;
        (task::text(&last["status"]["message"]) == "here").then_some(())
    })
    .await;
    let canceled =
        up.rpc.call("CancelTask", json!({"id": id})).await.expect("the task is cancelled");
    assert_eq!(task::state(&canceled), CANCELED);
    for child in &line {
        let child = up.rpc.task(task::id(child)).await;
        assert_eq!(task::state(&child), CANCELED, "{child}");
        assert_eq!(failure(&child)["reason"], "CANCELLED", "{child}");
    }
    until("no slot is held", SOON, async || {
        let workers = up.rpc.mesh("Workers", json!({})).await;
        (workers["workers"][0]["used"].as_u64().unwrap_or(0) == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_child_fails_its_parent() {
    let up = start().await;
    let root = up.script.send_immediately(&chain(1, "sleep 60s")).await;
    let child = until_descendants(&up.rpc, task::id(&root), 1).await.remove(0);
    up.rpc.call("CancelTask", json!({"id": child["id"]})).await.expect("the task is cancelled");
    let root = ended(&up.rpc, task::id(&root)).await;
    assert_eq!((task::state(&root), &failure(&root)["reason"]), (FAILED, &json!("CANCELLED")));
    assert_eq!(failure(&root)["causes"].as_array().map(Vec::len), Some(2), "{root}");
}

#[tokio::test(flavor = "multi_thread")]
async fn question_rises_three_hops_and_its_answer_descends() {
    let up = start_with(|config| config.worker.slots = 1).await;
    let work =
        "chunk \"hello \"; ask \"Your name?\"; chunk $answer; ask \"And yours?\"; chunk $answer";
    let root = up.script.send(&chain(3, work)).await;
    let id = task::id(&root);
    assert_eq!(task::state(&root), INPUT_REQUIRED, "{root}");
    let line = until_descendants(&up.rpc, id, 3).await;
    for task in line.iter().chain([&root]) {
        let task = up.rpc.task(task::id(task)).await;
        assert_eq!(task::state(&task), INPUT_REQUIRED, "the whole chain waits: {task}");
        assert_eq!(task::text(&task["status"]["message"]), "Your name?");
        assert!(task.get("artifacts").is_none() || task["id"] == line[2]["id"], "{task}");
    }
    let asked =
        up.script.call("SendMessage", answer(id, "Ada")).await.expect("the task waits")["task"]
            .clone();
    assert_eq!(task::state(&asked), INPUT_REQUIRED, "{asked}");
    assert_eq!(task::text(&asked["status"]["message"]), "And yours?");
    let done =
        up.script.call("SendMessage", answer(id, " Bob")).await.expect("the task waits")["task"]
            .clone();
    assert_eq!(task::state(&done), COMPLETED, "{done}");
    assert_eq!(task::artifacts(&done)["output"], "hello Ada Bob");
}

#[tokio::test(flavor = "multi_thread")]
async fn question_may_be_answered_at_the_asking_task() {
    let up = start().await;
    let root = up.script.send(&chain(2, "ask \"Well?\"; chunk $answer")).await;
    let line = until_descendants(&up.rpc, task::id(&root), 2).await;
    let sent = up.script.call("SendMessage", answer(task::id(&line[1]), "yes")).await;
    assert_eq!(task::state(&sent.expect("the task waits")["task"]), COMPLETED);
    let root = ended(&up.rpc, task::id(&root)).await;
    assert_eq!(task::artifacts(&root)["output"], "yes", "{root}");
}

/// Asks and delegates concurrently.
struct Both;

impl Agent for Both {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let (answer, made) =
            tokio::try_join!(cx.ask("Well?"), cx.delegate("script", "sleep 300ms; chunk made"))?;
        cx.artifact("both", format!("{} {}", answer.text(), made.text())).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_may_ask_and_delegate_concurrently() {
    let mut up = start_with(|config| config.worker.slots = 1).await;
    let one = Config { slots: 1, ..Config::default() };
    let build = |config| Worker::new(config).offer(Offer::new("both", Both));
    up.mesh.attach(one, build).await.expect("a worker attaches");
    let both = up.rpc.agent("both");
    let early = both.send(" ").await;
    let sent = both.call("SendMessage", answer(task::id(&early), "early")).await;
    assert_eq!(task::artifacts(&sent.expect("the task waits")["task"])["both"], "early made");
    let late = both.send(" ").await;
    let child = until_descendants(&up.rpc, task::id(&late), 1).await.remove(0);
    ended(&up.rpc, task::id(&child)).await;
    let sent = both.call("SendMessage", answer(task::id(&late), "late")).await;
    assert_eq!(task::artifacts(&sent.expect("the task waits")["task"])["both"], "late made");
}

/// Delegates its script as a detached child, which outlives it.
struct Relay;

impl Agent for Relay {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let made = cx.delegate("script", cx.text()).key("once").detached().await?;
        let again = cx.delegate("script", "fail INTERNAL").key("once").await?;
        assert_eq!(made, again, "the key identifies the child, not the message");
        cx.reply(made.text()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn detached_child_outlives_its_parent() {
    let mut up = start().await;
    let build = |config| Worker::new(config).offer(Offer::new("relay", Relay));
    up.mesh.attach(Config::default(), build).await.expect("a worker attaches");
    let relay = up.rpc.agent("relay");
    for (script, reply) in [("chunk a; chunk b", "ab"), ("message hi", "hi")] {
        let task = relay.send(script).await;
        assert_eq!(task::state(&task), COMPLETED, "{task}");
        assert_eq!(task::text(&task["status"]["message"]), reply);
    }
    let parent = relay.send_immediately("sleep 300ms; chunk done").await;
    let child = until_descendants(&up.rpc, task::id(&parent), 1).await.remove(0);
    up.rpc.call("CancelTask", json!({"id": parent["id"]})).await.expect("the task is cancelled");
    assert_eq!(task::artifacts(&ended(&up.rpc, task::id(&child)).await)["output"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_worker_hands_over_a_question_with_all_hops() {
    let mut cluster = Plan::default().start().await;
    let rpc = cluster.rpc().agent("script");
    let sent = rpc.send(&chain(2, "chunk \"hello \"; ask \"Your name?\"; chunk $answer")).await;
    let id = task::id(&sent);
    let line = until_descendants(&rpc, id, 2).await;
    cluster.add_worker("echo,script", 1).await;
    cluster.workers[0].terminate().await;
    let gone = cluster.workers[0].exit_within(Duration::from_secs(5)).await;
    assert_eq!(
        gone.and_then(|status| status.code()),
        Some(0),
        "an open question does not delay the drain"
    );
    let done = rpc.call("SendMessage", answer(id, "Ada")).await.expect("the task waits");
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
    check_once(&cluster, id, &line, "hello Ada").await;
}

/// Waits until the leaf of `length` descendants runs its script.
async fn until_leaf_works(rpc: &Rpc, id: &str, length: usize) -> Vec<Value> {
    let line = until_descendants(rpc, id, length).await;
    until("the leaf works", SOON, async || {
        let last = rpc.task(task::id(&line[length - 1])).await;
        let runs = task::text(&last["status"]["message"]) == "here";
        (task::state(&last) == WORKING && runs).then_some(())
    })
    .await;
    line
}

async fn check_once(cluster: &Cluster, id: &str, line: &[Value], text: &str) {
    let rpc = cluster.rpc();
    let root = ended(&rpc, id).await;
    assert_eq!(task::state(&root), COMPLETED, "{root}");
    assert_eq!(task::artifacts(&root)["output"], text);
    let after = descendants(&rpc, id).await;
    let ids = |line: &[Value]| line.iter().map(|t| task::id(t).to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&after), ids(line), "the same children");
    assert_eq!(tasks(&rpc).await.len(), line.len() + 1, "no other tasks");
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_crash_duplicates_no_child() {
    let mut cluster = Plan::default().slots(1).start().await;
    let rpc = cluster.rpc().agent("script");
    let sent = rpc.send_immediately(&chain(2, "chunk a; say here; sleep 2s; chunk b")).await;
    let line = until_leaf_works(&rpc, task::id(&sent), 2).await;
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    check_once(&cluster, task::id(&sent), &line, "ab").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_crash_loses_no_child_and_no_text() {
    let plan = Plan::default().with("reattach_grace_ms = 300").slots(1);
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let work = "chunk a; checkpoint; chunk b; say here; sleep 1s; chunk c";
    let sent = rpc.send_immediately(&chain(2, work)).await;
    let line = until_leaf_works(&rpc, task::id(&sent), 2).await;
    cluster.workers[0].kill().await;
    cluster.workers[0].restart().await;
    check_once(&cluster, task::id(&sent), &line, "abc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn question_survives_the_loss_of_worker_and_coordinator() {
    let plan = Plan::default().with("reattach_grace_ms = 300");
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let sent = rpc.send(&chain(2, "chunk \"hello \"; ask \"Your name?\"; chunk $answer")).await;
    let id = task::id(&sent);
    let line = until_descendants(&rpc, id, 2).await;
    cluster.coordinators[0].kill().await;
    cluster.workers[0].kill().await;
    cluster.coordinators[0].restart().await;
    cluster.workers[0].restart().await;
    let answered = until("the gateway answers again", SOON, async || {
        rpc.within(Duration::from_secs(20)).call("SendMessage", answer(id, "Ada")).await.ok()
    });
    assert_eq!(task::state(&answered.await["task"]), COMPLETED);
    check_once(&cluster, id, &line, "hello Ada").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_crashes_create_no_second_child() {
    let plan = Plan::default()
        .with("reattach_grace_ms = 300")
        .with("max_attempts = 20")
        .workers(&["script", "script"])
        .slots(2);
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let script = chain(2, "chunk a; sleep 300ms; chunk b; sleep 300ms; chunk c");
    let mut sent = Vec::new();
    for _ in 0..8 {
        sent.push(task::id(&rpc.send_immediately(&script).await).to_owned());
    }
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let process = match round {
            1 => &mut cluster.coordinators[0],
            round => &mut cluster.workers[round % 2],
        };
        process.kill().await;
        process.restart().await;
    }
    for id in &sent {
        let root = ended(&rpc, id).await;
        assert_eq!(task::state(&root), COMPLETED, "{root}");
        assert_eq!(task::artifacts(&root)["output"], "abc", "{root}");
        assert_eq!(descendants(&rpc, id).await.len(), 2);
    }
    assert_eq!(tasks(&rpc).await.len(), 3 * sent.len(), "two descendants per root");
}

/// Asks, and delegates while the question is open.
struct Late;

impl Agent for Late {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        if cx.text() == "busy" {
            cx.status("busy").await?;
            return cx.sleep(Duration::from_millis(1500)).await;
        }
        let delegated = async {
            cx.sleep(Duration::from_millis(700)).await?;
            cx.delegate("script", "chunk made").await
        };
        let (answer, made) = tokio::try_join!(cx.ask("Well?"), delegated)?;
        cx.artifact("both", format!("{} {}", answer.text(), made.text())).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_waiting_for_a_slot_survives_the_release_of_the_slot() {
    let mut up = start().await;
    let one = Config { slots: 1, ..Config::default() };
    let build = |config| Worker::new(config).offer(Offer::new("late", Late));
    up.mesh.attach(one, build).await.expect("a worker attaches");
    let late = up.rpc.agent("late");
    let asking = late.send("ask").await;
    late.send_immediately("busy").await;
    let late = late.within(Duration::from_secs(5));
    let sent = late.call("SendMessage", answer(task::id(&asking), "yes")).await;
    assert_eq!(task::artifacts(&sent.expect("the task waits")["task"])["both"], "yes made");
}

#[tokio::test(flavor = "multi_thread")]
async fn question_names_the_asking_task_and_its_path() {
    let up = start().await;
    let root = up.script.send("delegate script { ask Who? }").await;
    let id = task::id(&root);
    let shown = &root["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    let asker = shown["taskId"].as_str().expect("the asker is named");
    assert_eq!(shown["path"], json!([id, asker]), "{shown}");
    let child = up.rpc.task(asker).await;
    assert_eq!(child["metadata"]["faultline.dev/parent"], *id, "{child}");
    let own = &child["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    assert_eq!((&own["taskId"], &own["path"]), (&json!(asker), &json!([asker])), "{own}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delegation_to_an_unknown_agent_fails_the_caller() {
    let up = start().await;
    let task = up.script.send("delegate nobody { x }").await;
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(
        failure["publicMessage"],
        "nobody: no agent 'nobody' is known here; POST /mesh/Agents lists those that are",
        "{failure}"
    );
    assert_eq!((&failure["reason"], &failure["hop"]), (&json!("AGENT_NOT_FOUND"), &json!(1)));
    assert_eq!(failure["origin"]["agent"], "nobody", "{failure}");
    let few = up.script.send("fanout 2 of echo,nobody { hello }").await;
    let few = &few["metadata"]["faultline.dev/failure"];
    assert_eq!(few["publicMessage"], "Only 1/2 agents responded. Minimum required: 2", "{few}");
    let branch = &few["aggregate"]["branches"][0];
    assert_eq!(
        (&branch["originAgent"], &branch["rootReason"]),
        (&json!("nobody"), &json!("AGENT_NOT_FOUND")),
        "{branch}"
    );
}
