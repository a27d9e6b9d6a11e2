//! Business errors of an application: codes, classes, severities and texts pass every hop
//! unchanged, and the flat keys of other frameworks keep their exact form.

use std::{borrow::Cow, io};

use faultline::LocalMesh;
use faultline_proto::{a2a, json, status};
use faultline_tests::{
    Rpc, in_process,
    rpc::message,
    task::{self, COMPLETED, FAILED},
};
use faultline_worker::{
    Agent, AgentError, Code, Config, Context, Error, Failure, MarkRecoverable, Offer, Worker,
    reason,
};
use serde_json::{Value, json};
use tempfile::TempDir;

#[derive(Debug, thiserror::Error)]
#[error("canary: no order in shard 7")]
struct Missing {
    recoverable: bool,
}

impl AgentError for Missing {
    fn reason(&self) -> &'static reason::Reason {
        &reason::NOT_FOUND
    }

    fn code(&self) -> Option<Code> {
        Some(40401_i32.into())
    }

    fn error_type(&self) -> Option<Cow<'_, str>> {
        Some("order_error".into())
    }

    fn recoverable(&self) -> bool {
        self.recoverable
    }

    fn public_message(&self) -> Option<String> {
        Some("There is no such order".to_owned())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("canary: cannot ship")]
struct Shipping(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Fails with the error that its message names.
struct Orders;

impl Agent for Orders {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let cache = || io::Error::new(io::ErrorKind::NotFound, "canary: /var/cache/orders");
        match cx.text().as_ref() {
            "golden" => Err(Error::new(&reason::FAILED_PRECONDITION)
                .because("validation failed")
                .code("REMOTE_VALIDATION_FAILED")
                .llm_response_id("resp-1")),
            "fatal" => Err(Shipping(Box::new(Missing { recoverable: false })))?,
            "recoverable" => Err(Shipping(Box::new(Missing { recoverable: true })))?,
            "namespaced" => {
                Err(Error::new(&reason::FAILED_PRECONDITION).code("ORDER_INVENTORY_SOFT_TIMEOUT"))
            }
            "cache" => Err(cache())?,
            "marked" => Err(MarkRecoverable::new(cache()))?,
            "untyped" => Err("canary")?,
            "panic" => panic!("canary"),
            "tolerates" => {
                cx.tolerate(cache()).await?;
                cx.tolerate("canary").await?;
                cx.artifact("order", "without the cache").await
            }
            other => {
                let (hops, rest) = other.split_once(' ').unwrap_or(("0", other));
                let below = match hops.parse::<u32>() {
                    Ok(1) => rest.to_owned(),
                    Ok(hops) => format!("{} {rest}", hops - 1),
                    Err(_) => return Err(Error::rejected("no such order")),
                };
                cx.delegate("orders", below).await.map(drop)
            }
        }
    }
}

async fn start() -> (Rpc, LocalMesh, TempDir) {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let offer = Offer::new("orders", Orders).recognise::<Missing>().normalise(|error| {
        let sources = std::iter::successors(Some(error), |&error| error.source());
        let io = sources.filter_map(|e| e.downcast_ref::<io::Error>()).next()?;
        let missing = io.kind() == io::ErrorKind::NotFound;
        missing.then(|| Error::new(&reason::NOT_FOUND).code("CACHE_MISS").because("not cached"))
    });
    mesh.attach(Config::default(), |config| Worker::new(config).offer(offer))
        .await
        .expect("a worker attaches");
    (Rpc::at(mesh.gateway_addr()).agent("orders"), mesh, dir)
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

fn call(method: &str) -> String {
    let params = message("golden");
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

/// The metadata of a failed task, byte for byte.
fn golden_metadata(failure: &Value) -> String {
    let record = format!(r#"{GOLDEN_ADVICE},"faultline.dev/failure":{failure}"#);
    let (before, after) =
        GOLDEN_KEYS.split_at(GOLDEN_KEYS.find(r#","llm_"#).expect("the key exists"));
    format!("{before}{record}{after}")
}

/// The keys of other frameworks. The message mirrors only these; the record occurs once.
const GOLDEN_KEYS: &str = concat!(
    r#"{"error_code":"REMOTE_VALIDATION_FAILED","error_message":"validation failed","#,
    r#""error_type":"flow_error","llm_response_id":"resp-1","#,
    r#""object_type":"error","task_state":"failed"}"#,
);

const GOLDEN_ADVICE: &str = concat!(
    r#","faultline.dev/advice":{"actor":"caller","party":"the caller","#,
    r#""text":"agent 'orders' cannot do this in the present state: read the message, "#,
    r#"change the state, then send again","verdict":"fix"}"#,
);

fn golden_status(carrier: &Value, task_id: &Value) -> String {
    format!(
        concat!(
            r#"{{"state":"TASK_STATE_FAILED","message":{{"messageId":"resp-1","#,
            r#""contextId":{context},"taskId":{task},"role":"ROLE_AGENT","#,
            r#""parts":[{{"text":"validation failed"}}],"metadata":{metadata}}},"#,
            r#""timestamp":{timestamp}}}"#,
        ),
        context = carrier["contextId"],
        task = task_id,
        metadata = GOLDEN_KEYS,
        timestamp = carrier["status"]["timestamp"],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_has_the_flat_keys_of_other_frameworks() {
    let (rpc, _mesh, _dir) = start().await;
    let reply = rpc.post(call("SendMessage")).await;
    let body = String::from_utf8(reply.body.to_vec()).unwrap();
    let answer = reply.json();
    assert!(answer.get("error").is_none(), "a failed task is a result: {answer}");
    let task = &answer["result"]["task"];
    let status = golden_status(task, &task["id"]);
    assert!(body.contains(&format!(r#""status":{status}"#)), "{body}\n{status}");
    let metadata = golden_metadata(failure(task));
    assert!(body.ends_with(&format!(r#""metadata":{metadata}}}}}}}"#)), "{body}\n{metadata}");
    let stored = rpc.task(task::id(task)).await;
    assert_eq!(&stored, task);
    let history = task["history"].as_array().map(Vec::len);
    assert_eq!(history, Some(1), "no answer follows the failure: {task}");
    let chunks = rpc.agent("script").send("chunk some; chunk more; fail INTERNAL").await;
    assert_eq!(chunks["history"].as_array().map(Vec::len), Some(1), "{chunks}");
    assert_eq!(task::artifacts(&chunks)["output"], "somemore");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_stream_ends_with_the_same_status_and_no_later_event() {
    let (rpc, _mesh, _dir) = start().await;
    let reply = rpc.post(call("SendStreamingMessage")).await;
    let body = String::from_utf8(reply.body.to_vec()).unwrap();
    let data: Vec<_> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let last = data.last().expect("there are events");
    let event: Value = serde_json::from_str(last).unwrap();
    let update = &event["result"]["statusUpdate"];
    let golden = format!(
        r#""statusUpdate":{{"taskId":{},"contextId":{},"status":{},"metadata":{}}}}}}}"#,
        update["taskId"],
        update["contextId"],
        golden_status(update, &update["taskId"]),
        golden_metadata(failure(update)),
    );
    assert!(last.ends_with(&golden), "{last}\n{golden}");
    let ends = data.iter().filter(|event| event.contains("TASK_STATE_FAILED")).count();
    assert_eq!(ends, 1, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a2a_0_3_read_the_same_keys() {
    let (rpc, mesh, _dir) = start().await;
    drop(rpc);
    let rpc = Rpc::bare(mesh.gateway_addr()).agent("orders");
    let parts = json!([{"kind": "text", "text": "golden"}]);
    let message = json!({"kind": "message", "messageId": "m", "role": "user", "parts": parts});
    let task = rpc.call("message/send", json!({"message": message})).await.unwrap();
    assert_eq!((&task["kind"], &task["status"]["state"]), (&json!("task"), &json!("failed")));
    let message = &task["status"]["message"];
    assert_eq!(message["parts"], json!([{"kind": "text", "text": "validation failed"}]));
    for metadata in [&task["metadata"], &message["metadata"]] {
        assert_eq!(metadata["error_code"], "REMOTE_VALIDATION_FAILED", "{metadata}");
        assert_eq!(metadata["task_state"], "failed", "{metadata}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn business_code_passes_three_hops_unchanged() {
    let (rpc, _mesh, _dir) = start().await;
    for (work, code) in [("fatal", "40401"), ("namespaced", "ORDER_INVENTORY_SOFT_TIMEOUT")] {
        let task = rpc.send(&format!("3 {work}")).await;
        assert_eq!(task::state(&task), FAILED, "{task}");
        assert_eq!(task["metadata"]["error_code"], code, "{task}");
        assert_eq!(task["status"]["message"]["metadata"]["error_code"], code);
        assert_eq!(failure(&task)["businessCode"], code);
        assert_eq!(failure(&task)["hop"], 3);
        let causes = failure(&task)["causes"].as_array().unwrap();
        assert!(causes.iter().all(|cause| cause["businessCode"] == code), "{causes:?}");
        // Read by a client, carried in a gRPC status, and read from that status.
        let read: a2a::Task = json::from_str(&task.to_string()).unwrap();
        let read = Failure::of_task(&read.status.unwrap(), read.metadata.as_ref()).unwrap();
        assert_eq!(status::error_info(&read).metadata["businessCode"], code);
        let carried = Failure::from(tonic::Status::from(read.clone()));
        assert_eq!((carried.business_code.as_str(), carried.hop), (code, 3));
        assert_eq!(carried.disposition(), read.disposition());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_error_is_recoverable_or_fatal_with_the_same_code() {
    let (rpc, _mesh, _dir) = start().await;
    for (work, severity) in [("fatal", "SEVERITY_FATAL"), ("recoverable", "SEVERITY_RECOVERABLE")] {
        let task = rpc.send(work).await;
        assert_eq!(task::state(&task), FAILED, "{task}");
        let failure = failure(&task);
        assert_eq!(failure["severity"], severity, "{failure}");
        assert_eq!((&failure["businessCode"], &failure["code"]), (&json!("40401"), &json!(5)));
        assert_eq!(failure["publicMessage"], "There is no such order");
        assert_eq!(task["metadata"]["error_type"], "order_error");
        assert!(!task.to_string().contains("canary"), "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn normalised_error_hides_the_original_error() {
    let (rpc, _mesh, _dir) = start().await;
    for (work, severity) in [("cache", Value::Null), ("marked", json!("SEVERITY_RECOVERABLE"))] {
        let task = rpc.send(work).await;
        assert_eq!(task["metadata"]["error_code"], "CACHE_MISS", "{task}");
        assert_eq!(failure(&task)["publicMessage"], "not cached");
        assert_eq!(failure(&task)["severity"], severity);
        for answer in [task.to_string(), rpc.inspect(task::id(&task)).await.to_string()] {
            assert!(!answer.contains("canary"), "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_without_a_class_is_a_flow_error_or_a_run_error() {
    let (rpc, _mesh, _dir) = start().await;
    for (work, class) in [
        ("untyped", "flow_error"),
        ("namespaced", "flow_error"),
        ("fatal", "order_error"),
        ("panic", "run_error"),
    ] {
        let task = rpc.send(work).await;
        assert_eq!(task["metadata"]["error_type"], class, "{work}: {task}");
        let passed_on = rpc.send(&format!("1 {work}")).await;
        assert_eq!(passed_on["metadata"]["error_type"], class, "{work}: {passed_on}");
    }
    let nobody = rpc.agent("script").send("delegate nobody { x }").await;
    assert_eq!(nobody["metadata"]["error_type"], "run_error", "{nobody}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tolerated_errors_are_stored_and_masked() {
    let (rpc, _mesh, _dir) = start().await;
    let task = rpc.send("tolerates").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert_eq!(task["metadata"]["faultline.dev/degraded"], true);
    let tolerated = task["metadata"]["faultline.dev/tolerated"].as_array().unwrap();
    let classes: Vec<_> =
        tolerated.iter().map(|t| (t["businessCode"].as_str(), t["errorType"].as_str())).collect();
    assert_eq!(classes, [(Some("CACHE_MISS"), Some("flow_error")), (None, Some("flow_error"))]);
    assert!(!task.to_string().contains("canary"), "{task}");
    assert_eq!(rpc.task(task::id(&task)).await, task);
}
