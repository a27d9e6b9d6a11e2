//! Metrics of a mesh after every counted event, and the number of series after a thousand callers.

use std::{sync::Arc, time::Duration};

use faultline::LocalMesh;
use faultline_chassis::client::Channel;
use faultline_gateway::{Auth, Scope, Token};
use faultline_proto::a2a::{
    Message, Part, Role, SendMessageRequest, a2a_service_client::A2aServiceClient, part::Content,
};
use faultline_tests::{
    Rpc, in_process,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED},
    until,
    wait::SOON,
    webhook::Webhook,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Request;

use crate::scrape::Scraped;

/// A mesh in this process, with its directory.
pub(crate) struct Running {
    pub(crate) mesh: LocalMesh,
    _dir: TempDir,
}

/// A mesh with short retry pauses and a circuit breaker that opens at the first failure.
pub(crate) async fn start() -> Running {
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    config.coordinator.retry_base_ms = 20;
    config.coordinator.breaker_failures = 1;
    config.coordinator.push.pause_ms = 20;
    Running { mesh: LocalMesh::start(config).await.unwrap(), _dir: dir }
}

/// The metrics of a mesh after an event for every counter.
pub(crate) async fn exercised() -> Scraped {
    let running = start().await;
    exercise(&running.mesh).await;
    Scraped::of(&Rpc::at(running.mesh.gateway_addr())).await
}

pub(crate) async fn exercise(mesh: &LocalMesh) {
    let rpc = Rpc::at(mesh.gateway_addr());
    let script = rpc.agent("script");
    assert_eq!(task::state(&rpc.agent("echo").send("hello").await), COMPLETED);
    assert_eq!(task::state(&script.send("fail NOT_FOUND text=gone").await), FAILED);
    let flaky = script.send("fail UNAVAILABLE times=2; chunk done").await;
    assert_eq!(task::state(&flaky), COMPLETED);
    let timed = script.header("faultline-timeout-ms", 30_000);
    let below = timed.send("delegate echo { deep }; fanout 1 of script,nobody { chunk x }").await;
    assert_eq!(task::state(&below), COMPLETED, "{below}");
    let asked = script.send("ask \"well?\"; chunk $answer").await;
    assert_eq!(task::state(&asked), INPUT_REQUIRED);
    script.call("SendMessage", answer(task::id(&asked), "yes")).await.unwrap();
    cancel_one(&script).await;
    push_one(&script).await;
    resume_one(&script, task::id(&flaky)).await;
    let refused = script.call("GetTask", json!({"id": "nobody"})).await.unwrap_err();
    assert_eq!(refused["data"][0]["reason"], "TASK_NOT_FOUND", "{refused}");
    // Last, because the circuit of the agent is open from now on.
    assert_eq!(task::state(&script.send("fail UNAVAILABLE text=down").await), FAILED);
    let refused = script.call("SendMessage", message("chunk x")).await.unwrap_err();
    assert_eq!(refused["data"][0]["reason"], "CIRCUIT_OPEN", "{refused}");
}

async fn cancel_one(script: &Rpc) {
    let running = script.send_immediately("say busy; sleep 60s").await;
    let canceled = script.call("CancelTask", json!({"id": task::id(&running)})).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    let stopped = "faultline_cancel_propagation_duration_seconds_count";
    until("the agent has stopped", SOON, async || {
        (Scraped::of(script).await.sum(stopped, &[]) == 1.).then_some(())
    })
    .await;
}

async fn push_one(script: &Rpc) {
    let webhook = Webhook::answering(|n| Some(if n == 0 { 503 } else { 200 })).await;
    let mut params = message("say one; say two");
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": webhook.url()}});
    script.call("SendMessage", params).await.unwrap();
    until("the webhook accepts the end", SOON, async || {
        let states = webhook.states();
        states.iter().any(|state| state == COMPLETED).then_some(())
    })
    .await;
}

async fn resume_one(script: &Rpc, id: &str) {
    let streamed = script.stream("SendStreamingMessage", message("chunk a; chunk b")).await;
    streamed.unwrap().all().await;
    let resumed = script.header("last-event-id", 0);
    let resumed = resumed.stream("SubscribeToTask", json!({"id": id})).await;
    resumed.unwrap().all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_counted_once_with_its_labels() {
    let scraped = exercised().await;
    let sum = |name: &str, labels: &[(&str, &str)]| scraped.sum(name, labels);
    let ended = |agent, state| {
        let labels = [("agent", agent), ("state", state)];
        sum("faultline_task_duration_seconds_count", &labels)
    };
    assert_eq!(ended("echo", "completed"), 2., "one was delegated");
    assert_eq!((ended("script", "failed"), ended("script", "canceled")), (2., 1.));
    assert_eq!(sum("faultline_tasks_active", &[]), 0.);
    let failed = |reason, severity| {
        let labels = [("reason", reason), ("severity", severity), ("origin_agent", "script")];
        sum("faultline_failures_total", &labels)
    };
    assert_eq!(failed("NOT_FOUND", "fatal"), 1.);
    // Two failures of the flaky task, three of the last one before its retries were spent.
    assert_eq!((failed("UNAVAILABLE", "recoverable"), failed("UNAVAILABLE", "fatal")), (5., 1.));
    // An existing agent is a label; the unknown agent of the branch is "other".
    for (reason, origin) in [("CIRCUIT_OPEN", "script"), ("AGENT_NOT_FOUND", "other")] {
        let refused = [("reason", reason), ("plane", "protocol"), ("origin_agent", origin)];
        assert_eq!(sum("faultline_failures_total", &refused), 1., "{reason}");
        assert_eq!(sum("faultline_failures_total", &[("reason", reason)]), 1., "once: {reason}");
    }
    assert_eq!(sum("faultline_failures_total", &[("reason", "CANCELLED")]), 0.);
    let retried = |outcome| {
        let labels = [("agent", "script"), ("outcome", outcome)];
        sum("faultline_retry_attempts_total", &labels)
    };
    assert_eq!((retried("retried"), retried("spent"), retried("not_retryable")), (5., 1., 1.));
    assert_eq!(sum("faultline_circuit_state", &[("agent", "script")]), 2.);
    assert_eq!(sum("faultline_circuit_state", &[("agent", "echo")]), 0.);
    let opened = [("agent", "script"), ("to", "open")];
    assert_eq!(sum("faultline_circuit_transitions_total", &opened), 1.);
    let answered = [("agent", "script"), ("outcome", "accept")];
    assert_eq!(sum("faultline_hitl_wait_duration_seconds_count", &answered), 1.);
    assert_eq!(sum("faultline_fanout_results_total", &[("outcome", "degraded")]), 1.);
    assert_eq!(sum("faultline_push_deliveries_total", &[("outcome", "retried")]), 1.);
    assert!(sum("faultline_push_deliveries_total", &[("outcome", "taken")]) >= 2.);
    assert_eq!(sum("faultline_stream_reconnects_total", &[]), 1.);
    assert!(
        sum("faultline_deadline_remaining_seconds_count", &[]) >= 3.,
        "delegated tasks have a deadline too"
    );
    assert!(sum("faultline_store_commit_duration_seconds_count", &[]) > 10.);
    assert_eq!((sum("faultline_slots_offered", &[]), sum("faultline_slots_used", &[])), (64., 0.));
    check_requests(&scraped);
}

fn check_requests(scraped: &Scraped) {
    let requests = |operation, error| {
        let labels = [("a2a_method_name", operation), ("error_type", error)];
        let found = scraped.find("http_server_request_duration_seconds_count", &labels);
        assert!(found.iter().all(|s| s.labels["http_response_status_code"] == "200"), "{found:?}");
        found.iter().map(|series| series.value).sum::<f64>()
    };
    assert_eq!(requests("GetTask", "TASK_NOT_FOUND"), 1., "despite HTTP status 200");
    assert_eq!(requests("SendMessage", "CIRCUIT_OPEN"), 1.);
    assert_eq!((requests("CancelTask", ""), requests("SubscribeToTask", "")), (1., 1.));
    let calls = |method: &str, code| {
        let method = format!("lf.a2a.v1.A2AService/{method}");
        let labels = [("rpc_method", method.as_str()), ("rpc_response_status_code", code)];
        scraped.sum("rpc_server_call_duration_seconds_count", &labels)
    };
    assert_eq!(calls("SendMessage", "UNAVAILABLE"), 1.);
    assert_eq!(calls("CancelTask", "OK"), 1.);
    assert!(
        calls("SendMessage", "NOT_FOUND") >= 1.,
        "the branch, through the endpoint of the agents"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_the_metrics() {
    exercised().await.check();
}

/// Sends a new message of a new principal in a new context.
async fn send_as_new_principal(mut client: A2aServiceClient<Channel>, n: usize) {
    let text = match n % 3 {
        0 => format!("fail NOT_FOUND code=CODE-{n} text=\"nothing like {n}\""),
        1 => format!("chunk {n}"),
        _ => format!("fail UNAUTHENTICATED code={n}"),
    };
    let message = Message {
        message_id: format!("message-{n}"),
        context_id: format!("context-{n}"),
        role: Role::User as i32,
        parts: vec![Part { content: Some(Content::Text(text)), ..Part::default() }],
        ..Message::default()
    };
    let mut request = Request::new(SendMessageRequest {
        tenant: "script".to_owned(),
        message: Some(message),
        ..SendMessageRequest::default()
    });
    let metadata = request.metadata_mut();
    metadata.insert("faultline-principal", format!("principal-{n}").parse().unwrap());
    client.send_message(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_callers_add_no_series() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr());
    let channel = Channel::lazy(&mesh.hub_dial()).unwrap();
    let client = A2aServiceClient::new(channel);
    let serve = async |numbers: std::ops::Range<usize>| {
        let places = Arc::new(tokio::sync::Semaphore::new(32));
        let mut running = JoinSet::new();
        for n in numbers {
            let place = Arc::clone(&places).acquire_owned().await.unwrap();
            let client = client.clone();
            running.spawn(async move {
                send_as_new_principal(client, n).await;
                drop(place);
            });
        }
        running.join_all().await;
    };
    serve(0..9).await;
    // The first scrape adds the series of its own request.
    Scraped::of(&rpc).await;
    let before = Scraped::of(&rpc).await;
    serve(9..1009).await;
    let after = Scraped::of(&rpc).await;
    assert_eq!(after.keys(), before.keys());
    let ended = after.sum("faultline_task_duration_seconds_count", &[("agent", "script")]);
    assert_eq!(ended, 1009.);
    for made_up in ["principal-", "context-", "message-", "CODE-", "nothing like"] {
        assert!(!after.text.contains(made_up), "{made_up}");
    }
}

/// SHA-256 of `hunter2`.
const HUNTER2: &str = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";
/// SHA-256 of `operator`.
const OPERATOR: &str = "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23";

#[tokio::test(flavor = "multi_thread")]
async fn metrics_require_the_operate_scope_with_authentication() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    let token = |sha256: &str, scopes| Token {
        sha256: sha256.to_owned(),
        principal: "acme".to_owned(),
        agents: Vec::new(),
        scopes,
    };
    let usual = vec![Scope::Send, Scope::Read];
    config.auth =
        Auth { token: vec![token(HUNTER2, usual), token(OPERATOR, vec![Scope::Operate])] };
    let mesh = LocalMesh::start(config).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).path("/metrics");
    assert_eq!(rpc.get().await.status, 401);
    let status = async |token: &str| {
        rpc.header("authorization", format!("Bearer {token}")).get().await.status.as_u16()
    };
    assert_eq!((status("hunter2").await, status("operator").await), (403, 200));
    assert_eq!(rpc.within(Duration::from_secs(5)).post("{}").await.status, 401);
}
