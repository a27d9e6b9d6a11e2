//! Errors on each binding: on a whole mesh where a call can provoke them, and with a scripted
//! coordinator for every reason. The table here is written by hand from the specification, not from
//! the code.

use std::net::SocketAddr;

use faultline_chassis::Drain;
use faultline_proto::{
    Failure,
    reason::{self, Reason, Retry},
    v1::{
        Call, Origin, Reply, call,
        link_server::{Link, LinkServer},
        reply,
    },
};
use faultline_tests::{
    A2aEndpoint, Binding,
    a2a_endpoint::Refusal,
    rpc::{answer, message},
    task, until,
    wait::SOON,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

use crate::{agents::REQUIRED, on_every_binding, start};

on_every_binding! {
    errors_that_a_mesh_can_provoke
    reason_is_mapped_as_in_the_table
    clients_of_1_0_0_get_the_old_table
    missing_fields_are_named
    distinct_conditions_have_distinct_reasons
    retry_flag_and_delay_are_machine_readable
    retry_flag_is_true_for_transient_reasons_only
}

const A2A: &str = "a2a-protocol.org";
const OURS: &str = "faultline.dev";

/// Domain, reason, gRPC status, HTTP status, JSON-RPC number.
type Row = (&'static str, &'static str, &'static str, u16, i64);

const TABLE: &[Row] = &[
    (A2A, "TASK_NOT_FOUND", "NOT_FOUND", 404, -32001),
    (A2A, "TASK_NOT_CANCELABLE", "FAILED_PRECONDITION", 400, -32002),
    (A2A, "PUSH_NOTIFICATION_NOT_SUPPORTED", "FAILED_PRECONDITION", 400, -32003),
    (A2A, "UNSUPPORTED_OPERATION", "FAILED_PRECONDITION", 400, -32004),
    (A2A, "CONTENT_TYPE_NOT_SUPPORTED", "INVALID_ARGUMENT", 400, -32005),
    (A2A, "INVALID_AGENT_RESPONSE", "INTERNAL", 500, -32006),
    (A2A, "EXTENDED_AGENT_CARD_NOT_CONFIGURED", "FAILED_PRECONDITION", 400, -32007),
    (A2A, "EXTENSION_SUPPORT_REQUIRED", "FAILED_PRECONDITION", 400, -32008),
    (A2A, "VERSION_NOT_SUPPORTED", "FAILED_PRECONDITION", 400, -32009),
    (A2A, "INVALID_REQUEST", "INVALID_ARGUMENT", 400, -32600),
    (A2A, "METHOD_NOT_FOUND", "UNIMPLEMENTED", 404, -32601),
    (A2A, "INVALID_PARAMS", "INVALID_ARGUMENT", 400, -32602),
    (A2A, "INTERNAL_ERROR", "INTERNAL", 500, -32603),
    (OURS, "CANCELLED", "CANCELLED", 499, -31001),
    (OURS, "UNKNOWN", "UNKNOWN", 500, -31002),
    (OURS, "INVALID_ARGUMENT", "INVALID_ARGUMENT", 400, -32602),
    (OURS, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", 504, -31004),
    (OURS, "NOT_FOUND", "NOT_FOUND", 404, -31005),
    (OURS, "ALREADY_EXISTS", "ALREADY_EXISTS", 409, -31006),
    (OURS, "PERMISSION_DENIED", "PERMISSION_DENIED", 403, -31007),
    (OURS, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", 429, -31008),
    (OURS, "FAILED_PRECONDITION", "FAILED_PRECONDITION", 400, -31009),
    (OURS, "ABORTED", "ABORTED", 409, -31010),
    (OURS, "OUT_OF_RANGE", "OUT_OF_RANGE", 400, -31011),
    (OURS, "UNIMPLEMENTED", "UNIMPLEMENTED", 501, -31012),
    (OURS, "INTERNAL", "INTERNAL", 500, -32603),
    (OURS, "UNAVAILABLE", "UNAVAILABLE", 503, -31014),
    (OURS, "DATA_LOSS", "DATA_LOSS", 500, -31015),
    (OURS, "UNAUTHENTICATED", "UNAUTHENTICATED", 401, -31016),
];

/// Differences of 1.0.0: reason, gRPC status, HTTP status.
const OLD: &[(&str, &str, u16)] = &[
    ("TASK_NOT_CANCELABLE", "FAILED_PRECONDITION", 409),
    ("PUSH_NOTIFICATION_NOT_SUPPORTED", "UNIMPLEMENTED", 400),
    ("UNSUPPORTED_OPERATION", "UNIMPLEMENTED", 400),
    ("CONTENT_TYPE_NOT_SUPPORTED", "INVALID_ARGUMENT", 415),
    ("INVALID_AGENT_RESPONSE", "INTERNAL", 502),
    ("VERSION_NOT_SUPPORTED", "UNIMPLEMENTED", 400),
];

const ID: &str = "018f0000-0000-7000-8000-00000000000f";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A coordinator that fails each task lookup with the reason that the id names.
struct ScriptedCoordinator;

fn failure(row: &'static Reason) -> Failure {
    let mut record = Failure::new(row).because("scripted").into_record();
    record.id = ID.to_owned();
    record.trace_id = TRACE.to_owned();
    record.span_id = "00f067aa0ba902b7".to_owned();
    record.time = None;
    record.origin = Some(Origin { service: "coordinator".to_owned(), ..Origin::default() });
    Failure::from_record(record)
}

#[tonic::async_trait]
impl Link for ScriptedCoordinator {
    type OpenStream = ReceiverStream<Result<Reply, Status>>;

    async fn open(
        &self,
        request: Request<Streaming<Call>>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let (replies, stream) = mpsc::channel(16);
        let mut calls = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(Call { id, body, .. })) = calls.message().await {
                let named = match body {
                    Some(call::Body::Get(request)) => request.id,
                    Some(call::Body::Subscribe(s)) => s.request.unwrap_or_default().id,
                    _ => continue,
                };
                let (named, later) = match named.strip_suffix("?later") {
                    Some(named) => (named, true),
                    None => (named.as_str(), false),
                };
                let failure = failure(reason::named(named).expect("the id is a reason"));
                let failure = if later {
                    failure.with_retry_after(std::time::Duration::from_secs(7))
                } else {
                    failure
                };
                let body = reply::Body::Failure(Box::new(failure.into_record()));
                let reply = Reply { id, body: Some(body), ..Reply::default() };
                if replies.send(Ok(reply)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// A gateway in front of the scripted coordinator.
struct Front {
    address: SocketAddr,
    _serving: [AbortOnDropHandle<()>; 2],
}

async fn front(table: &str) -> Front {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hub = listener.local_addr().unwrap();
    let server =
        tonic::transport::Server::builder().add_service(LinkServer::new(ScriptedCoordinator));
    let server = server.serve_with_incoming(TcpListenerStream::new(listener));
    let server = AbortOnDropHandle::new(tokio::spawn(async move { server.await.unwrap() }));
    let mut config = faultline::Config::default().gateway;
    config.listen.set_port(0);
    config.coordinator = format!("http://{hub}");
    let table = serde_json::from_value(json!(table)).expect("a table of errors");
    config.a2a_error_table = table;
    let gateway = config.bind().await.expect("a gateway binds");
    let address = gateway.addr();
    let gateway = tokio::spawn(async move { gateway.run(Drain::new()).await.unwrap() });
    let front = Front { address, _serving: [server, AbortOnDropHandle::new(gateway)] };
    let rpc = faultline_tests::Rpc::at(address).path("/healthz");
    until("the gateway has its coordinator", SOON, async || {
        (rpc.get().await.status == 200).then_some(())
    })
    .await;
    front
}

fn check(refusal: &Refusal, binding: Binding, row: &Row) {
    let (domain, reason, status, http, jsonrpc) = *row;
    assert_eq!(refusal.reason(), (domain, reason));
    assert_eq!(refusal.message, "scripted", "{reason}");
    assert!(has_retry_flag(refusal), "{refusal:?}");
    match binding {
        Binding::JsonRpc => assert_eq!(refusal.jsonrpc, Some(jsonrpc), "{reason}"),
        Binding::Rest => {
            assert_eq!((refusal.http, refusal.status.as_deref()), (Some(http), Some(status)));
        }
        Binding::Grpc => assert_eq!(refusal.status.as_deref(), Some(status), "{reason}"),
    }
    let ours =
        refusal.detail("faultline.v1.Failure").expect("the details include the complete record");
    assert_eq!((&ours["id"], &ours["reason"]), (&json!(ID), &json!(reason)));
}

/// Whether the ErrorInfo has the flag `retryable`.
fn has_retry_flag(refusal: &Refusal) -> bool {
    let flag = refusal.details[0]["metadata"]["retryable"].as_str();
    matches!(flag, Some("true" | "false"))
}

async fn distinct_conditions_have_distinct_reasons(binding: Binding) {
    let front = front("1.0.1").await;
    let endpoint = A2aEndpoint::new(binding, front.address);
    let mut seen = std::collections::BTreeSet::new();
    for (reason, status, http, jsonrpc) in [
        ("UNAUTHENTICATED_CALLER", "UNAUTHENTICATED", 401, -31016),
        ("TASK_NOT_FOUND", "NOT_FOUND", 404, -32001),
        ("INSUFFICIENT_SCOPE", "PERMISSION_DENIED", 403, -31007),
        ("RATE_LIMITED", "RESOURCE_EXHAUSTED", 429, -31008),
        ("AGENT_UNAVAILABLE", "UNAVAILABLE", 503, -31014),
        ("TASK_TIMEOUT", "DEADLINE_EXCEEDED", 504, -31004),
        ("CONTENT_TOO_LARGE", "INVALID_ARGUMENT", 413, -32602),
        ("AGENT_NOT_FOUND", "NOT_FOUND", 404, -31005),
    ] {
        let domain = if reason == "TASK_NOT_FOUND" { A2A } else { OURS };
        let refusal = endpoint.call("GetTask", json!({"id": reason})).await.expect_err(reason);
        check(&refusal, binding, &(domain, reason, status, http, jsonrpc));
        assert!(seen.insert(refusal.reason().1.to_owned()), "{reason} occurs twice");
    }
}

async fn retry_flag_and_delay_are_machine_readable(binding: Binding) {
    let front = front("1.0.1").await;
    let endpoint = A2aEndpoint::new(binding, front.address);
    for row in reason::TABLE {
        let refusal = endpoint.call("GetTask", json!({"id": row.name})).await.expect_err(row.name);
        assert!(has_retry_flag(&refusal), "{refusal:?}");
        let delay = refusal.detail("RetryInfo").map(|info| info["retryDelay"].clone());
        let default = (row.retry == Retry::Delay).then(|| json!("1s"));
        assert_eq!(delay, default, "{}", row.name);
        let later = format!("{}?later", row.name);
        let refusal = endpoint.call("GetTask", json!({"id": later})).await.expect_err(row.name);
        let info = refusal.detail("RetryInfo").unwrap_or_else(|| panic!("{refusal:?}"));
        assert_eq!(info["retryDelay"], "7s", "{}", row.name);
        if binding == Binding::Rest {
            assert_eq!(refusal.headers["retry-after"], "7", "{}", row.name);
        }
    }
}

async fn retry_flag_is_true_for_transient_reasons_only(binding: Binding) {
    let front = front("1.0.1").await;
    let endpoint = A2aEndpoint::new(binding, front.address);
    let transient_reasons =
        ["RATE_LIMITED", "UNAVAILABLE", "AGENT_UNAVAILABLE", "CIRCUIT_OPEN", "WORKER_LOST"];
    let permanent_reasons = [
        "TASK_TIMEOUT",
        "RECONNECT_EXHAUSTED",
        "OUTCOME_UNKNOWN",
        "JSON_PARSE",
        "INVALID_REQUEST",
        "METHOD_NOT_FOUND",
        "INVALID_PARAMS",
        "INVALID_ARGUMENT",
        "CONTENT_TOO_LARGE",
        "UNAUTHENTICATED_CALLER",
        "INSUFFICIENT_SCOPE",
        "PERMISSION_DENIED",
        "TASK_NOT_FOUND",
        "INTERNAL",
        "INTERNAL_ERROR",
        "AGENT_PANICKED",
    ];
    let transient = transient_reasons.map(|name| (name, "true")).into_iter();
    for (reason, retryable) in transient.chain(permanent_reasons.map(|name| (name, "false"))) {
        let refusal = endpoint.call("GetTask", json!({"id": reason})).await.expect_err(reason);
        assert_eq!(refusal.details[0]["metadata"]["retryable"], retryable, "{reason}");
    }
}

async fn reason_is_mapped_as_in_the_table(binding: Binding) {
    let front = front("1.0.1").await;
    let endpoint = A2aEndpoint::new(binding, front.address);
    for row in TABLE {
        let refusal = endpoint.call("GetTask", json!({"id": row.1})).await.expect_err(row.1);
        check(&refusal, binding, row);
        let refusal = endpoint.stream("SubscribeToTask", json!({"id": row.1})).await.err();
        check(&refusal.expect("a refused stream is an error answer"), binding, row);
    }
    let generic = TABLE.iter().filter(|row| row.0 == OURS).count();
    assert_eq!(generic, 16, "every code of gRPC but OK");
}

async fn clients_of_1_0_0_get_the_old_table(binding: Binding) {
    let front = front("1.0.0").await;
    let endpoint = A2aEndpoint::new(binding, front.address);
    for (domain, reason, status, http, jsonrpc) in TABLE.iter().copied() {
        let old = OLD.iter().find(|(name, ..)| *name == reason);
        let (status, http) = old.map_or((status, http), |(_, status, http)| (*status, *http));
        let refusal = endpoint.call("GetTask", json!({"id": reason})).await.expect_err(reason);
        check(&refusal, binding, &(domain, reason, status, http, jsonrpc));
    }
}

/// The nine errors of A2A: reason, gRPC code and its number, HTTP status, JSON-RPC code.
const NINE: [(&str, &str, u8, u16, i32); 9] = [
    ("TASK_NOT_FOUND", "NOT_FOUND", 5, 404, -32001),
    ("TASK_NOT_CANCELABLE", "FAILED_PRECONDITION", 9, 400, -32002),
    ("PUSH_NOTIFICATION_NOT_SUPPORTED", "FAILED_PRECONDITION", 9, 400, -32003),
    ("UNSUPPORTED_OPERATION", "FAILED_PRECONDITION", 9, 400, -32004),
    ("CONTENT_TYPE_NOT_SUPPORTED", "INVALID_ARGUMENT", 3, 400, -32005),
    ("INVALID_AGENT_RESPONSE", "INTERNAL", 13, 500, -32006),
    ("EXTENDED_AGENT_CARD_NOT_CONFIGURED", "FAILED_PRECONDITION", 9, 400, -32007),
    ("EXTENSION_SUPPORT_REQUIRED", "FAILED_PRECONDITION", 9, 400, -32008),
    ("VERSION_NOT_SUPPORTED", "FAILED_PRECONDITION", 9, 400, -32009),
];

/// The advice on each of these errors, byte for byte.
fn advice(reason: &str) -> String {
    let broke = format!("the agent broke the protocol (failure id {ID})");
    let (verdict, actor, text) = match reason {
        "TASK_NOT_FOUND" => ("fix", "caller", "check the task id"),
        "TASK_NOT_CANCELABLE" => ("stop", "nobody", "the task has ended, and its state is final"),
        "PUSH_NOTIFICATION_NOT_SUPPORTED" => {
            ("fix", "caller", "follow the stream or poll: the agent sends no push notifications")
        }
        "UNSUPPORTED_OPERATION" => {
            let text = "read the state of the task and the agent card: one of them rules this out";
            ("fix", "caller", text)
        }
        "CONTENT_TYPE_NOT_SUPPORTED" => {
            ("fix", "caller", "send a media type that the agent card lists")
        }
        "INVALID_AGENT_RESPONSE" => {
            ("report", "owner", &*format!("{broke}: report it to the owner of the agent"))
        }
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED" => {
            let text = "the mesh promises an extended card and has none: report it to the \
                        operator of the mesh";
            ("report", "operator", text)
        }
        "EXTENSION_SUPPORT_REQUIRED" => {
            let text = "name the extension that the agent card requires in A2A-Extensions";
            ("fix", "caller", text)
        }
        "VERSION_NOT_SUPPORTED" => {
            ("fix", "caller", "send A2A-Version with a version that the server speaks")
        }
        other => panic!("no expected advice for {other}"),
    };
    let party = match actor {
        "caller" => r#","party":"the caller""#,
        "owner" => r#","party":"the owner of the agent""#,
        "operator" => r#","party":"the operator of the mesh""#,
        _ => "",
    };
    format!(r#""verdict":"{verdict}","actor":"{actor}","text":"{text}"{party}"#)
}

/// The details of such an error, byte for byte.
fn details(reason: &str, number: u8) -> String {
    [
        r#"[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","#,
        &format!(r#""reason":"{reason}","domain":"a2a-protocol.org","metadata":{{"#),
        &format!(r#""failureId":"{ID}","hop":"0","retryable":"false","traceId":"{TRACE}"}}}},"#),
        r#"{"@type":"type.googleapis.com/faultline.v1.Failure","#,
        &format!(r#""id":"{ID}","code":{number},"reason":"{reason}","#),
        r#""domain":"a2a-protocol.org","publicMessage":"scripted","plane":"PLANE_PROTOCOL","#,
        &format!(r#""origin":{{"service":"coordinator"}},"traceId":"{TRACE}","#),
        r#""spanId":"00f067aa0ba902b7"},"#,
        &format!(r#"{{"@type":"type.googleapis.com/faultline.v1.Advice",{}}}]"#, advice(reason)),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_a2a_errors_are_pinned_byte_for_byte() {
    let front = front("1.0.1").await;
    let rpc = faultline_tests::Rpc::at(front.address);
    let text = |reply: faultline_tests::rpc::Reply| String::from_utf8(reply.body.to_vec()).unwrap();
    for (reason, status, number, http, jsonrpc) in NINE {
        let details = details(reason, number);
        let asked = faultline_tests::rpc::envelope("GetTask", json!({"id": reason}));
        let head = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":{jsonrpc},"#);
        let expected = format!(r#"{head}"message":"scripted","data":{details}}}}}"#);
        assert_eq!(text(rpc.post(asked).await), expected);

        let reply = rpc.path(&format!("/tasks/{reason}")).get().await;
        assert_eq!(
            (reply.status.as_u16(), reply.headers["content-type"].to_str().unwrap()),
            (http, "application/json")
        );
        let head = format!(r#"{{"error":{{"code":{http},"status":"{status}","#);
        let expected = format!(r#"{head}"message":"scripted","details":{details}}}}}"#);
        assert_eq!(text(reply), expected);

        let grpc = A2aEndpoint::new(Binding::Grpc, front.address);
        let refusal = grpc.call("GetTask", json!({"id": reason})).await.expect_err(reason);
        assert_eq!((refusal.status.as_deref(), &*refusal.message), (Some(status), "scripted"));
        let expected: Vec<Value> = serde_json::from_str(&details).unwrap();
        assert_eq!(refusal.details, expected, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_task_is_named_in_the_error() {
    for binding in Binding::ALL {
        let up = start(binding).await;
        for operation in ["GetTask", "CancelTask"] {
            let refusal =
                up.endpoint.call(operation, json!({"id": ID})).await.expect_err(operation);
            assert_eq!(refusal.details[0]["metadata"]["taskId"], ID, "{binding:?} {refusal:?}");
        }
    }
}

async fn errors_that_a_mesh_can_provoke(binding: Binding) {
    let up = start(binding).await;
    let echo = up.agent("echo");
    let is = |refusal: Refusal, reason: &str| {
        assert_eq!(refusal.reason(), (A2A, reason), "{refusal:?}");
    };
    let ended = echo.call("SendMessage", message("x")).await.unwrap();
    let id = task::id(&ended["task"]).to_owned();
    is(up.endpoint.call("GetTask", json!({"id": "x"})).await.unwrap_err(), "TASK_NOT_FOUND");
    is(up.endpoint.call("CancelTask", json!({"id": id})).await.unwrap_err(), "TASK_NOT_CANCELABLE");
    let again = echo.call("SendMessage", answer(&id, "again")).await.unwrap_err();
    is(again, "UNSUPPORTED_OPERATION");
    let mut picture = message("");
    picture["message"]["parts"] = json!([{"raw": "AAEC", "mediaType": "image/png"}]);
    let refused = up.agent("texts-only").call("SendMessage", picture).await.unwrap_err();
    is(refused, "CONTENT_TYPE_NOT_SUPPORTED");
    let stamped = up.agent("stamped");
    let refused = stamped.call("SendMessage", message("x")).await.unwrap_err();
    assert!(refused.message.contains(REQUIRED), "the message names the extension: {refused:?}");
    is(refused, "EXTENSION_SUPPORT_REQUIRED");
    let sent = stamped.header("a2a-extensions", REQUIRED).call("SendMessage", message("x")).await;
    assert!(sent.is_ok(), "{sent:?}");
    let tenant = json!({"id": id, "tenant": "script"});
    if binding != Binding::Grpc {
        let refused = echo.call("GetTask", tenant).await.unwrap_err();
        assert_eq!(refused.fields(), ["tenant"], "{refused:?}");
    }
}

async fn missing_fields_are_named(binding: Binding) {
    let up = start(binding).await;
    for (change, fields) in [
        (json!({}), vec!["message"]),
        (json!({"message": {}}), vec!["message.messageId", "message.role", "message.parts"]),
        (
            json!({"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{}]}}),
            vec!["message.parts[0]"],
        ),
        (
            json!({"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "x"}]},
                "configuration": {"historyLength": -1}}),
            vec!["configuration.historyLength"],
        ),
    ] {
        let refused = up.agent("echo").call("SendMessage", change.clone()).await.unwrap_err();
        assert_eq!(refused.reason(), (A2A, "INVALID_PARAMS"), "{change}");
        assert_eq!(refused.fields(), fields, "{change}: {refused:?}");
    }
}
