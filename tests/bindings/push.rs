//! Push configurations: creation, reading, paging and deletion on every binding. Delivery is tested
//! in `tests/mesh/push.rs`.

use faultline_tests::{
    Binding,
    rpc::message,
    task::{self, INPUT_REQUIRED},
};
use serde_json::{Value, json};

use crate::{on_every_binding, start};

on_every_binding! {
    configurations_are_created_read_and_deleted
    configuration_may_be_part_of_the_message
    configurations_are_paged
    invalid_webhooks_and_agents_without_push_are_refused
}

const HOOK: &str = "http://127.0.0.1:9/hook";

async fn configurations_are_created_read_and_deleted(binding: Binding) {
    let up = start(binding).await;
    let asked = up.agent("script").call("SendMessage", message("ask \"who?\"")).await.unwrap();
    let id = task::id(&asked["task"]).to_owned();
    let config = json!({
        "taskId": id, "id": "mine", "url": HOOK, "token": "t-1",
        "authentication": {"scheme": "Bearer", "credentials": "secret"}
    });
    let made = up.endpoint.call("CreateTaskPushNotificationConfig", config.clone()).await.unwrap();
    let without_tenant = |made: &Value| -> Value {
        let mut config = made.clone();
        config.as_object_mut().unwrap().remove("tenant");
        config
    };
    assert_eq!(without_tenant(&made), config);
    let unnamed = json!({"taskId": id, "url": HOOK});
    let second = up.endpoint.call("CreateTaskPushNotificationConfig", unnamed).await.unwrap();
    assert!(!second["id"].as_str().unwrap_or_default().is_empty(), "{second}");
    let named = json!({"taskId": id, "id": "mine"});
    let read = up.endpoint.call("GetTaskPushNotificationConfig", named.clone()).await.unwrap();
    assert_eq!(without_tenant(&read), config);
    let all =
        up.endpoint.call("ListTaskPushNotificationConfigs", json!({"taskId": id})).await.unwrap();
    assert_eq!(all["configs"].as_array().map(Vec::len), Some(2), "{all}");
    for _ in 0..2 {
        up.endpoint.call("DeleteTaskPushNotificationConfig", named.clone()).await.unwrap();
    }
    let gone = up.endpoint.call("GetTaskPushNotificationConfig", named).await.unwrap_err();
    assert_eq!(gone.reason(), ("a2a-protocol.org", "TASK_NOT_FOUND"));
}

async fn configuration_may_be_part_of_the_message(binding: Binding) {
    let up = start(binding).await;
    let mut params = message("ask \"who?\"");
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": HOOK, "id": "inline"}});
    let asked = up.agent("script").call("SendMessage", params).await.unwrap();
    assert_eq!(task::state(&asked["task"]), INPUT_REQUIRED);
    let named = json!({"taskId": asked["task"]["id"], "id": "inline"});
    let read = up.endpoint.call("GetTaskPushNotificationConfig", named).await.unwrap();
    assert_eq!((&read["url"], &read["taskId"]), (&json!(HOOK), &asked["task"]["id"]));
}

async fn configurations_are_paged(binding: Binding) {
    let up = start(binding).await;
    let asked = up.agent("script").call("SendMessage", message("ask \"who?\"")).await.unwrap();
    let id = task::id(&asked["task"]).to_owned();
    for n in 0..5 {
        let config = json!({"taskId": id, "id": format!("c{n}"), "url": HOOK});
        up.endpoint.call("CreateTaskPushNotificationConfig", config).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let params = json!({"taskId": id, "pageSize": 2, "pageToken": token});
        let page = up.endpoint.call("ListTaskPushNotificationConfigs", params).await.unwrap();
        let configs = page["configs"].as_array().expect("configs");
        assert!(configs.len() <= 2, "{page}");
        seen.extend(configs.iter().map(|c| c["id"].as_str().unwrap().to_owned()));
        token = page["nextPageToken"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["c0", "c1", "c2", "c3", "c4"]);
}

async fn invalid_webhooks_and_agents_without_push_are_refused(binding: Binding) {
    let up = start(binding).await;
    let asked = up.agent("script").call("SendMessage", message("ask \"who?\"")).await.unwrap();
    let id = task::id(&asked["task"]).to_owned();
    for url in ["", "ftp://example.org", "not a url", "http://user:pass@example.org/"] {
        let config = json!({"taskId": id, "url": url});
        let refused =
            up.endpoint.call("CreateTaskPushNotificationConfig", config).await.unwrap_err();
        assert_eq!(refused.reason(), ("a2a-protocol.org", "INVALID_PARAMS"), "{url}");
        assert_eq!(refused.fields(), ["url"], "{url}: {refused:?}");
    }
    let sent = up.agent("mute").call("SendMessage", message("x")).await.unwrap();
    let config = json!({"taskId": sent["task"]["id"], "url": HOOK});
    let refused = up.endpoint.call("CreateTaskPushNotificationConfig", config).await.unwrap_err();
    assert_eq!(refused.reason(), ("a2a-protocol.org", "PUSH_NOTIFICATION_NOT_SUPPORTED"));
    let mut inline = message("x");
    inline["configuration"] = json!({"taskPushNotificationConfig": {"url": HOOK}});
    let refused = up.agent("mute").call("SendMessage", inline).await.unwrap_err();
    assert_eq!(refused.reason(), ("a2a-protocol.org", "PUSH_NOTIFICATION_NOT_SUPPORTED"));
}
