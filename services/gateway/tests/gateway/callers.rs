//! Authentication, scopes, idempotency keys and extensions: the headers of callers, and the caller
//! record that the coordinator gets.

use faultline_chassis::client::Channel;
use faultline_gateway::{Auth, Config, Scope, Token};
use faultline_proto::{
    a2a::{ListTasksRequest, a2a_service_client::A2aServiceClient},
    v1::Caller,
};
use http::StatusCode;
use serde_json::{Value, json};
use tonic::{Code, Request, metadata::MetadataValue};

use crate::{
    Mesh,
    client::{Answer, message, request},
};

/// `printf %s secret | sha256sum`, and of `other`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
const OTHER: &str = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";
const ACME: (&str, &str) = ("authorization", "Bearer secret");
const OPS: (&str, &str) = ("authorization", "Bearer other");

/// `acme` has the scope `read` for `echo`; `ops` has all scopes.
fn known(config: &mut Config) {
    let token = |sha256: &str, principal: &str, agents: &[&str], scopes: &[Scope]| Token {
        sha256: sha256.to_owned(),
        principal: principal.to_owned(),
        agents: agents.iter().map(|&agent| agent.to_owned()).collect(),
        scopes: scopes.to_vec(),
    };
    let all = [Scope::Send, Scope::Read, Scope::Operate];
    config.auth = Auth {
        token: vec![
            token(SECRET, "acme", &["echo"], &[Scope::Read]),
            token(OTHER, "ops", &[], &all),
        ],
    };
}

#[tokio::test]
async fn unauthenticated_request_is_rejected_before_its_body_is_read() {
    let mesh = Mesh::start_with(known).await;
    let mut client = mesh.client().await;
    for (method, path, body) in [
        ("POST", "/", "{"),
        ("POST", "/agents/echo", "nonsense"),
        ("GET", "/tasks", ""),
        ("POST", "/v1/message:send", "{"),
        ("POST", "/mesh/Agents", "{"),
    ] {
        for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
            let answer = client.ask(method, path, headers, body).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"faultline\"");
            assert_eq!(answer.reason(), "UNAUTHENTICATED_CALLER");
            if body == "nonsense" {
                assert_eq!((answer.code(), &answer.body["id"]), (-31016, &Value::Null));
            }
        }
    }
    for path in ["/healthz", "/.well-known/agent-card.json"] {
        let answer = client.ask("GET", path, &[], "").await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
    }
}

/// A client that is rejected can send its next request on the same connection.
#[tokio::test]
async fn rejection_keeps_the_connection() {
    let mesh = Mesh::start_with(known).await;
    let mut client = mesh.client().await;
    let large = "x".repeat(1024 * 1024);
    for _ in 0..10 {
        for (path, headers, status) in [
            ("/", &[][..], 401),
            ("/nothing", &[OPS], 404),
            ("/healthz", &[OPS], 405),
            ("/mesh/Agents", &[ACME], 403),
            ("/message:send", &[OPS, ("a2a-version", "7.0")], 400),
            ("/message:send", &[OPS, ("content-type", "text/plain")], 400),
        ] {
            let answer = client.ask("POST", path, headers, large.clone()).await;
            assert_eq!(answer.status.as_u16(), status, "{path}");
            assert!(!answer.headers.contains_key("connection"), "{path}");
        }
    }
    let endless = client.send("POST", "/", &[("expect", "100-continue")], "x").await;
    assert_eq!(endless.headers()["connection"], "close", "the unsent body is not awaited");
}

#[tokio::test]
async fn missing_scope_is_403_on_every_binding() {
    let mesh = Mesh::start_with(known).await;
    let mut client = mesh.client().await;
    let rpc = request("SendMessage", message("x"));
    let rest = message("x").to_string();
    for (method, path, body) in [
        ("POST", "/", rpc),
        ("POST", "/message:send", rest),
        ("POST", "/tasks/t:cancel", String::new()),
        ("DELETE", "/tasks/t/pushNotificationConfigs/p", String::new()),
        ("POST", "/mesh/Agents", String::new()),
        ("POST", "/mesh/Nothing", String::new()),
    ] {
        let answer = client.ask(method, path, &[ACME], body).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}: {answer:?}");
        assert_eq!(answer.reason(), "INSUFFICIENT_SCOPE");
        if path == "/" {
            assert_eq!((answer.code(), &answer.body["id"]), (-31007, &json!(1)));
        }
    }
    let mut grpc =
        A2aServiceClient::new(Channel::without_token(&mesh.address.to_string()).unwrap());
    let mut send = Request::new(crate::grpc::say("x"));
    send.metadata_mut().insert("authorization", MetadataValue::from_static("Bearer secret"));
    send.metadata_mut().insert("a2a-version", MetadataValue::from_static("1.0"));
    assert_eq!(grpc.send_message(send).await.unwrap_err().code(), Code::PermissionDenied);
    let nobody = grpc.list_tasks(ListTasksRequest::default()).await.unwrap_err();
    assert_eq!(nobody.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn coordinator_gets_the_caller() {
    let mesh = Mesh::start_with(known).await;
    let mut client = mesh.client().await;
    client.ask("GET", "/tasks/t", &[ACME], "").await;
    let caller = mesh.fake.last_call().await.caller.unwrap();
    assert_eq!((caller.principal.as_str(), caller.operates), ("acme", false));
    assert_eq!(caller.agents, ["echo"]);
    client.ask("POST", "/mesh/Inspect", &[ACME], r#"{"taskId":"t"}"#).await;
    assert_eq!(mesh.fake.last_call().await.caller.unwrap().principal, "acme");
    client.ask("POST", "/mesh/Agents", &[OPS], "").await;
    let caller = mesh.fake.last_call().await.caller.unwrap();
    assert_eq!((caller.principal.as_str(), caller.operates), ("ops", true));
}

/// Sends a message with these headers and metadata.
async fn send(mesh: &Mesh, headers: &[(&str, &str)], params: Value) -> (Answer, Caller) {
    let body = request("SendMessage", params);
    let answer = mesh.client().await.ask("POST", "/", headers, body).await;
    (answer, mesh.fake.last_call().await.caller.unwrap_or_default())
}

#[tokio::test]
async fn idempotency_key_comes_by_header_or_by_metadata() {
    let mesh = Mesh::start().await;
    let header = [("idempotency-key", "k-1")];
    let keyed = |on_message: Value, on_request: Value| {
        let mut params = message("x");
        params["message"]["metadata"] = on_message;
        params["metadata"] = on_request;
        params
    };
    let key = |key: &str| json!({"faultline.dev/idempotencyKey": key});
    for (headers, params) in [
        (&header[..], message("x")),
        (&[], keyed(key("k-1"), json!({}))),
        (&[], keyed(json!({}), key("k-1"))),
        (&header, keyed(key("k-1"), key("k-1"))),
    ] {
        let (answer, caller) = send(&mesh, headers, params).await;
        assert!(answer.body["result"].is_object(), "{answer:?}");
        assert_eq!(caller.idempotency_key, "k-1");
    }
    let (_, caller) = send(&mesh, &[], message("x")).await;
    assert_eq!(caller.idempotency_key, "");
    let long = "k".repeat(257);
    for (headers, params, field) in [
        (&header[..], keyed(key("k-2"), json!({})), "message.metadata"),
        (&[], keyed(key("k-1"), key("k-2")), "metadata"),
        (&[], keyed(json!({"faultline.dev/idempotencyKey": 7}), json!({})), "message.metadata"),
        (&[("idempotency-key", "")], message("x"), "Idempotency-Key"),
        (&[header[0], ("idempotency-key", "k-2")], message("x"), "Idempotency-Key"),
        (&[("idempotency-key", "\u{e9}")], message("x"), "Idempotency-Key"),
        (&[("idempotency-key", long.as_str())], message("x"), "Idempotency-Key"),
    ] {
        let (answer, _) = send(&mesh, headers, params).await;
        assert_eq!(answer.code(), -32602, "{answer:?}");
        assert!(answer.fields()[0].starts_with(field), "{answer:?}");
    }
}

#[tokio::test]
async fn declared_extensions_reach_the_agent_and_active_ones_come_back() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let headers = [
        ("a2a-extensions", "https://known.example/a , https://other.example,"),
        ("a2a-extensions", "https://known.example/b,https://known.example/a"),
    ];
    let all = ["https://known.example/a", "https://other.example", "https://known.example/b"];
    let back = "https://known.example/a, https://known.example/b";
    let rpc = request("SendMessage", message("x"));
    let stream = request("SendStreamingMessage", message("open"));
    for (path, body) in [("/", rpc), ("/", stream), ("/message:send", message("x").to_string())] {
        let response = client.send("POST", path, &headers, body).await;
        assert_eq!(response.headers()["a2a-extensions"], back);
        assert_eq!(mesh.fake.last_call().await.caller.unwrap().extensions, all);
        client = mesh.client().await;
    }
    let without = client.rpc("SendMessage", message("x")).await;
    assert!(!without.headers.contains_key("a2a-extensions"));
    let old = [("x-a2a-extensions", "https://known.example/a")];
    let old = client.send("POST", "/message:send", &old, message("x").to_string()).await;
    assert_eq!(old.headers()["x-a2a-extensions"], "https://known.example/a");
    assert!(
        !old.headers().contains_key("a2a-extensions"),
        "only the header of the request is used"
    );
    let many: Vec<_> = (0..65).map(|n| format!("urn:{n}")).collect();
    let (refused, _) = send(&mesh, &[("a2a-extensions", &many.join(","))], message("x")).await;
    assert_eq!(refused.fields(), ["A2A-Extensions"]);
}

#[tokio::test]
async fn message_is_bounded_in_parts_and_metadata() {
    let mesh = Mesh::start().await;
    let mut parts = message("x");
    parts["message"]["parts"] = json!(vec![json!({"text": "x"}); 1025]);
    let mut references = message("x");
    references["message"]["referenceTaskIds"] = json!(vec!["t"; 257]);
    let mut metadata = message("x");
    metadata["message"]["metadata"] = json!({"k": "x".repeat(65 * 1024)});
    let mut of_part = message("x");
    of_part["message"]["parts"][0]["metadata"] = json!({"k": "x".repeat(65 * 1024)});
    let mut push = message("x");
    push["configuration"] = json!({"taskPushNotificationConfig": {"authentication": {}}});
    let at = "configuration.taskPushNotificationConfig";
    for (params, fields) in [
        (parts, vec!["message.parts".to_owned()]),
        (references, vec!["message.referenceTaskIds".to_owned()]),
        (metadata, vec!["message.metadata".to_owned()]),
        (of_part, vec!["message.parts[0].metadata".to_owned()]),
        (push, vec![format!("{at}.url"), format!("{at}.authentication.scheme")]),
    ] {
        let answer = mesh.client().await.rpc("SendMessage", params).await;
        assert_eq!(answer.code(), -32602, "{answer:?}");
        assert_eq!(answer.fields(), fields);
    }
}
