//! Version negotiation on every binding, and answers to clients of A2A 0.3.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    Mesh,
    client::{Answer, Client, Events, request},
};

fn old_message(text: &str) -> Value {
    let part = json!({"kind": "text", "text": text});
    json!({"message": {"kind": "message", "messageId": "m-1", "role": "user", "parts": [part]}})
}

async fn rpc(client: &mut Client, version: &str, method: &str, params: Value) -> Answer {
    client.ask("POST", "/", &[("a2a-version", version)], request(method, params)).await
}

#[tokio::test]
async fn version_comes_from_the_header_or_the_query() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for version in ["1", "1.0", "1.0.1", "1.7", " 1.0 "] {
        let answer = rpc(&mut client, version, "ListTasks", json!({})).await;
        assert!(answer.body["result"].is_object(), "{version}: {answer:?}");
        let answer = client.ask("GET", "/tasks", &[("a2a-version", version)], "").await;
        assert_eq!(answer.status, StatusCode::OK, "{version}");
    }
    for version in ["2.0", "0.2", "abc", "1.x"] {
        let answer = rpc(&mut client, version, "ListTasks", json!({})).await;
        assert_eq!((answer.code(), answer.reason()), (-32009, "VERSION_NOT_SUPPORTED"));
        let answer = client.ask("GET", "/tasks", &[("a2a-version", version)], "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (400, "VERSION_NOT_SUPPORTED"));
        assert!(answer.message().contains("1.0 or 0.3"), "{answer:?}");
    }
    let nothing = [("a2a-version", "")];
    let in_query = client.ask("GET", "/tasks?A2A-Version=1.0", &nothing, "").await;
    assert_eq!(in_query.status, StatusCode::OK);
    let in_query = client.ask("GET", "/tasks?A2A%2DVersion=1.0", &nothing, "").await;
    assert_eq!(in_query.status, StatusCode::OK);
    let twice = ["1.0,1.0", "1.0, 0.3", "0.3,1.0"].map(|text| [("a2a-version", text)]);
    for (headers, status) in twice.into_iter().zip([200, 400, 400]) {
        let answer = client.ask("GET", "/tasks", &headers, "").await;
        assert_eq!(answer.status.as_u16(), status, "{headers:?}");
    }
    let body = request("ListTasks", json!({}));
    let in_query = client.ask("POST", "/?a2a-version=1.0", &nothing, body).await;
    assert!(in_query.body["result"].is_object());
}

#[tokio::test]
async fn method_of_1_0_without_a_version_is_rejected_with_the_header_name() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for version in ["", "0.3"] {
        let answer = rpc(&mut client, version, "GetTask", json!({"id": "t"})).await;
        assert_eq!(answer.code(), -32009, "{version}");
        assert!(answer.message().contains("A2A-Version: 1.0"), "{answer:?}");
        assert_eq!(answer.body["id"], 1);
        let answer = client.ask("GET", "/tasks/t", &[("a2a-version", version)], "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (400, "VERSION_NOT_SUPPORTED"));
        assert!(answer.message().contains("A2A-Version: 1.0"), "{answer:?}");
    }
    let old = rpc(&mut client, "1.0", "message/send", json!({})).await;
    assert_eq!(old.code(), -32601);
    assert!(old.message().contains("SendMessage"), "{old:?}");
    assert_eq!(rpc(&mut client, "", "tasks/list", json!({})).await.code(), -32601);
}

#[tokio::test]
async fn v03_client_is_answered_in_v03() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for version in ["", "0.3", "0.3.0"] {
        let sent = rpc(&mut client, version, "message/send", old_message("x")).await;
        let task = &sent.body["result"];
        assert_eq!(
            (&task["kind"], &task["status"]["state"]),
            (&json!("task"), &json!("completed"))
        );
        let got = rpc(&mut client, version, "tasks/get", json!({"id": "t-7"})).await;
        assert_eq!(got.body["result"]["id"], "t-7");
    }
    let nothing = [("a2a-version", "")];
    let mut events = client.events(&nothing, "message/stream", old_message("count 2")).await;
    let (id, event) = events.next_data().await;
    assert_eq!((id, &event["result"]["kind"]), (Some(1), &json!("task")));
    assert_eq!(event["id"], 1);
    assert_eq!(events.numbers().await, [2]);
    let failed = rpc(&mut client, "", "tasks/cancel", json!({"id": "t-7"})).await;
    assert_eq!(failed.code(), -32001);
    let agent =
        client.ask("POST", "/agents/echo", &nothing, request("message/send", old_message("x")));
    assert_eq!(agent.await.body["result"]["id"], "echo");
}

#[tokio::test]
async fn v03_request_without_a_configuration_id_gets_the_first() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let get = "tasks/pushNotificationConfig/get";
    let named = json!({"id": "pushed", "pushNotificationConfigId": "p-2"});
    let named = rpc(&mut client, "", get, named).await.body["result"].take();
    assert_eq!(named["pushNotificationConfig"]["id"], "p-2", "{named}");
    for unnamed in
        [json!({"id": "pushed"}), json!({"id": "pushed", "pushNotificationConfigId": null})]
    {
        let first = rpc(&mut client, "", get, unnamed).await.body["result"].take();
        assert_eq!(
            (&first["taskId"], &first["pushNotificationConfig"]["id"]),
            (&json!("pushed"), &json!("p-1"))
        );
    }
    let none = rpc(&mut client, "", get, json!({"id": "none"})).await;
    assert_eq!((none.code(), none.reason()), (-32001, "TASK_NOT_FOUND"), "{none:?}");
    let new = client.rpc("GetTaskPushNotificationConfig", json!({"taskId": "pushed"})).await;
    assert_eq!((new.code(), new.fields()), (-32602, vec!["id"]), "1.0 requires the id");
}

#[tokio::test]
async fn v03_rest_client_has_its_own_paths() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let nothing = [("a2a-version", "")];
    let got = client.ask("GET", "/v1/tasks/t-7", &nothing, "").await;
    assert_eq!((got.status, &got.body["id"]), (StatusCode::OK, &json!("t-7")), "{got:?}");
    assert_eq!(got.headers["content-type"], "application/json");
    let sent = json!({"request": {
        "messageId": "m-1", "role": "ROLE_USER", "content": [{"text": "count 2"}],
    }});
    let stream = client.send("POST", "/v1/message:stream", &nothing, sent.to_string()).await;
    assert_eq!(Events::of(stream).numbers().await, [1, 2]);
    let failed = client.ask("POST", "/agents/echo/v1/tasks/t-7:cancel", &nothing, "").await;
    assert_eq!((failed.status.as_u16(), &failed.body["code"]), (404, &json!(-32001)));
    assert_eq!(failed.body["type"], "TaskNotFoundError");
    let card = client.ask("GET", "/agents/plan/v1/card", &nothing, "").await;
    assert_eq!(
        (&card.body["name"], &card.body["protocolVersion"]),
        (&json!("plan"), &json!("0.3.0"))
    );
    let torn = client.ask("GET", "/v1/tasks/t-7", &[("a2a-version", "1.0")], "").await;
    assert_eq!((torn.status.as_u16(), torn.reason()), (400, "VERSION_NOT_SUPPORTED"));
}

#[tokio::test]
async fn v03_clients_can_be_rejected() {
    let mesh = Mesh::start_with(|config| config.serve_v03 = false).await;
    let mut client = mesh.client().await;
    let sent = rpc(&mut client, "", "message/send", old_message("x")).await;
    assert_eq!(sent.code(), -32009);
    assert!(!sent.message().contains("or 0.3"), "{sent:?}");
    let got = client.ask("GET", "/v1/tasks/t-7", &[("a2a-version", "")], "").await;
    assert_eq!((got.status.as_u16(), got.reason()), (400, "VERSION_NOT_SUPPORTED"));
    for (path, status) in [("agent.json", 404), ("agent-card.json", 200)] {
        let card = client.ask("GET", &format!("/.well-known/{path}"), &[], "").await;
        assert_eq!(card.status.as_u16(), status, "{path}");
    }
}
