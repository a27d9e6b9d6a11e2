//! Fuzz test of the bindings: random valid requests, and valid requests with broken trees or bytes.
//! Every answer is well-formed, nothing panics, and the store keeps every task.

mod grpc;
mod v03;
mod v1;

use std::collections::BTreeSet;

use faultline::LocalMesh;
use faultline_tests::{Rpc, in_process, task};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

const CASES: usize = 600;

/// The protocol of a fuzzed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    JsonRpc,
    Rest,
    Grpc,
    JsonRpc03,
    Rest03,
}

#[tokio::test(flavor = "multi_thread")]
async fn random_json_rpc_is_answered_well_formed() {
    try_all(Protocol::JsonRpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_rest_is_answered_well_formed() {
    try_all(Protocol::Rest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_grpc_is_answered_well_formed() {
    try_all(Protocol::Grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_json_rpc_of_0_3_is_answered_well_formed() {
    try_all(Protocol::JsonRpc03).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_rest_of_0_3_is_answered_well_formed() {
    try_all(Protocol::Rest03).await;
}

fn seed() -> u64 {
    let given = std::env::var("FAULTLINE_SEED").ok().and_then(|s| s.parse().ok());
    given.unwrap_or_else(rand::random)
}

async fn try_all(protocol: Protocol) {
    let seed = seed();
    eprintln!("repeat with FAULTLINE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mesh = LocalMesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let rpc = Rpc::at(mesh.gateway_addr());
    let mut known = Known::default();
    let mut succeeded = BTreeSet::new();
    for _ in 0..CASES {
        let (operation, params) = valid(&mut rng, &known);
        let task = params["taskId"].as_str().map(str::to_owned);
        let is_ok = match protocol {
            Protocol::JsonRpc => v1::rpc(&mut rng, &rpc, operation, params).await,
            Protocol::Rest => v1::rest(&mut rng, &rpc, operation, params).await,
            Protocol::Grpc => grpc::call(&mut rng, &rpc, operation, &params).await,
            Protocol::JsonRpc03 => v03::rpc(&mut rng, &rpc, operation, params).await,
            Protocol::Rest03 => v03::rest(&mut rng, &rpc, operation, params).await,
        };
        if is_ok {
            succeeded.insert(operation);
        }
        if is_ok && operation == "CreateTaskPushNotificationConfig" {
            known.pushed.extend(task);
        }
        if rng.random_ratio(1, 20) {
            known = Known { pushed: known.pushed, ..Known::of(&listed(&rpc).await) };
        }
    }
    let operations =
        if protocol == Protocol::JsonRpc03 || protocol == Protocol::Rest03 { 10 } else { 11 };
    assert_eq!(succeeded.len(), operations, "some calls of each operation succeed: {succeeded:?}");
    let before = listed(&rpc).await;
    for listed in &before {
        let id = task::id(listed);
        assert_eq!(task::state(&rpc.task(id).await), task::state(listed), "{listed}");
        assert_eq!(rpc.inspect(id).await["task"]["id"], id);
    }
    mesh.stop().await.expect("the mesh stops");
    let mesh = LocalMesh::start(in_process(dir.path())).await.expect("the mesh restarts");
    let after = listed(&Rpc::at(mesh.gateway_addr())).await;
    let ids = |tasks: &[Value]| tasks.iter().map(|t| task::id(t).to_owned()).collect::<Vec<_>>();
    let mut was = ids(&before);
    let mut is = ids(&after);
    was.sort();
    is.sort();
    assert_eq!(was, is, "the restart keeps every task");
    assert!(before.len() > CASES / 20, "too few valid requests: {}", before.len());
}

/// Every task, page by page.
async fn listed(rpc: &Rpc) -> Vec<Value> {
    let mut tasks = Vec::new();
    let mut token = String::new();
    loop {
        let params = json!({"pageSize": 100, "pageToken": token});
        let page = rpc.call("ListTasks", params).await.expect("a list");
        tasks.extend(page["tasks"].as_array().expect("tasks").clone());
        token = page["nextPageToken"].as_str().expect("a token").to_owned();
        if token.is_empty() {
            return tasks;
        }
    }
}

/// Task ids for requests. Each list ends with an unknown id, so none is empty.
struct Known {
    all: Vec<String>,
    /// Ended tasks, whose streams end.
    ended: Vec<String>,
    /// Tasks that can be cancelled.
    open: Vec<String>,
    /// Tasks with a present or former push configuration.
    pushed: Vec<String>,
}

impl Default for Known {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl Known {
    fn of(tasks: &[Value]) -> Self {
        let ids = |tasks: &mut dyn Iterator<Item = &Value>| {
            let ids = tasks.take(8).map(|task| task::id(task).to_owned());
            ids.chain(["nobody".to_owned()]).collect()
        };
        let is_ended = |task: &&Value| task::is_final(task::state(task));
        Self {
            all: ids(&mut tasks.iter()),
            ended: ids(&mut tasks.iter().filter(is_ended)),
            open: ids(&mut tasks.iter().filter(|task| !is_ended(task))),
            pushed: Vec::new(),
        }
    }
}

/// A valid request.
fn valid(rng: &mut StdRng, known: &Known) -> (&'static str, Value) {
    let one = |rng: &mut StdRng, ids: &[String]| ids.choose(rng).cloned();
    let id = one(rng, &known.all).expect("a choice");
    let scripts = ["chunk x", "ask \"who?\"", "fail UNKNOWN", "message hi", "reject no", "say a"];
    let text = scripts.choose(rng).expect("a choice");
    let mut message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]});
    match rng.random_range(0..16) {
        0..=3 => {
            if rng.random() {
                message["contextId"] = "c".into();
            }
            let immediately: bool = rng.random();
            let configuration = json!({"returnImmediately": immediately, "historyLength": 1});
            let params =
                json!({"tenant": "script", "message": message, "configuration": configuration});
            ("SendMessage", params)
        }
        4 => {
            message["taskId"] = id.into();
            ("SendMessage", json!({"message": message}))
        }
        5 => ("GetTask", json!({"id": id, "historyLength": rng.random_range(0..4)})),
        6 => {
            let id = one(rng, &known.open);
            let metadata = json!({"note": [1, null, {"deep": "x"}]});
            ("CancelTask", json!({"id": id, "metadata": metadata}))
        }
        7 => {
            let size = rng.random_range(1..=100);
            ("ListTasks", json!({"pageSize": size, "status": "TASK_STATE_FAILED"}))
        }
        8 => {
            let config = json!({"taskId": id, "url": "http://127.0.0.1:9/x", "id": "p"});
            ("CreateTaskPushNotificationConfig", config)
        }
        9 => ("ListTaskPushNotificationConfigs", json!({"taskId": id})),
        10 => {
            let id = one(rng, &known.pushed).unwrap_or(id);
            ("GetTaskPushNotificationConfig", json!({"taskId": id, "id": "p"}))
        }
        11 => ("DeleteTaskPushNotificationConfig", json!({"taskId": id, "id": "p"})),
        12 => ("GetExtendedAgentCard", json!({"tenant": "script"})),
        13 => {
            let id = one(rng, &known.ended);
            ("SubscribeToTask", json!({"id": id}))
        }
        _ => ("SendStreamingMessage", json!({"tenant": "script", "message": message})),
    }
}

/// Breaks something, or nothing, in a tree of JSON.
fn break_tree(rng: &mut StdRng, value: &mut Value) {
    let odd = [
        json!(null),
        json!(-1),
        json!(1e300),
        json!("\u{0}\u{10ffff}"),
        json!([]),
        json!({}),
        json!({"@type": "x", "": {"": [[[[]]]]}}),
        json!("TASK_STATE_NONSENSE"),
        json!(true),
    ];
    match value {
        Value::Object(members) if !members.is_empty() && rng.random_ratio(4, 5) => {
            let keys: Vec<_> = members.keys().cloned().collect();
            let key = keys.choose(rng).expect("a choice").clone();
            match rng.random_range(0..6) {
                0 => drop(members.remove(&key)),
                1 => drop(members.insert(format!("{key}x"), json!(1))),
                _ => break_tree(rng, &mut members[&key]),
            }
        }
        Value::Array(items) if !items.is_empty() && rng.random_ratio(4, 5) => {
            let at = rng.random_range(0..items.len());
            break_tree(rng, &mut items[at]);
        }
        other => *other = odd.choose(rng).expect("a choice").clone(),
    }
}

/// Breaks something, or nothing, in bytes.
fn break_bytes(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(0..4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[at] = rng.random(),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, *b"{}[]\",:\\\0\xff".choose(rng).expect("a choice")),
            _ => drop(bytes.remove(at)),
        }
    }
}

/// Whether the ErrorInfo, the first detail, has the flag `retryable`.
fn has_retry_flag(details: &Value) -> bool {
    let flag = details[0]["metadata"]["retryable"].as_str();
    matches!(flag, Some("true" | "false"))
}

/// Random bytes as bodies.
#[tokio::test(flavor = "multi_thread")]
async fn noise_is_answered_in_json() {
    let seed = seed();
    eprintln!("repeat with FAULTLINE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mesh = LocalMesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let rpc = Rpc::at(mesh.gateway_addr());
    let paths = ["/", "/agents/echo", "/message:send", "/message:stream", "/tasks/x:cancel"];
    for _ in 0..CASES {
        let path = paths.choose(&mut rng).expect("a choice");
        let noise: Vec<u8> = (0..rng.random_range(0..200)).map(|_| rng.random()).collect();
        let reply = rpc.path(path).post(noise.clone()).await;
        let kind = &reply.headers["content-type"];
        assert!(kind == "application/json" || kind == "application/a2a+json", "{path} {noise:?}");
        let error = &reply.json()["error"];
        assert!(error["code"].is_i64() && error["message"].is_string(), "{path} {noise:?}");
        let details = error.get("data").or(error.get("details")).expect("details");
        assert!(has_retry_flag(details), "{path} {noise:?}: {error}");
        assert!(!reply.status.is_server_error(), "{path} {noise:?}: {error}");
    }
}
