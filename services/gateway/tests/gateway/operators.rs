//! The operators' view as JSON: methods, scopes, actions, the watch, and CSRF protection.

use faultline_gateway::{Auth, Config, Scope, Token};
use faultline_proto::v1::call;
use http::StatusCode;
use serde_json::json;

use crate::{
    Mesh,
    client::{Client, Event, Events},
};

/// `printf %s secret | sha256sum`, and of `other`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
const OTHER: &str = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";
const READER: (&str, &str) = ("authorization", "Bearer secret");
const OPERATOR: (&str, &str) = ("authorization", "Bearer other");

const METHODS: [&str; 9] =
    ["Agents", "Workers", "Inspect", "Tasks", "Events", "Activity", "Failures", "Cancel", "Answer"];
const TASK: &str = r#"{"taskId":"t-1"}"#;

fn known(config: &mut Config) {
    let token = |sha256: &str, scope| Token {
        sha256: sha256.to_owned(),
        principal: "acme".to_owned(),
        agents: Vec::new(),
        scopes: vec![scope],
    };
    let token = vec![token(SECRET, Scope::Read), token(OTHER, Scope::Operate)];
    config.auth = Auth { token };
    config.operators_act = true;
}

fn body_of(method: &str) -> &'static str {
    match method {
        "Inspect" | "Events" | "Cancel" | "Answer" => TASK,
        _ => "{}",
    }
}

async fn watch(client: &mut Client, headers: &[(&str, &str)], agent: &str) -> Events {
    let body = json!({"filter": {"agent": agent}}).to_string();
    Events::of(client.send("POST", "/mesh/Watch", headers, body).await)
}

#[tokio::test]
async fn every_mesh_method_is_served_and_listed() {
    let mesh = Mesh::start_with(|config| config.operators_act = true).await;
    let mut client = mesh.client().await;
    let unknown = client.post("/mesh/Forget", "{}").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(unknown.message().contains("Watch"), "{unknown:?}");
    for method in METHODS {
        assert!(unknown.message().contains(method), "{method}: {unknown:?}");
        let answer = client.post(&format!("/mesh/{method}"), body_of(method)).await;
        assert_eq!(answer.status, StatusCode::OK, "{method}: {answer:?}");
    }
    let tasks = client.post("/mesh/Tasks", r#"{"filter":{"states":["TASK_STATE_FAILED"]}}"#).await;
    assert_eq!(tasks.body["tasks"][0]["taskId"], "t-1");
    let Some(call::Body::Tasks(asked)) = mesh.fake.last_call().await.body else { panic!() };
    assert_eq!(asked.filter.unwrap().states, [4]);
    let wrong = client.post("/mesh/Tasks", r#"{"filter":{"states":["BROKEN"]}}"#).await;
    assert_eq!(wrong.fields(), ["filter.states[0]"]);
}

#[tokio::test]
async fn readers_see_own_tasks_and_operators_see_all() {
    let mesh = Mesh::start_with(known).await;
    let mut client = mesh.client().await;
    for method in METHODS {
        let path = format!("/mesh/{method}");
        let operator = client.ask("POST", &path, &[OPERATOR], body_of(method)).await;
        assert_eq!(operator.status, StatusCode::OK, "{method}: {operator:?}");
        let caller = mesh.fake.last_call().await.caller.unwrap();
        assert!(caller.operates && caller.principal == "acme", "{method}: {caller:?}");
        let reader = client.ask("POST", &path, &[READER], body_of(method)).await;
        let own = ["Inspect", "Events"].contains(&method);
        let expected = if own { StatusCode::OK } else { StatusCode::FORBIDDEN };
        assert_eq!(reader.status, expected, "{method}: {reader:?}");
        if own {
            assert!(!mesh.fake.last_call().await.caller.unwrap().operates);
        } else {
            assert_eq!(reader.reason(), "INSUFFICIENT_SCOPE");
        }
    }
    let refused = client.ask("POST", "/mesh/Watch", &[READER], "{}").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    watch(&mut client, &[OPERATOR], "a").await.next_data().await;
}

#[tokio::test]
async fn operators_act_only_if_configured() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    client.post("/mesh/Agents", "").await;
    for method in ["Cancel", "Answer"] {
        let answer = client.post(&format!("/mesh/{method}"), TASK).await;
        assert_eq!((answer.status, answer.reason()), (StatusCode::FORBIDDEN, "PERMISSION_DENIED"));
        assert!(answer.message().contains("`operators_act = true` in [gateway]"), "{answer:?}");
        let last = mesh.fake.last_call().await.body;
        assert!(
            matches!(last, Some(call::Body::Agents(_))),
            "no call reached the coordinator: {last:?}"
        );
    }
}

#[tokio::test]
async fn watch_streams_bare_messages_and_ends_with_an_error_event() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let mut events = watch(&mut client, &[], "echo").await;
    assert_eq!(events.next_data().await, (None, json!({})), "the first message is empty");
    assert_eq!(events.next_data().await, (None, json!({"tasks": [{"agent": "echo"}]})));
    let Some(Event::Failure { data }) = events.next().await else { panic!("a failure") };
    assert_eq!(data["error"]["details"][0]["reason"], "RATE_LIMITED");
    assert_eq!(events.next().await, None);
    let refused = client.post("/mesh/Watch", r#"{"filter":{"agent":"refused"}}"#).await;
    assert_eq!(
        refused.status,
        StatusCode::TOO_MANY_REQUESTS,
        "a failure before the first event is an answer"
    );
    let mut silent = watch(&mut client, &[], "silent").await;
    assert_eq!(silent.next().await, Some(Event::Comment), "a silent watch gets keep-alives");
}

/// A browser posts these content types for any page without a preflight.
#[tokio::test]
async fn form_of_a_foreign_page_has_no_effect() {
    let mesh = Mesh::start_with(|config| config.operators_act = true).await;
    let mut client = mesh.client().await;
    client.post("/mesh/Workers", "").await;
    for method in METHODS.into_iter().chain(["Watch"]) {
        let path = format!("/mesh/{method}");
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            let plain = [("content-type", kind)];
            let answer = client.ask("POST", &path, &plain, body_of(method)).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{method} {kind}");
            let foreign = [("content-type", kind), ("origin", "https://evil.example")];
            let answer = client.ask("POST", &path, &foreign, body_of(method)).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {kind}");
        }
        // The preflight of a browser before it sends JSON.
        let preflight = [
            ("origin", "https://evil.example"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type"),
        ];
        let answer = client.ask("OPTIONS", &path, &preflight, "").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        let allowed = answer.headers.keys().any(|name| name.as_str().starts_with("access-control"));
        assert!(!allowed, "{:?}", answer.headers);
    }
    let last = mesh.fake.last_call().await.body;
    assert!(
        matches!(last, Some(call::Body::Workers(_))),
        "no call reached the coordinator: {last:?}"
    );
}

/// DNS rebinding: the host name of a page resolves to this gateway, so the page could read the
/// answers.
#[tokio::test]
async fn foreign_host_is_refused_without_tokens() {
    let mesh = Mesh::start_with(|c| c.public_url = Some("https://mesh.example".into())).await;
    let mut client = mesh.client().await;
    client.post("/mesh/Workers", "").await;
    let evil = [("host", "evil.example:8080")];
    for method in METHODS.into_iter().chain(["Watch", "Forget"]) {
        let answer = client.ask("POST", &format!("/mesh/{method}"), &evil, "{}").await;
        assert_eq!((answer.status, answer.reason()), (StatusCode::FORBIDDEN, "PERMISSION_DENIED"));
        assert!(answer.message().contains("localhost"), "{answer:?}");
    }
    let last = mesh.fake.last_call().await.body;
    assert!(
        matches!(last, Some(call::Body::Workers(_))),
        "no call reached the coordinator: {last:?}"
    );
    for host in ["localhost:1", "127.0.0.1:8080", "[::1]:8080", "mesh.example"] {
        let answer = client.ask("POST", "/mesh/Agents", &[("host", host)], "{}").await;
        assert_eq!(answer.status, StatusCode::OK, "{host}");
    }
    let guarded = Mesh::start_with(known).await;
    let headers = [OPERATOR, ("host", "mesh.internal")];
    let answer = guarded.client().await.ask("POST", "/mesh/Agents", &headers, "{}").await;
    assert_eq!(answer.status, StatusCode::OK, "a token makes the host irrelevant");
}

#[tokio::test]
async fn task_comes_with_the_link_to_its_trace() {
    let link = |url: &str| Some(url.to_owned());
    let mesh = Mesh::start_with(|c| c.trace_url = link("https://t.example/{trace_id}")).await;
    let shown = mesh.client().await.post("/mesh/Inspect", TASK).await.body;
    let id = shown["traceId"].as_str().unwrap();
    assert_eq!(shown["traceUrl"], format!("https://t.example/{id}"));
    let plain = Mesh::start().await.client().await.post("/mesh/Inspect", TASK).await.body;
    assert!(plain.get("traceUrl").is_none(), "{plain}");
    let config = Config { trace_url: link("https://t.example/"), ..Config::default() };
    let refused = config.bind().await.err().unwrap();
    assert!(refused.to_string().contains("{trace_id}"), "{refused}");
}
