//! Fan-out to several agents: the minimum number of results, the remaining branches, and the
//! record of tolerated failures in a degraded task.

use faultline::LocalMesh;
use faultline_tests::{
    Rpc, in_process,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker, reason};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Running {
    rpc: Rpc,
    script: Rpc,
    _mesh: LocalMesh,
    _dir: TempDir,
}

/// Fails every task with the same business error.
struct Down;

impl Agent for Down {
    async fn run(&self, _: &Context) -> Result<(), Error> {
        let failure = Error::new(&reason::FAILED_PRECONDITION).because("closed for today");
        Err(failure.code("CLOSED"))
    }
}

/// A mesh with `script`, and `down`, on one slot.
async fn start() -> Running {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mut config = in_process(dir.path());
    config.worker.slots = 1;
    let mut mesh = LocalMesh::start(config).await.expect("a mesh starts");
    let down = Offer::new("down", Down);
    mesh.attach(Config::default(), |config| Worker::new(config).offer(down))
        .await
        .expect("a worker attaches");
    let rpc = Rpc::at(mesh.gateway_addr());
    Running { script: rpc.agent("script"), rpc, _mesh: mesh, _dir: dir }
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

async fn children(rpc: &Rpc, parent: &Value) -> Vec<Value> {
    let list = rpc.call("ListTasks", json!({"pageSize": 100})).await.expect("tasks are listed");
    let tasks = list["tasks"].as_array().expect("tasks are a list").iter();
    let mine = tasks.filter(|t| t["metadata"]["faultline.dev/parent"] == parent["id"]);
    mine.cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_out_succeeds_with_the_minimum_of_results() {
    let up = start().await;
    let script = "fanout 2 of script,down,script { sleep 300ms; chunk x }";
    let task = up.script.send(script).await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert_eq!(task::artifacts(&task)["output"], "xx");
    assert_eq!(task["metadata"]["faultline.dev/degraded"], true, "{task}");
    let tolerated = &task["metadata"]["faultline.dev/tolerated"];
    assert_eq!(tolerated.as_array().map(Vec::len), Some(1), "{tolerated}");
    assert_eq!(tolerated[0]["severity"], "SEVERITY_RECOVERABLE");
    assert_eq!(tolerated[0]["reason"], "FAILED_PRECONDITION");
    assert_eq!(tolerated[0]["businessCode"], "CLOSED");
    assert_eq!(tolerated[0]["origin"]["agent"], "down");
    let hops: Vec<_> = tolerated[0]["causes"].as_array().unwrap().iter().collect();
    let outer = hops[0];
    let root = hops[1];
    assert_eq!((&outer["agent"], &root["agent"]), (&json!("script"), &json!("down")));
    assert_eq!(root["publicMessage"], "closed for today");
    assert!(failure(&task).is_null() && task["metadata"]["error_code"].is_null(), "{task}");
    assert_eq!(up.rpc.task(task::id(&task)).await, task, "the stored task is the same");
    let stored = &up.rpc.inspect(task::id(&task)).await["tolerated"];
    assert_eq!(json!([task::public(&stored[0])]), *tolerated);
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_out_fails_below_the_minimum_of_results() {
    let up = start().await;
    let task = up.script.send("fanout 3 of script,down,script { sleep 300ms; chunk x }").await;
    assert_eq!(task::state(&task), FAILED, "{task}");
    let failure = failure(&task);
    assert_eq!(failure["reason"], "MIN_RESULTS_NOT_MET", "{failure}");
    assert_eq!(failure["publicMessage"], "Only 2/3 agents responded. Minimum required: 3");
    assert_eq!((&failure["code"], &failure["retryable"]), (&json!(9), &json!(false)), "{failure}");
    assert_eq!(failure["origin"]["agent"], "script");
    let aggregate = &failure["aggregate"];
    assert_eq!((&aggregate["required"], &aggregate["asked"]), (&json!(3), &json!(3)));
    let branch = &aggregate["branches"][0];
    assert_eq!((&branch["agent"], &branch["code"]), (&json!("down"), &json!(9)));
    assert_eq!(branch["publicMessage"], "closed for today");
    let failed = up.rpc.task(branch["taskId"].as_str().unwrap()).await;
    assert_eq!(task::state(&failed), FAILED, "the branch names its task");
    assert_eq!(self::failure(&failed)["id"], branch["failureId"]);
    // The other branches are not cancelled, although three results are impossible.
    let children = children(&up.rpc, &task).await;
    let mut states: Vec<_> = children.iter().map(task::state).collect();
    states.sort_unstable();
    assert_eq!(states, [COMPLETED, COMPLETED, FAILED]);
}

#[tokio::test(flavor = "multi_thread")]
async fn first_result_cancels_the_other_branches() {
    let up = start().await;
    // One branch gets its answer; the others wait for theirs.
    let script = "fanout first of script,script,script { ask Who?; chunk $answer }";
    let root = up.script.send(script).await;
    assert_eq!(task::state(&root), INPUT_REQUIRED, "{root}");
    let all = until("all three ask", SOON, async || {
        let children = children(&up.rpc, &root).await;
        let waits = |t: &Value| task::state(t) == INPUT_REQUIRED;
        (children.len() == 3 && children.iter().all(waits)).then_some(children)
    })
    .await;
    up.script.call("SendMessage", answer(task::id(&root), "Ada")).await.expect("the task waits");
    let task = until("the fan-out is over", SOON, async || {
        Some(up.rpc.task(task::id(&root)).await).filter(|t| task::is_final(task::state(t)))
    })
    .await;
    assert_eq!((task::state(&task), &*task::artifacts(&task)["output"]), (COMPLETED, "Ada"));
    let mut states = Vec::new();
    for child in &all {
        states.push(task::state(&up.rpc.task(task::id(child)).await).to_owned());
    }
    states.sort_unstable();
    assert_eq!(states, [CANCELED, CANCELED, COMPLETED], "the stored states");
    assert!(
        task["metadata"]["faultline.dev/degraded"].is_null(),
        "a cancelled branch is not a failure: {task}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_all_branches_are_joined_in_order_on_one_slot() {
    let up = start().await;
    let script = "fanout all of script,echo,script { artifact report hello; chunk a }";
    let task = up.script.send(script).await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    let artifacts = task::artifacts(&task);
    assert_eq!((&*artifacts["report"], &*artifacts["output"]), ("hellohello", "aa"));
    assert!(artifacts["echo"].contains("artifact report"), "{artifacts:?}");
    assert!(task["metadata"].is_null(), "the task is not degraded: {task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delegating_agent_tolerates_a_failed_child_and_continues() {
    let up = start().await;
    let script = "try { delegate down { x } } else { delegate script { chunk \"by B\" } }";
    let params = message(script);
    let frames = up.script.stream("SendStreamingMessage", params).await.unwrap().all().await;
    let task_id = task::id(&frames[0].body["task"]).to_owned();
    let task = up.rpc.task(&task_id).await;
    assert_eq!((task::state(&task), &*task::artifacts(&task)["output"]), (COMPLETED, "by B"));
    assert_eq!(task["metadata"]["faultline.dev/degraded"], true, "{task}");
    let record = &task["metadata"]["faultline.dev/tolerated"][0];
    assert_eq!(record["severity"], "SEVERITY_RECOVERABLE", "{record}");
    assert_eq!(record["origin"]["agent"], "down", "{record}");
    // The stream has one event with the failure, and none with the state FAILED.
    let updates: Vec<_> = frames.iter().filter_map(|f| f.body.get("statusUpdate")).collect();
    let failures: Vec<_> = updates.iter().filter(|u| !failure(u).is_null()).collect();
    assert_eq!(failures.len(), 1, "{frames:?}");
    assert_eq!((task::state(failures[0]), failure(failures[0])), (WORKING, record));
    assert!(updates.iter().all(|u| task::state(u) != FAILED), "{updates:?}");
    assert!(updates.iter().all(|u| u["metadata"]["object_type"].is_null()), "{updates:?}");
}
