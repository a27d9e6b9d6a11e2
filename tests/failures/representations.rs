//! One failure in all its representations: log, store, every binding, A2A 0.3 and streams have the
//! same record. Programs branch on its fields; its text is for people and may vary.

use std::time::Duration;

use faultline::LocalMesh;
use faultline_client::{Client, Error as CallError, Reconnect, text};
use faultline_tests::{
    A2aEndpoint, Binding, Broken, Plan, Rpc, in_process,
    log::Log,
    rpc::message,
    task::{self, CANCELED, COMPLETED, FAILED, REJECTED, WORKING},
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker, reason};
use serde_json::{Value, json};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(40);

/// Fails with a private cause.
struct Broke;

impl Agent for Broke {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.append("output", "half of it").await?;
        let error = Error::new(&reason::DATA_LOSS).because("The disk is gone");
        Err(error.code("DISK_7").caused_by("/dev/sdb: I/O error"))
    }
}

async fn with_agent(dir: &std::path::Path, offer: Offer) -> LocalMesh {
    let mut mesh = LocalMesh::start(in_process(dir)).await.expect("a mesh starts");
    let build = |config| Worker::new(config).offer(offer);
    mesh.attach(Config::default(), build).await.expect("a worker attaches");
    mesh
}

#[tokio::test]
async fn failure_is_identical_in_log_store_and_every_binding() {
    let log = Log::capture();
    let dir = tempfile::tempdir().unwrap();
    let mesh = with_agent(dir.path(), Offer::new("broke", Broke)).await;
    let rpc = Rpc::at(mesh.gateway_addr());
    let (trace_id, header) = crate::trace();
    let sent = rpc.agent("broke").header("traceparent", header).send("x").await;
    let failure = sent["metadata"]["faultline.dev/failure"].clone();
    let id = failure["id"].as_str().unwrap();
    // The log of the worker has the private cause.
    let lines = log.of_failure(id);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert_eq!((&line["level"], &line["reason"]), (&json!("WARN"), &json!("DATA_LOSS")), "{line}");
    assert_eq!((&line["agent"], &line["attempt"]), (&json!("broke"), &json!(1)), "{line}");
    assert_eq!((&line["task.id"], &line["trace.id"]), (&sent["id"], &json!(trace_id)), "{line}");
    assert_eq!(line["detail"], "/dev/sdb: I/O error", "{line}");
    // The store and every binding have the complete public record.
    let task_id = task::id(&sent);
    let stored = rpc.inspect(task_id).await["failure"].clone();
    assert!(stored["origin"]["worker"].is_string(), "operators see the worker: {stored}");
    assert!(failure["origin"].get("worker").is_none(), "callers do not see the worker: {failure}");
    assert_eq!(task::public(&stored), failure);
    for binding in Binding::ALL {
        let endpoint = A2aEndpoint::new(binding, mesh.gateway_addr());
        let got = endpoint.call("GetTask", json!({"id": task_id})).await.unwrap();
        assert_eq!(got["metadata"]["faultline.dev/failure"], failure, "{binding:?}");
        assert_eq!(got["metadata"]["error_code"], "DISK_7", "{binding:?}");
        assert_eq!(task::text(&got["status"]["message"]), "The disk is gone", "{binding:?}");
    }
}

#[tokio::test]
async fn refusal_is_logged_once_with_its_id_and_trace() {
    let log = Log::capture();
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    for binding in Binding::ALL {
        let (trace_id, header) = crate::trace();
        let endpoint = A2aEndpoint::new(binding, mesh.gateway_addr()).header("traceparent", header);
        for (operation, params) in [
            ("GetTask", json!({"id": "nobody"})),
            ("SendMessage", json!({})),
            ("CancelTask", json!({"id": "nobody"})),
        ] {
            let refusal = endpoint.call(operation, params).await.unwrap_err();
            let record = refusal.detail("faultline.v1.Failure").expect("the record");
            let lines = log.of_failure(record["id"].as_str().unwrap());
            assert_eq!(lines.len(), 1, "{binding:?} {operation}: {lines:?}");
            assert_eq!(lines[0]["trace.id"], trace_id.as_str(), "{binding:?} {operation}");
            assert_eq!(lines[0]["reason"], refusal.reason().1, "{binding:?} {operation}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_has_the_form_of_each_version() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let script = "fail NOT_FOUND code=SKU_9 text=\"no such item\"";
    let new = Rpc::at(mesh.gateway_addr()).agent("script").send(script).await;
    let status = &new["status"];
    assert_eq!(status["state"], FAILED);
    assert_eq!(status["message"]["role"], "ROLE_AGENT");
    assert_eq!(status["message"]["parts"], json!([{"text": "no such item"}]));
    let old = json!({"message": {"kind": "message", "messageId": "1", "role": "user",
        "parts": [{"kind": "text", "text": script}]}});
    let bare = Rpc::bare(mesh.gateway_addr()).agent("script");
    let old = bare.call("message/send", old).await.unwrap();
    let status = &old["status"];
    assert_eq!((&old["kind"], &status["state"]), (&json!("task"), &json!("failed")));
    let message = &status["message"];
    assert_eq!((&message["kind"], &message["role"]), (&json!("message"), &json!("agent")));
    assert_eq!(message["parts"], json!([{"kind": "text", "text": "no such item"}]));
    for task in [&new, &old] {
        assert_eq!(task["metadata"]["faultline.dev/failure"]["reason"], "NOT_FOUND", "{task}");
        for metadata in [&task["metadata"], &task["status"]["message"]["metadata"]] {
            assert_eq!(metadata["error_code"], "SKU_9", "{task}");
            assert_eq!(metadata["task_state"], "failed", "{task}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_record_survives_a_restart_without_its_worker() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = with_agent(dir.path(), Offer::new("broke", Broke)).await;
    let rpc = Rpc::at(mesh.gateway_addr());
    let sent = rpc.agent("broke").send("x").await;
    let inspected = rpc.inspect(task::id(&sent)).await;
    mesh.stop().await.unwrap();
    // No worker offers the agent any more.
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr());
    assert_eq!(rpc.task(task::id(&sent)).await, sent);
    let again = rpc.inspect(task::id(&sent)).await;
    assert_eq!(
        (&again["failure"], &again["attempts"]),
        (&inspected["failure"], &inspected["attempts"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_message_follows_the_failure() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let script = "say thinking; chunk \"half \"; chunk \"of it\"; fail INTERNAL text=\"broke\"";
    let stream = rpc.stream("SendStreamingMessage", message(script)).await.unwrap();
    let frames = stream.all().await;
    let last = &frames[frames.len() - 1].body["statusUpdate"];
    assert_eq!(task::state(last), FAILED, "the failure is the last event: {frames:?}");
    let task = rpc.task(last["taskId"].as_str().unwrap()).await;
    assert_eq!(task::artifacts(&task)["output"], "half of it", "the output is kept");
    let history = task["history"].as_array().unwrap();
    let roles: Vec<_> = history.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["ROLE_USER"], "{task}");
    assert_eq!(task::text(&task["status"]["message"]), "broke");
}

/// The reaction of a caller to a failure, by its fields alone.
#[derive(Debug, PartialEq)]
enum Decision {
    Reorder,
    WaitAndRepeat(Duration),
    Report,
}

fn decide(error: &CallError) -> Decision {
    let failure = error.failure().expect("the call was made");
    match (failure.business_code.as_str(), failure.may_retry(), failure.retry_after()) {
        ("STOCK_EMPTY", ..) => Decision::Reorder,
        (_, true, Some(delay)) => Decision::WaitAndRepeat(delay),
        _ => Decision::Report,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_branches_on_fields_and_not_on_text() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let client = mesh.client().agent("script");
    for wording in
        ["out of stock", "ausverkauft", "retryable=true NOT_FOUND", "品切れ", "{\"code\": 1}"]
    {
        let quoted = wording.replace('"', "\\\"");
        for (fields, decision) in [
            ("FAILED_PRECONDITION code=STOCK_EMPTY", Decision::Reorder),
            ("RATE_LIMITED retry_after=2s", Decision::WaitAndRepeat(Duration::from_secs(2))),
            ("PERMISSION_DENIED code=NO_ENTRY", Decision::Report),
        ] {
            let script = format!("fail {fields} text=\"{quoted}\"");
            let error = client.run(text(script)).await.unwrap_err();
            assert_eq!(decide(&error), decision, "{wording}");
            assert_eq!(error.failure().unwrap().public_message, wording);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_task_of_any_state_cannot_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    for binding in Binding::ALL {
        let endpoint = A2aEndpoint::new(binding, mesh.gateway_addr()).agent("script");
        for (script, state) in [
            ("chunk a", COMPLETED),
            ("fail INTERNAL", FAILED),
            ("reject no", REJECTED),
            ("ask \"who?\"", CANCELED),
        ] {
            let sent = endpoint.call("SendMessage", message(script)).await.unwrap();
            let id = json!({"id": task::id(&sent["task"])});
            if state == CANCELED {
                endpoint.call("CancelTask", id.clone()).await.unwrap();
            }
            let before = endpoint.call("GetTask", id.clone()).await.unwrap();
            assert_eq!(task::state(&before), state, "{binding:?}");
            let refused = endpoint.call("CancelTask", id.clone()).await.unwrap_err();
            assert_eq!(refused.reason().1, "TASK_NOT_CANCELABLE", "{binding:?} {state}");
            if binding == Binding::JsonRpc {
                assert_eq!(refused.jsonrpc, Some(-32002), "{state}");
            }
            let after = endpoint.call("GetTask", id).await.unwrap();
            assert_eq!(after, before, "{binding:?} {state}: nothing changed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_crash_ends_streams_with_an_error() {
    let mut cluster = Plan::default().start().await;
    let rpc = cluster.rpc().agent("script");
    let mut stream =
        rpc.stream("SendStreamingMessage", message("say here; sleep 20s")).await.unwrap();
    let reconnect = Reconnect {
        backoff: Duration::from_millis(10),
        poll: None,
        patience: Duration::from_millis(200),
        ..Reconnect::default()
    };
    let url = format!("http://{}/agents/script", cluster.addresses[0]);
    let client = Client::builder(&url).reconnect(reconnect).direct().unwrap();
    let mut follow = client.follow(text("say here; sleep 20s")).await.unwrap();
    // Both streams have begun.
    let mut last: Value = Value::Null;
    while last["statusUpdate"]["status"]["message"].is_null() {
        last = stream.next().await.unwrap().expect("the task runs").body;
    }
    let id = follow.next().await.unwrap().unwrap().task_id().unwrap().to_owned();
    cluster.gateways[0].kill().await;
    let broken = loop {
        match stream.next().await {
            Ok(Some(_)) => continue,
            other => break other,
        }
    };
    assert!(
        matches!(broken, Err(Broken::Cut(_))),
        "the stream must not end without an error: {broken:?}"
    );
    let error = timeout(LONG, async {
        loop {
            match follow.next().await {
                Some(Ok(_)) => continue,
                Some(Err(error)) => return error,
                None => panic!("the follower must end with an error"),
            }
        }
    });
    match error.await.expect("the follower ends in time") {
        CallError::Reconnect { task_id, .. } => assert_eq!(task_id, id),
        other => panic!("{other}"),
    }
    // The task continues, because it is not tied to the gateway.
    cluster.gateways[0].restart().await;
    assert_eq!(task::state(&rpc.task(&id).await), WORKING);
}
