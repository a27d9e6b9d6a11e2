//! The REST binding: paths, queries, bodies and responses.

use faultline_proto::v1::call;
use http::StatusCode;
use serde_json::json;

use crate::{
    Mesh,
    client::{Event, Events, message},
};

#[tokio::test]
async fn every_operation_has_its_path() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let hello = message("x").to_string();
    let push = r#"{"url":"https://hook.example"}"#;
    let pushes = "/tasks/t-1/pushNotificationConfigs";
    let config = format!("{pushes}/p-1");
    for (method, path, body, pointer, value) in [
        ("POST", "/message:send", hello.as_str(), "/task/id", json!("")),
        ("POST", "/echo/message:send", &hello, "/task/id", json!("echo")),
        ("POST", "/agents/echo/message:send", &hello, "/task/id", json!("echo")),
        ("POST", "/agents/echo/echo/message:send/", &hello, "/task/id", json!("echo")),
        ("GET", "/tasks", "", "/tasks", json!([])),
        ("GET", "/tasks/", "", "/nextPageToken", json!("")),
        ("GET", "/tasks/t-1?historyLength=2", "", "/id", json!("t-1")),
        ("GET", "/tasks/t%2D1", "", "/id", json!("t-1")),
        ("GET", "/plan/tasks/t-1", "", "/id", json!("t-1")),
        ("POST", pushes, push, "/id", json!("p-1")),
        ("GET", pushes, "", "", json!({})),
        ("GET", &config, "", "/taskId", json!("t-1")),
        ("DELETE", &config, "", "", json!({})),
        ("GET", "/plan/extendedAgentCard", "", "/name", json!("plan")),
    ] {
        let answer = client.ask(method, path, &[], body.to_owned()).await;
        assert_eq!(answer.status, StatusCode::OK, "{method} {path}: {answer:?}");
        assert_eq!(answer.body.pointer(pointer), Some(&value), "{method} {path}");
        assert_eq!(answer.headers["content-type"], "application/a2a+json", "{path}");
    }
}

#[tokio::test]
async fn cancel_needs_no_body() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for body in ["", "{}", "null", " null ", r#"{"metadata":{"why":"late"}}"#] {
        for kind in ["application/json", "application/a2a+json"] {
            let headers = [("content-type", kind)];
            let answer = client.ask("POST", "/tasks/t-9:cancel", &headers, body).await;
            assert_eq!((answer.status.as_u16(), answer.reason()), (404, "TASK_NOT_FOUND"));
            match mesh.fake.last_call().await.body {
                Some(call::Body::Cancel(request)) => assert_eq!(request.id, "t-9"),
                other => panic!("{other:?}"),
            }
        }
    }
    let odd = [("content-type", "text/plain")];
    let empty = client.ask("POST", "/tasks/t-9:cancel", &odd, "").await;
    assert_eq!(empty.status, StatusCode::NOT_FOUND, "an empty body needs no content type");
    let text = client.ask("POST", "/tasks/t-9:cancel", &odd, "{}").await;
    assert_eq!(text.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn query_becomes_the_request() {
    let mesh = Mesh::start().await;
    let query = "contextId=a%20b&status=TASK_STATE_WORKING&page_size=7&pageToken=x%2By&\
                 historyLength=0&statusTimestampAfter=2026-01-02T03%3A04%3A05Z&\
                 includeArtifacts=true&unknown=1";
    let answer = mesh.client().await.ask("GET", &format!("/tasks?{query}"), &[], "").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let Some(call::Body::List(request)) = mesh.fake.last_call().await.body else { panic!() };
    assert_eq!((request.context_id.as_str(), request.page_token.as_str()), ("a b", "x+y"));
    assert_eq!((request.status, request.page_size), (2, Some(7)));
    assert_eq!((request.history_length, request.include_artifacts), (Some(0), Some(true)));
    assert_eq!(request.status_timestamp_after.unwrap().seconds, 1_767_323_045);
}

#[tokio::test]
async fn invalid_rest_request_names_the_field() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for (method, path, body, field) in [
        ("GET", "/tasks?pageSize=0", "", "pageSize"),
        ("GET", "/tasks?pageSize=many", "", "pageSize"),
        ("GET", "/tasks?status=DONE", "", "status"),
        ("GET", "/tasks?includeArtifacts=1", "", "includeArtifacts"),
        ("GET", "/tasks/t?historyLength=-1", "", "historyLength"),
        ("GET", "/tasks/t?historyLength=1&historyLength=2", "", "historyLength"),
        ("GET", "/tasks/t/pushNotificationConfigs?pageSize=101", "", "pageSize"),
        ("POST", "/tasks/t/pushNotificationConfigs", "{}", "url"),
        ("POST", "/message:send", "", "message"),
        ("POST", "/message:send", r#"{"message":7}"#, "message"),
        ("GET", "/agents/echo/plan/tasks", "", "tenant"),
        ("GET", "/agents/echo/tasks?tenant=plan", "", "tenant"),
        ("GET", "/echo/tasks?tenant=plan", "", "tenant"),
    ] {
        let answer = client.ask(method, path, &[], body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{method} {path}: {answer:?}");
        assert_eq!(answer.fields(), [field], "{method} {path}");
        assert_eq!(answer.body["error"]["status"], "INVALID_ARGUMENT");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    let torn = client.ask("POST", "/message:send", &[], "{").await;
    assert_eq!((torn.status.as_u16(), torn.reason()), (400, "JSON_PARSE"));
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let deep = client.ask("POST", "/message:send", &[], deep).await;
    assert_eq!((deep.status.as_u16(), deep.reason()), (400, "JSON_PARSE"));
}

#[tokio::test]
async fn wrong_method_gets_the_allowed_ones() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for (method, path, allow) in [
        ("GET", "/message:send", "POST"),
        ("POST", "/tasks", "GET"),
        ("DELETE", "/tasks/t", "GET"),
        ("GET", "/tasks/t:cancel", "POST"),
        ("PUT", "/tasks/t:subscribe", "GET, POST"),
        ("DELETE", "/echo/tasks/t/pushNotificationConfigs", "GET, POST"),
        ("POST", "/agents/echo/tasks/t/pushNotificationConfigs/p", "GET, DELETE"),
        ("POST", "/extendedAgentCard", "GET"),
        ("GET", "/agents/echo", "POST"),
        ("PATCH", "/.well-known/agent-card.json", "GET, HEAD"),
    ] {
        let answer = client.ask(method, path, &[], "").await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert_eq!(answer.headers["allow"], allow, "{method} {path}");
        assert_eq!(answer.reason(), "INVALID_REQUEST");
    }
    for path in ["/nothing", "/agents/echo/nothing", "/console/tasks", "/v1", "/tasks/t/x"] {
        let answer = client.ask("GET", path, &[], "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (404, "NOT_FOUND"), "{path}");
    }
}

#[tokio::test]
async fn rest_stream_has_bare_events_and_an_error_event() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let body = message("count 3").to_string();
    let mut events = Events::of(client.send("POST", "/message:stream", &[], body).await);
    let (id, first) = events.next_data().await;
    assert_eq!((id, &first["task"]["id"]), (Some(1), &json!("t-1")));
    assert_eq!(events.numbers().await, [2, 3]);
    for method in ["GET", "POST"] {
        let headers = [("last-event-id", "4")];
        let response = client.send(method, "/tasks/t-1:subscribe", &headers, "").await;
        assert_eq!(Events::of(response).numbers().await, [5, 6, 7], "{method}");
    }
    let body = message("break").to_string();
    let mut events = Events::of(client.send("POST", "/message:stream", &[], body).await);
    events.next_data().await;
    match events.next().await {
        Some(Event::Failure { data }) => {
            assert_eq!(data["error"]["code"], 429);
            assert_eq!(data["error"]["details"][0]["reason"], "RATE_LIMITED");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(events.next().await, None);
    let early = client.ask("POST", "/message:stream", &[], message("fail").to_string()).await;
    assert_eq!((early.status.as_u16(), early.reason()), (429, "RATE_LIMITED"));
    assert_eq!(early.headers["retry-after"], "2");
}
