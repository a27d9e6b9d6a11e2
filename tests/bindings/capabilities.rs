//! Capability checks come before the task lookup (A2A §3.3.4): an agent whose card does not offer
//! push notifications or streaming refuses with that answer for every task id, on every binding.

use faultline::Config;
use faultline_tests::{
    A2aEndpoint, Binding, Rpc,
    a2a_endpoint::Refusal,
    rpc::{answer, message},
    task,
};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::{on_every_binding, start, start_with};

on_every_binding! {
    capabilities_are_checked_before_the_task_lookup
    root_address_checks_the_default_agent_for_unknown_tasks
}

const NOWHERE: &str = "018f0000-0000-7000-8000-000000000000";
const HOOK: &str = "http://127.0.0.1:9/hook";
const NO_PUSH: &str = "PUSH_NOTIFICATION_NOT_SUPPORTED";
const NO_STREAMING: &str = "UNSUPPORTED_OPERATION";

/// Each operation that needs a capability, and the reason of its refusal.
fn gated(id: &str) -> Vec<(&'static str, Value, &'static str)> {
    let mut notified = answer(id, "more");
    notified["configuration"] = json!({"taskPushNotificationConfig": {"url": HOOK}});
    vec![
        ("CreateTaskPushNotificationConfig", json!({"taskId": id, "url": HOOK}), NO_PUSH),
        ("GetTaskPushNotificationConfig", json!({"taskId": id, "id": "hook"}), NO_PUSH),
        ("ListTaskPushNotificationConfigs", json!({"taskId": id}), NO_PUSH),
        ("DeleteTaskPushNotificationConfig", json!({"taskId": id, "id": "hook"}), NO_PUSH),
        ("SendMessage", notified, NO_PUSH),
        ("SubscribeToTask", json!({"id": id}), NO_STREAMING),
        ("SendStreamingMessage", answer(id, "more"), NO_STREAMING),
    ]
}

async fn refused(endpoint: &A2aEndpoint, operation: &str, params: Value) -> Refusal {
    let streams = matches!(operation, "SendStreamingMessage" | "SubscribeToTask");
    let outcome = if streams {
        endpoint.stream(operation, params).await.map(|_| Value::Null)
    } else {
        endpoint.call(operation, params).await
    };
    outcome.expect_err(operation)
}

async fn capabilities_are_checked_before_the_task_lookup(binding: Binding) {
    let up = start(binding).await;
    let mute = up.agent("mute");
    let own = mute.call("SendMessage", message("x")).await.unwrap();
    let other = up.agent("script").call("SendMessage", message("ask \"who?\"")).await.unwrap();
    let ids = [NOWHERE, "no-uuid", task::id(&own["task"]), task::id(&other["task"])];
    for (operation, params, reason) in ids.iter().flat_map(|id| gated(id)) {
        let refusal = refused(&mute, operation, params.clone()).await;
        assert_eq!(refusal.reason(), ("a2a-protocol.org", reason), "{operation} {params}");
        if binding == Binding::JsonRpc {
            let number = if reason == NO_PUSH { -32003 } else { -32004 };
            assert_eq!(refusal.jsonrpc, Some(number), "{operation} {params}");
        }
    }
}

async fn root_address_checks_the_default_agent_for_unknown_tasks(binding: Binding) {
    let set = |config: &mut Config, name: &str| {
        config.coordinator.default_agent = Some(name.to_owned());
    };
    let up = start_with(binding, |config| set(config, "mute")).await;
    for (operation, params, reason) in gated(NOWHERE) {
        let refusal = refused(&up.endpoint, operation, params).await;
        assert_eq!(refusal.reason().1, reason, "{operation}");
    }
    // The card of its agent decides for a known task.
    let asked = up.agent("script").call("SendMessage", message("ask \"who?\"")).await.unwrap();
    let config = json!({"taskId": asked["task"]["id"], "url": HOOK});
    let made = up.endpoint.call("CreateTaskPushNotificationConfig", config).await;
    assert!(made.is_ok(), "{made:?}");
    // The default agent offers both, so the lookup of the task decides.
    let up = start_with(binding, |config| set(config, "script")).await;
    for (operation, params, _) in gated(NOWHERE) {
        let refusal = refused(&up.endpoint, operation, params).await;
        assert_eq!(refusal.reason().1, "TASK_NOT_FOUND", "{operation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a2a_0_3_checks_capabilities_before_the_task_lookup() {
    let up = start(Binding::JsonRpc).await;
    let mute = Rpc::bare(up.mesh.gateway_addr()).agent("mute");
    let config = json!({"taskId": NOWHERE, "pushNotificationConfig": {"url": HOOK}});
    let config_of = json!({"id": NOWHERE, "pushNotificationConfigId": "hook"});
    for (method, params, number) in [
        ("tasks/pushNotificationConfig/set", config, -32003),
        ("tasks/pushNotificationConfig/get", config_of.clone(), -32003),
        ("tasks/pushNotificationConfig/list", json!({"id": NOWHERE}), -32003),
        ("tasks/pushNotificationConfig/delete", config_of, -32003),
    ] {
        let refused = mute.call(method, params).await.unwrap_err();
        assert_eq!(refused["code"], number, "{method}: {refused}");
    }
    let refused = mute.stream("tasks/resubscribe", json!({"id": NOWHERE})).await;
    assert_eq!(refused.err().map(|error| error["code"].clone()), Some(json!(-32004)));
    for (verb, path, number) in [
        ("GET", format!("/tasks/{NOWHERE}/pushNotificationConfigs/hook"), -32003),
        ("GET", format!("/tasks/{NOWHERE}:subscribe"), -32004),
    ] {
        let path = format!("/agents/mute/v1{path}");
        let request = Request::builder()
            .method(verb)
            .uri(&path)
            .header("host", "localhost")
            .body(Full::default())
            .unwrap();
        let reply = mute.request(request).await.unwrap();
        assert_eq!(reply.json()["code"], number, "{path}: {}", reply.json());
    }
}
