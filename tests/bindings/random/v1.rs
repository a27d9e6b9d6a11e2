//! Fuzzing over JSON-RPC and REST of 1.0: whole requests, broken JSON trees and broken bytes. Every
//! answer is parsed to its last byte, streams frame by frame.

use bytes::Bytes;
use faultline_tests::{Rpc, rpc::Reply};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use super::{break_bytes, break_tree, has_retry_flag};

const KINDS: [&str; 4] = ["task", "message", "statusUpdate", "artifactUpdate"];

/// Sends one request; returns whether the call succeeded.
pub(super) async fn rpc(rng: &mut StdRng, rpc: &Rpc, operation: &str, params: Value) -> bool {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": operation, "params": params});
    let (reply, sent) = post(rng, rpc, operation, body).await;
    let Some(events) = events(&reply, &sent) else { return is_rpc_answer(&reply.json(), &sent) };
    let mut is_ok = true;
    for (at, (_, event)) in events.iter().enumerate() {
        is_ok = is_rpc_answer(event, &sent);
        assert!(is_ok || at == events.len() - 1, "an error is the last: {sent}: {event}");
        assert!(!is_ok || is_event(&event["result"]), "{sent}: {event}");
    }
    let last = &events.last().expect("a stream has events").1;
    assert!(!is_ok || ends(&last["result"]), "{sent}: {last}");
    is_ok
}

/// Sends a request that may be broken; returns the reply and the sent bytes as text.
pub(super) async fn post(
    rng: &mut StdRng,
    rpc: &Rpc,
    operation: &str,
    mut body: Value,
) -> (Reply, String) {
    if rng.random() {
        break_tree(rng, &mut body);
    }
    let mut bytes = body.to_string().into_bytes();
    if rng.random_ratio(1, 3) {
        break_bytes(rng, &mut bytes);
    }
    // From the first event, because an ended task has a stream then.
    let subscribes = operation == "SubscribeToTask";
    let rpc = if subscribes { rpc.header("last-event-id", 0) } else { rpc.clone() };
    let reply = rpc.post(bytes.clone()).await;
    let sent = String::from_utf8_lossy(&bytes).into_owned();
    assert!(!reply.status.is_server_error(), "{sent}: {reply:?}");
    (reply, sent)
}

/// Checks a JSON-RPC answer; returns whether it is a result.
pub(super) fn is_rpc_answer(answer: &Value, sent: &str) -> bool {
    assert_eq!(answer["jsonrpc"], "2.0", "{sent}: {answer}");
    let result = answer.get("result");
    let error = answer.get("error");
    assert!(result.is_some() != error.is_some(), "{sent}: {answer}");
    if let Some(error) = error {
        assert!(error["code"].is_i64() && error["message"].is_string(), "{sent}: {answer}");
        assert_ne!(
            error["code"], -32603,
            "a broken request is not an internal error: {sent}: {answer}"
        );
        assert!(has_retry_flag(&error["data"]), "{sent}: {answer}");
    }
    result.is_some()
}

/// The events of a stream, each with its error flag; `None` if the answer is not a stream.
pub(super) fn events(reply: &Reply, sent: &str) -> Option<Vec<(bool, Value)>> {
    if reply.headers.get("content-type").is_none_or(|kind| kind != "text/event-stream") {
        return None;
    }
    let text = std::str::from_utf8(&reply.body).expect("events are text");
    let whole = text.strip_suffix("\n\n").unwrap_or_else(|| panic!("{sent}: cut off: {text}"));
    let mut events = Vec::new();
    for event in whole.split("\n\n").filter(|event| *event != ":") {
        let mut data = None;
        let mut is_error = false;
        for line in event.lines() {
            match line.split_once(": ") {
                Some(("id", number)) => drop(number.parse::<u64>().expect("a number")),
                Some(("event", "error")) => is_error = true,
                Some(("data", json)) => data = serde_json::from_str(json).ok(),
                other => panic!("{sent}: not a field of an event: {other:?}"),
            }
        }
        events.push((is_error, data.unwrap_or_else(|| panic!("{sent}: no JSON: {event}"))));
    }
    assert!(!events.is_empty(), "{sent}: a stream without events");
    Some(events)
}

fn is_event(event: &Value) -> bool {
    event.as_object().is_some_and(|e| e.len() == 1 && KINDS.iter().any(|k| e.contains_key(*k)))
}

/// Whether a stream may end with this event.
fn ends(event: &Value) -> bool {
    let state = event["statusUpdate"]["status"]["state"].as_str();
    let asks = state == Some("TASK_STATE_INPUT_REQUIRED");
    event.get("message").is_some() || asks || state.is_some_and(faultline_tests::task::is_final)
}

/// Sends one request; returns whether the call succeeded.
pub(super) async fn rest(rng: &mut StdRng, rpc: &Rpc, operation: &str, mut params: Value) -> bool {
    if rng.random() {
        break_tree(rng, &mut params);
    }
    let task = params["id"].as_str().filter(|_| params.get("taskId").is_none());
    let task = task.or(params["taskId"].as_str()).unwrap_or("x").to_owned();
    let (method, path) = route(operation, &task, &params);
    let (reply, sent) = send(rng, rpc, (operation, "1.0"), method, &path, &params).await;
    if let Some(events) = events(&reply, &sent) {
        for (is_error, event) in &events {
            let is_ok = if *is_error { event["error"].is_object() } else { is_event(event) };
            assert!(is_ok, "{sent}: {event}");
        }
        let (is_error, last) = events.last().expect("a stream has events");
        assert!(*is_error || ends(last), "{sent}: {last}");
        return !is_error;
    }
    let answer = reply.json();
    let status = reply.status;
    if answer["jsonrpc"] == "2.0" {
        // A broken path may be that of JSON-RPC.
        assert!(answer["error"]["code"].is_i64(), "{sent}: {answer}");
        return false;
    }
    if status != StatusCode::OK {
        assert_eq!(answer["error"]["code"], status.as_u16(), "{sent}: {answer}");
        assert!(answer["error"]["message"].is_string(), "{sent}: {answer}");
        assert!(has_retry_flag(&answer["error"]["details"]), "{sent}: {answer}");
    }
    status == StatusCode::OK
}

fn route(operation: &str, task: &str, params: &Value) -> (Method, String) {
    let configs = format!("/tasks/{task}/pushNotificationConfigs");
    let config = format!("{configs}/{}", params["id"].as_str().unwrap_or("p"));
    match operation {
        "SendMessage" => (Method::POST, "/message:send".to_owned()),
        "SendStreamingMessage" => (Method::POST, "/message:stream".to_owned()),
        "GetTask" => {
            (Method::GET, format!("/tasks/{task}?historyLength={}", params["historyLength"]))
        }
        "CancelTask" => (Method::POST, format!("/tasks/{task}:cancel")),
        "SubscribeToTask" => (Method::GET, format!("/tasks/{task}:subscribe")),
        "ListTasks" => (Method::GET, format!("/tasks?pageSize={}", params["pageSize"])),
        "CreateTaskPushNotificationConfig" => (Method::POST, configs),
        "GetTaskPushNotificationConfig" => (Method::GET, config),
        "DeleteTaskPushNotificationConfig" => (Method::DELETE, config),
        "GetExtendedAgentCard" => (Method::GET, "/script/extendedAgentCard".to_owned()),
        _ => (Method::GET, configs),
    }
}

/// Sends a request whose path, method and body may be broken; returns the reply and the request.
pub(super) async fn send(
    rng: &mut StdRng,
    rpc: &Rpc,
    (operation, version): (&str, &str),
    method: Method,
    path: &str,
    params: &Value,
) -> (Reply, String) {
    let mut path = path.as_bytes().to_vec();
    if rng.random_ratio(1, 4) {
        break_bytes(rng, &mut path);
    }
    // Bytes that cannot be in a request line are escaped.
    let plain = |b: &u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(b);
    let path: String = path
        .iter()
        .map(|b| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02x}") })
        .collect();
    let mut body = params.to_string().into_bytes();
    if rng.random_ratio(1, 4) {
        break_bytes(rng, &mut body);
    }
    let methods = [Method::GET, Method::POST, Method::DELETE, Method::PUT, Method::PATCH];
    let method = if rng.random_ratio(1, 10) {
        methods.choose(rng).expect("a choice").clone()
    } else {
        method
    };
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let body = if method == Method::GET { Bytes::new() } else { body.into() };
    let sent = format!("{method} {path} {body:?}");
    let mut request = Request::builder()
        .method(method)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("a2a-version", version);
    if operation == "SubscribeToTask" {
        request = request.header("last-event-id", "0");
    }
    // A path that no client can send is replaced.
    let uri = path.parse().unwrap_or_else(|_| http::Uri::from_static("/tasks/x"));
    let request = request.uri(uri).body(Full::new(body)).expect("a request");
    let reply = rpc.request(request).await.unwrap_or_else(|e| panic!("{sent}: {e}"));
    assert!(!reply.status.is_server_error(), "{sent}: {reply:?}");
    (reply, sent)
}
