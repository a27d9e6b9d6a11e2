//! ListTasks: filters, order, artifacts, and pages that stay consistent while tasks are added.

use std::collections::BTreeSet;

use faultline_tests::{A2aEndpoint, Binding, rpc::message, task};
use serde_json::{Value, json};

use crate::{on_every_binding, start};

on_every_binding! {
    list_applies_filters_and_order
    pages_list_each_task_once_while_tasks_are_added
    invalid_page_is_refused
}

async fn send(endpoint: &A2aEndpoint, text: &str, context: &str) -> String {
    let mut params = message(text);
    params["message"]["contextId"] = context.into();
    let sent = endpoint.call("SendMessage", params).await.expect("the send succeeds");
    task::id(&sent["task"]).to_owned()
}

fn ids(list: &Value) -> Vec<&str> {
    list["tasks"].as_array().expect("tasks").iter().map(task::id).collect()
}

async fn list_applies_filters_and_order(binding: Binding) {
    let up = start(binding).await;
    let echo = up.agent("echo");
    let script = up.agent("script");
    let empty = up.endpoint.call("ListTasks", json!({})).await.unwrap();
    if binding != Binding::Grpc {
        let exactly = json!({"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0});
        assert_eq!(empty, exactly, "required fields are printed even if empty");
    }
    let one = send(&echo, "one", "a").await;
    let two = send(&script, "ask \"two?\"", "a").await;
    let three = send(&echo, "three", "b").await;
    let list = async |params: Value| up.endpoint.call("ListTasks", params).await.unwrap();
    assert_eq!(ids(&list(json!({})).await), [&*three, &two, &one], "the latest status first");
    assert_eq!(ids(&list(json!({"contextId": "a"})).await), [&*two, &one]);
    assert_eq!(ids(&list(json!({"status": "TASK_STATE_INPUT_REQUIRED"})).await), [&*two]);
    assert_eq!(ids(&echo.call("ListTasks", json!({})).await.unwrap()), [&*three, &one]);
    let with = list(json!({"includeArtifacts": true, "contextId": "b"})).await;
    assert_eq!(task::artifacts(&with["tasks"][0])["echo"], "three", "{with}");
    let both = list(json!({"includeArtifacts": true, "contextId": "a"})).await;
    assert_eq!(task::artifacts(&both["tasks"][1])["echo"], "one", "{both}");
    if binding != Binding::Grpc {
        assert_eq!(
            both["tasks"][0]["artifacts"],
            json!([]),
            "an empty list differs from an omitted list"
        );
    }
    let without = list(json!({"contextId": "b"})).await;
    assert!(without["tasks"][0].get("artifacts").is_none(), "{without}");
    assert_eq!(without["totalSize"], 1);
    let after = with["tasks"][0]["status"]["timestamp"].clone();
    let since = list(json!({"statusTimestampAfter": after})).await;
    assert!(ids(&since).contains(&&*three) && !ids(&since).contains(&&*one), "{since}");
    let brief = list(json!({"historyLength": 0})).await;
    let silent = |task: &Value| task.get("history").is_none();
    assert!(brief["tasks"].as_array().unwrap().iter().all(silent), "{brief}");
}

async fn pages_list_each_task_once_while_tasks_are_added(binding: Binding) {
    let up = start(binding).await;
    let echo = up.agent("echo");
    let mut old = BTreeSet::new();
    for n in 0..7 {
        old.insert(send(&echo, &n.to_string(), "pages").await);
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let params = json!({"pageSize": 2, "pageToken": token, "contextId": "pages"});
        let page = up.endpoint.call("ListTasks", params).await.unwrap();
        assert!(ids(&page).len() <= 2, "{page}");
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        send(&echo, "meanwhile", "pages").await;
        token = page["nextPageToken"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
    }
    let distinct: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(distinct.len(), seen.len(), "nothing twice: {seen:?}");
    assert!(old.is_subset(&distinct), "nothing missed: {seen:?}");
}

async fn invalid_page_is_refused(binding: Binding) {
    let up = start(binding).await;
    for (params, field) in [
        (json!({"pageSize": 0}), "pageSize"),
        (json!({"pageSize": 101}), "pageSize"),
        (json!({"pageSize": -1}), "pageSize"),
        (json!({"pageToken": "nonsense"}), "pageToken"),
        (json!({"historyLength": -1}), "historyLength"),
    ] {
        let refused = up.endpoint.call("ListTasks", params.clone()).await.unwrap_err();
        assert_eq!(refused.reason(), ("a2a-protocol.org", "INVALID_PARAMS"), "{params}");
        assert_eq!(refused.fields(), [field], "{params}");
    }
}
