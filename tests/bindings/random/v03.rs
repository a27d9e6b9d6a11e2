//! Fuzzing over JSON-RPC and REST of A2A 0.3.

use faultline_tests::Rpc;
use http::{Method, StatusCode};
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::v1;

/// Sends one request; returns whether the call succeeded.
pub(super) async fn rpc(rng: &mut StdRng, rpc: &Rpc, operation: &str, params: Value) -> bool {
    let Some((method, params)) = rpc_request(operation, params) else { return false };
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let rpc = Rpc::bare(rpc.address()).agent("script");
    let (reply, sent) = v1::post(rng, &rpc, operation, body).await;
    let Some(events) = v1::events(&reply, &sent) else {
        return v1::is_rpc_answer(&reply.json(), &sent);
    };
    let mut is_ok = true;
    for (at, (_, event)) in events.iter().enumerate() {
        is_ok = v1::is_rpc_answer(event, &sent);
        let is_last = at == events.len() - 1;
        let result = &event["result"];
        let ends = result["kind"] == "message" || result["final"] == true;
        assert!(is_ok || is_last, "an error is the last: {sent}: {event}");
        assert!(
            !is_ok || ends == is_last,
            "only the last event is marked as final: {sent}: {event}"
        );
    }
    is_ok
}

fn rpc_request(operation: &str, mut params: Value) -> Option<(&'static str, Value)> {
    let task = params["taskId"].take();
    Some(match operation {
        "SendMessage" => ("message/send", rpc_send(params)),
        "SendStreamingMessage" => ("message/stream", rpc_send(params)),
        "GetTask" => ("tasks/get", params),
        "CancelTask" => ("tasks/cancel", params),
        "SubscribeToTask" => ("tasks/resubscribe", params),
        "CreateTaskPushNotificationConfig" => {
            let config = json!({"id": params["id"], "url": params["url"]});
            let params = json!({"taskId": task, "pushNotificationConfig": config});
            ("tasks/pushNotificationConfig/set", params)
        }
        "GetTaskPushNotificationConfig" => {
            ("tasks/pushNotificationConfig/get", json!({"id": task}))
        }
        "DeleteTaskPushNotificationConfig" => {
            let params = json!({"id": task, "pushNotificationConfigId": params["id"]});
            ("tasks/pushNotificationConfig/delete", params)
        }
        "ListTaskPushNotificationConfigs" => {
            ("tasks/pushNotificationConfig/list", json!({"id": task}))
        }
        "GetExtendedAgentCard" => ("agent/getAuthenticatedExtendedCard", json!({})),
        _ => return None,
    })
}

fn rpc_send(mut new: Value) -> Value {
    let mut message = new["message"].take();
    message["kind"] = "message".into();
    message["role"] = "user".into();
    message["parts"][0]["kind"] = "text".into();
    let blocking = !new["configuration"]["returnImmediately"].as_bool().unwrap_or(false);
    json!({"message": message, "configuration": {"blocking": blocking, "historyLength": 1}})
}

/// Sends one request; returns whether the call succeeded.
pub(super) async fn rest(rng: &mut StdRng, rpc: &Rpc, operation: &str, params: Value) -> bool {
    let Some((method, path, body)) = rest_request(operation, params) else { return false };
    let path = format!("/agents/script/v1{path}");
    let (reply, sent) = v1::send(rng, rpc, (operation, "0.3"), method, &path, &body).await;
    if let Some(events) = v1::events(&reply, &sent) {
        let (is_error, last) = events.last().expect("a stream has events");
        let ends = last.get("message").is_some() || last["statusUpdate"]["final"] == true;
        assert!(*is_error || ends, "{sent}: {last}");
        return !is_error;
    }
    let answer = reply.json();
    let is_refused = reply.status != StatusCode::OK;
    if is_refused && answer["jsonrpc"] != "2.0" {
        let sent = format!("{sent}: {answer}");
        assert_eq!(answer["error"]["code"], reply.status.as_u16(), "{sent}");
        assert!(super::has_retry_flag(&answer["error"]["details"]), "{sent}");
    }
    !is_refused
}

fn rest_request(operation: &str, mut params: Value) -> Option<(Method, String, Value)> {
    let id = params["taskId"].as_str().or(params["id"].as_str()).unwrap_or("x").to_owned();
    let configs = format!("/tasks/{id}/pushNotificationConfigs");
    let none = || json!({});
    Some(match operation {
        "SendMessage" => (Method::POST, "/message:send".to_owned(), rest_send(params)),
        "SendStreamingMessage" => (Method::POST, "/message:stream".to_owned(), rest_send(params)),
        "GetTask" => (Method::GET, format!("/tasks/{id}"), none()),
        "CancelTask" => (Method::POST, format!("/tasks/{id}:cancel"), none()),
        "SubscribeToTask" => (Method::GET, format!("/tasks/{id}:subscribe"), none()),
        "CreateTaskPushNotificationConfig" => {
            let config = json!({"id": params["id"].take(), "url": params["url"].take()});
            (Method::POST, configs, json!({"pushNotificationConfig": config}))
        }
        "GetTaskPushNotificationConfig" => (Method::GET, format!("{configs}/p"), none()),
        "DeleteTaskPushNotificationConfig" => (Method::DELETE, format!("{configs}/p"), none()),
        "ListTaskPushNotificationConfigs" => (Method::GET, configs, none()),
        "GetExtendedAgentCard" => (Method::GET, "/card".to_owned(), none()),
        _ => return None,
    })
}

fn rest_send(mut new: Value) -> Value {
    let mut message = new["message"].take();
    message["content"] = message["parts"].take();
    if let Some(message) = message.as_object_mut() {
        message.remove("parts");
    }
    let blocking = !new["configuration"]["returnImmediately"].as_bool().unwrap_or(false);
    json!({"request": message, "configuration": {"blocking": blocking}})
}
