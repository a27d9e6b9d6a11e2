//! Isolation of principals: one principal tries each operation of each binding on a task of
//! another. The task is neither visible nor changed, and the answers equal those for an unknown
//! task.

use faultline::Config;
use faultline_gateway::{Scope, Token};
use faultline_tests::{
    A2aEndpoint, Binding, Rpc,
    a2a_endpoint::Refusal,
    rpc::{Reply, answer, envelope, message},
    task::{self, COMPLETED, INPUT_REQUIRED},
};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::{on_every_binding, start_with};

on_every_binding! {
    task_of_another_principal_is_not_found
    unauthenticated_caller_is_refused
    token_is_limited_to_its_agents_and_scopes
    token_without_agents_may_not_use_the_agent_for_drills
}

const ALICE: &str = "alice-token";
const BOB: &str = "bob-token";
const CAROL: &str = "carol-token";
const READER: &str = "reader-token";

/// `printf alice-token | sha256sum`, and so on.
fn tokens(config: &mut Config) {
    let token = |sha256: &str, principal: &str, agents: &[&str], scopes: &[Scope]| Token {
        sha256: sha256.to_owned(),
        principal: principal.to_owned(),
        agents: agents.iter().map(|a| (*a).to_owned()).collect(),
        scopes: scopes.to_vec(),
    };
    let both = [Scope::Send, Scope::Read];
    let alice = "9c220f200955d76c0a38d308225e0ef10c5f971acaf2f8d1d8f732affa5bd1dc";
    let bob = "97dd3707015dcf069cf73022ed7173b1165db6eff24b441cb57fd069a8c4e525";
    let carol = "6c0d2c0b430d9d9e3231e2645090c735a5059173d4ddf51f186e3f32e01bc832";
    let reader = "ba5005a40cf5212e4ac0190104cc127edab013294bb71279a975b27a80982d45";
    config.auth.token = vec![
        token(alice, "alice", &["echo", "script"], &both),
        token(bob, "bob", &["echo", "script"], &both),
        token(carol, "carol", &[], &both),
        token(reader, "alice", &["echo"], &[Scope::Read]),
    ];
}

const NOWHERE: &str = "018f0000-0000-7000-8000-000000000000";

/// Every operation that names a task, with its parameters.
fn on_task(id: &str) -> Vec<(&'static str, Value)> {
    let webhook = "https://example.org/hook";
    vec![
        ("GetTask", json!({"id": id})),
        ("CancelTask", json!({"id": id})),
        ("SubscribeToTask", json!({"id": id})),
        ("SendMessage", answer(id, "mine now")),
        ("SendStreamingMessage", answer(id, "mine now")),
        ("CreateTaskPushNotificationConfig", json!({"taskId": id, "url": webhook})),
        ("GetTaskPushNotificationConfig", json!({"taskId": id, "id": "hook"})),
        ("ListTaskPushNotificationConfigs", json!({"taskId": id})),
        ("DeleteTaskPushNotificationConfig", json!({"taskId": id, "id": "hook"})),
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

/// A refusal as text, without its ids.
fn comparable(refusal: &Refusal, id: &str) -> String {
    let info = &refusal.details[0];
    let text = format!(
        "{:?} {:?} {:?} {} {} {}",
        refusal.http,
        refusal.jsonrpc,
        refusal.status,
        refusal.message,
        info["reason"],
        refusal.details.len()
    );
    text.replace(id, "ID")
}

async fn task_of_another_principal_is_not_found(binding: Binding) {
    let up = start_with(binding, tokens).await;
    let alice = up.agent("script").bearer(ALICE);
    let bob = up.agent("script").bearer(BOB);
    let mut params = message("ask \"who?\"; chunk $answer");
    params["message"]["contextId"] = "journey".into();
    let asked = alice.call("SendMessage", params).await.unwrap();
    let id = task::id(&asked["task"]).to_owned();
    assert_eq!(task::state(&asked["task"]), INPUT_REQUIRED);
    let hook = json!({"taskId": id, "id": "hook", "url": "http://127.0.0.1:9/hook"});
    alice.call("CreateTaskPushNotificationConfig", hook).await.unwrap();

    for (operation, params) in on_task(&id) {
        let theirs = refused(&bob, operation, params).await;
        let (_, nowhere) = on_task(NOWHERE).into_iter().find(|(o, _)| *o == operation).unwrap();
        let unknown = refused(&bob, operation, nowhere).await;
        assert_eq!(theirs.reason(), ("a2a-protocol.org", "TASK_NOT_FOUND"), "{operation}");
        assert_eq!(comparable(&theirs, &id), comparable(&unknown, NOWHERE), "{operation}");
    }
    for params in [json!({}), json!({"contextId": "journey"})] {
        let list = bob.call("ListTasks", params).await.unwrap();
        assert_eq!(list["tasks"].as_array().map_or(0, Vec::len), 0, "{list}");
        assert_eq!(list["totalSize"].as_i64().unwrap_or(0), 0, "{list}");
    }
    // A context is scoped to its principal.
    let mut params = message("chunk mine");
    params["message"]["contextId"] = "journey".into();
    let own = bob.call("SendMessage", params).await.unwrap();
    assert_eq!(task::state(&own["task"]), COMPLETED);
    let list = bob.call("ListTasks", json!({"contextId": "journey"})).await.unwrap();
    assert_eq!(list["totalSize"], 1, "{list}");

    let after = alice.call("GetTask", json!({"id": id})).await.unwrap();
    assert_eq!(after, asked["task"], "nothing has changed");
    let configs = alice.call("ListTaskPushNotificationConfigs", json!({"taskId": id})).await;
    assert_eq!(configs.unwrap()["configs"].as_array().map(Vec::len), Some(1));
    let done = alice.call("SendMessage", answer(&id, "me")).await.unwrap();
    assert_eq!(task::artifacts(&done["task"])["output"], "me");
}

/// Method and parameters by JSON-RPC of 0.3.
fn old_rpc(id: &str) -> Vec<(&'static str, Value)> {
    let part = json!({"kind": "text", "text": "mine now"});
    let message = json!({"kind": "message", "messageId": "m", "role": "user", "taskId": id,
        "parts": [part]});
    let hook = json!({"id": id, "pushNotificationConfigId": "hook"});
    let made = json!({"taskId": id, "pushNotificationConfig": {"url": "https://example.org/"}});
    vec![
        ("tasks/get", json!({"id": id})),
        ("tasks/cancel", json!({"id": id})),
        ("tasks/resubscribe", json!({"id": id})),
        ("message/send", json!({"message": message})),
        ("message/stream", json!({"message": message})),
        ("tasks/pushNotificationConfig/set", made),
        ("tasks/pushNotificationConfig/get", hook.clone()),
        ("tasks/pushNotificationConfig/get", json!({"id": id})),
        ("tasks/pushNotificationConfig/list", json!({"id": id})),
        ("tasks/pushNotificationConfig/delete", hook),
    ]
}

/// Verb, path and body by REST of 0.3.
fn old_rest(id: &str) -> Vec<(&'static str, String, Value)> {
    let task = format!("/v1/tasks/{id}");
    let configs = format!("{task}/pushNotificationConfigs");
    let message = json!({"request": {"messageId": "m", "role": "ROLE_USER", "taskId": id,
        "content": [{"text": "mine now"}]}});
    let made = json!({"pushNotificationConfig": {"url": "https://example.org/"}});
    vec![
        ("GET", task.clone(), json!({})),
        ("POST", format!("{task}:cancel"), json!({})),
        ("GET", format!("{task}:subscribe"), json!({})),
        ("POST", "/v1/message:send".to_owned(), message.clone()),
        ("POST", "/v1/message:stream".to_owned(), message),
        ("POST", configs.clone(), made),
        ("GET", configs.clone(), json!({})),
        ("GET", format!("{configs}/hook"), json!({})),
        ("DELETE", format!("{configs}/hook"), json!({})),
    ]
}

/// An answer as text, without ids and times.
fn comparable_reply(reply: &Reply, id: &str) -> String {
    let mut body = reply.json();
    let error = &mut body["error"];
    let list = if error["data"].is_array() { "data" } else { "details" };
    let details = error[list].as_array_mut().unwrap_or_else(|| panic!("{reply:?}"));
    for detail in details {
        for key in ["id", "time", "traceId", "spanId"] {
            detail.as_object_mut().unwrap().remove(key);
        }
        for cause in detail["causes"].as_array_mut().into_iter().flatten() {
            let cause = cause.as_object_mut().unwrap();
            cause.remove("time");
            cause.remove("spanId");
        }
        if let Some(metadata) = detail["metadata"].as_object_mut() {
            metadata.remove("failureId");
            metadata.remove("traceId");
        }
    }
    format!("{} {body}", reply.status).replace(id, "ID")
}

#[tokio::test(flavor = "multi_thread")]
async fn task_of_another_principal_is_not_found_by_0_3() {
    let up = start_with(Binding::JsonRpc, tokens).await;
    let alice = up.agent("script").bearer(ALICE);
    let asked = alice.call("SendMessage", message("ask \"who?\"; chunk $answer")).await.unwrap();
    let id = task::id(&asked["task"]).to_owned();
    let hook = json!({"taskId": id, "id": "hook", "url": "http://127.0.0.1:9/hook"});
    alice.call("CreateTaskPushNotificationConfig", hook).await.unwrap();
    let bob = Rpc::bare(up.mesh.gateway_addr()).header("authorization", format!("Bearer {BOB}"));

    for ((method, theirs), (_, nowhere)) in old_rpc(&id).into_iter().zip(old_rpc(NOWHERE)) {
        let theirs = bob.post(envelope(method, theirs)).await;
        let unknown = bob.post(envelope(method, nowhere)).await;
        assert_eq!(theirs.json()["error"]["code"], -32001, "{method}");
        assert_eq!(comparable_reply(&theirs, &id), comparable_reply(&unknown, NOWHERE), "{method}");
    }
    let ask = async |(verb, path, body): (&str, String, Value)| {
        let body = if verb == "POST" { body.to_string() } else { String::new() };
        let request = Request::builder().method(verb).uri(path).header("host", "x");
        let request = request.header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {BOB}"));
        bob.request(request.body(Full::new(body.into())).unwrap()).await.unwrap()
    };
    for (theirs, nowhere) in old_rest(&id).into_iter().zip(old_rest(NOWHERE)) {
        let what = format!("{} {}", theirs.0, theirs.1);
        let theirs = ask(theirs).await;
        let unknown = ask(nowhere).await;
        assert_eq!(
            (theirs.status.as_u16(), &theirs.json()["code"]),
            (404, &json!(-32001)),
            "{what}"
        );
        assert_eq!(comparable_reply(&theirs, &id), comparable_reply(&unknown, NOWHERE), "{what}");
    }

    let after = alice.call("GetTask", json!({"id": id})).await.unwrap();
    assert_eq!(after, asked["task"], "nothing has changed");
    let configs = alice.call("ListTaskPushNotificationConfigs", json!({"taskId": id})).await;
    assert_eq!(configs.unwrap()["configs"].as_array().map(Vec::len), Some(1));
}

async fn unauthenticated_caller_is_refused(binding: Binding) {
    let up = start_with(binding, tokens).await;
    for endpoint in
        [up.endpoint.clone(), up.endpoint.bearer("wrong"), up.endpoint.header("authorization", "x")]
    {
        let mut all = on_task(NOWHERE);
        all.push(("ListTasks", json!({})));
        all.push(("GetExtendedAgentCard", json!({})));
        for (operation, params) in all {
            let refusal = refused(&endpoint, operation, params).await;
            assert_eq!(refusal.reason().1, "UNAUTHENTICATED_CALLER", "{operation}");
            match binding {
                Binding::Grpc => assert_eq!(refusal.status.as_deref(), Some("UNAUTHENTICATED")),
                Binding::Rest => {
                    assert_eq!(refusal.http, Some(401), "{operation}");
                    let challenge = refusal.headers["www-authenticate"].to_str().unwrap();
                    assert!(challenge.starts_with("Bearer"), "{challenge}");
                }
                Binding::JsonRpc => assert_eq!(refusal.jsonrpc, Some(-31016), "{operation}"),
            }
        }
    }
}

async fn token_without_agents_may_not_use_the_agent_for_drills(binding: Binding) {
    let up = start_with(binding, tokens).await;
    let carol = up.endpoint.bearer(CAROL);
    for operation in ["SendMessage", "SendStreamingMessage"] {
        let refusal = refused(&carol.agent("script"), operation, message("chunk x")).await;
        assert_eq!(refusal.reason().1, "INSUFFICIENT_SCOPE", "{operation}");
        assert!(
            refusal.message.contains("`agents`"),
            "the message names the key that allows it: {refusal:?}"
        );
    }
    let echoed = carol.agent("echo").call("SendMessage", message("x")).await.unwrap();
    assert_eq!(task::state(&echoed["task"]), COMPLETED);
}

async fn token_is_limited_to_its_agents_and_scopes(binding: Binding) {
    let up = start_with(binding, tokens).await;
    let alice = up.endpoint.bearer(ALICE);
    let reader = up.endpoint.bearer(READER);
    let echoed = alice.agent("echo").call("SendMessage", message("x")).await.unwrap();
    let scripted = alice.agent("script").call("SendMessage", message("chunk x")).await.unwrap();
    let echoed = &echoed["task"];
    let scripted = &scripted["task"];
    // Another token of the same principal, which may read tasks of echo only.
    let read = reader.call("GetTask", json!({"id": echoed["id"]})).await.unwrap();
    assert_eq!(&read, echoed);
    let hidden = reader.call("GetTask", json!({"id": scripted["id"]})).await.unwrap_err();
    assert_eq!(hidden.reason().1, "TASK_NOT_FOUND", "{hidden:?}");
    let list = reader.call("ListTasks", json!({})).await.unwrap();
    assert_eq!((task::id(&list["tasks"][0]), &list["totalSize"]), (task::id(echoed), &json!(1)));
    for (operation, params) in [
        ("SendMessage", message("x")),
        ("SendStreamingMessage", message("x")),
        ("CancelTask", json!({"id": echoed["id"]})),
        ("ListTaskPushNotificationConfigs", json!({"taskId": echoed["id"]})),
    ] {
        let refusal = refused(&reader.agent("echo"), operation, params).await;
        assert_eq!(refusal.reason().1, "INSUFFICIENT_SCOPE", "{operation}");
        assert!(refusal.message.contains("send"), "the message names the scope: {refusal:?}");
        if binding == Binding::Rest {
            assert_eq!(refusal.http, Some(403), "{operation}");
        }
    }
}
