//! JSON-RPC requests and responses, and the calls that the coordinator gets.

use faultline_proto::v1::call;
use http::StatusCode;
use serde_json::json;

use crate::{
    Mesh,
    client::{detail, message, request},
};

#[tokio::test]
async fn every_method_answers_with_its_own_result() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let sent = client.rpc("SendMessage", message("hello")).await;
    assert_eq!(sent.status, StatusCode::OK);
    assert_eq!(sent.body["jsonrpc"], "2.0");
    assert_eq!(sent.body["id"], 1);
    assert_eq!(sent.body["result"]["task"]["status"]["state"], "TASK_STATE_COMPLETED");
    let bare = client.rpc("SendMessage", message("message")).await;
    assert_eq!(bare.body["result"]["message"]["messageId"], "m-2");
    let got = client.rpc("GetTask", json!({"id": "t-7"})).await;
    assert_eq!(got.body["result"]["id"], "t-7");
    let list = client.rpc("ListTasks", json!({})).await;
    let empty = json!({"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0});
    assert_eq!(list.body["result"], empty);
    let cancel = client.rpc("CancelTask", json!({"id": "t-7"})).await;
    assert_eq!((cancel.status, cancel.code()), (StatusCode::OK, -32001));
}

#[tokio::test]
async fn request_id_is_echoed_unchanged() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for id in [json!("a \"b\" \u{1F600}"), json!(0), json!(-5), json!(u64::MAX), json!(null)] {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "ListTasks"}).to_string();
        let answer = client.post("/", body).await;
        assert_eq!(answer.body["id"], id);
        assert!(answer.body["result"].is_object());
    }
}

#[tokio::test]
async fn null_params_mean_no_params() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let answer = client.rpc("ListTasks", json!(null)).await;
    assert!(answer.body["result"].is_object(), "{answer:?}");
    let answer = client.rpc("GetTask", json!(null)).await;
    assert_eq!((answer.code(), answer.fields()), (-32602, vec!["id"]));
    let answer = client.rpc("GetTask", json!([])).await;
    assert_eq!(answer.code(), -32602, "an array is not empty params");
}

#[tokio::test]
async fn path_names_the_agent() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for path in ["/agents/echo", "/agents/echo/"] {
        let answer = client.post(path, request("SendMessage", message("x"))).await;
        assert_eq!(
            answer.body["result"]["task"]["id"], "echo",
            "the fake uses the tenant as task id"
        );
    }
    let mut params = message("x");
    params["tenant"] = json!("other");
    let at_root = client.rpc("SendMessage", params.clone()).await;
    assert_eq!(at_root.body["result"]["task"]["id"], "other");
    let torn = client.post("/agents/echo", request("SendMessage", params)).await;
    assert_eq!((torn.code(), torn.fields()), (-32602, vec!["tenant"]));
}

#[tokio::test]
async fn snake_case_and_unknown_fields_are_accepted() {
    let mesh = Mesh::start().await;
    let params = json!({
        "message": {"message_id": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "new": {}},
        "configuration": {"history_length": 2},
    });
    let answer = mesh.client().await.rpc("SendMessage", params).await;
    assert!(answer.body["result"]["task"].is_object(), "{answer:?}");
    match mesh.fake.last_call().await.body {
        Some(call::Body::Send(request)) => {
            assert_eq!(request.message.unwrap().message_id, "m");
            assert_eq!(request.configuration.unwrap().history_length, Some(2));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn preferred_wait_reaches_the_coordinator() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let mut later = message("x");
    later["configuration"] = json!({"returnImmediately": true});
    for (prefer, params, timeout_ms) in [
        ("wait=5", message("x"), 5_000),
        ("respond-async, Wait = \"7\"", message("x"), 7_000),
        ("wait=999999999", message("x"), 86_400_000),
        ("wait=0", message("x"), 1),
        ("wait=soon", message("x"), 0),
        ("respond-async", message("x"), 0),
        ("wait=5", later, 0),
    ] {
        client.ask("POST", "/", &[("prefer", prefer)], request("SendMessage", params)).await;
        let caller = mesh.fake.last_call().await.caller.unwrap();
        assert_eq!(caller.timeout_ms, timeout_ms, "{prefer}");
    }
}

#[tokio::test]
async fn trace_continues_in_the_call_and_in_the_failure() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("traceparent", parent)];
    client.ask("POST", "/", &headers, request("ListTasks", json!({}))).await;
    let handed_on = mesh.fake.last_call().await.caller.unwrap().traceparent;
    assert!(handed_on.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{handed_on}");
    assert_ne!(handed_on, parent);
    let failed = client.ask("POST", "/", &headers, "{").await;
    let record = detail(&failed.body["error"]["data"], "faultline.v1.Failure");
    assert_eq!(record["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(record["origin"], json!({"service": "gateway"}));
}

#[tokio::test]
async fn failure_of_the_coordinator_arrives_whole() {
    let mesh = Mesh::start().await;
    let answer = mesh.client().await.rpc("SendMessage", message("fail")).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::OK, -31008));
    assert_eq!(answer.message(), "code: slow down");
    assert_eq!(answer.headers["retry-after"], "2", "1.5 s, rounded up");
    let keys: Vec<_> = answer.body["error"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["code", "data", "message"]);
    let data = &answer.body["error"]["data"];
    let info = detail(data, "google.rpc.ErrorInfo");
    assert_eq!(
        (&info["reason"], &info["domain"]),
        (&json!("RATE_LIMITED"), &json!("faultline.dev"))
    );
    for (key, value) in [
        ("businessCode", "40401"),
        ("retryable", "true"),
        ("hop", "1"),
        ("originAgent", "code"),
        ("currentAgent", "plan"),
        ("downstreamAgent", "code"),
        ("taskId", "t-0"),
        ("traceId", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ] {
        assert_eq!(info["metadata"][key], value, "{key}");
    }
    assert_eq!(detail(data, "google.rpc.RetryInfo")["retryDelay"], "1.500s");
    assert_eq!(answer.fields(), ["order.id"]);
    let record = detail(data, "faultline.v1.Failure");
    assert_eq!(record["id"], info["metadata"]["failureId"]);
    assert_eq!(record["origin"], json!({"agent": "code"}));
    assert_eq!(record["causes"][1]["publicMessage"], "slow down");
    assert!(data[0]["@type"].as_str().unwrap().ends_with("ErrorInfo"), "standard types come first");
}

#[tokio::test]
async fn unknown_reason_degrades_to_its_code() {
    let mesh = Mesh::start().await;
    let answer = mesh.client().await.rpc("SendMessage", message("unknown")).await;
    assert_eq!(answer.code(), -31014);
    let info = detail(&answer.body["error"]["data"], "google.rpc.ErrorInfo");
    assert_eq!(info["reason"], "FROM_THE_FUTURE");
}

#[tokio::test]
async fn reply_of_the_wrong_kind_is_an_internal_error() {
    let mesh = Mesh::start().await;
    let answer = mesh.client().await.rpc("SendMessage", message("mixup")).await;
    assert_eq!(answer.code(), -32603);
    let info = detail(answer.details(), "google.rpc.ErrorInfo");
    assert_eq!(info["metadata"]["retryable"], "false", "{answer:?}");
    assert!(!answer.body.to_string().contains("mixup"), "the reply is not echoed");
}
