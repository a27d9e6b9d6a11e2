//! Cards, the operators' view and health.

use http::StatusCode;
use serde_json::json;

use crate::{Mesh, fake::agent};

const CARD: &str = "/.well-known/agent-card.json";

#[tokio::test]
async fn a_card_says_where_its_agent_is() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let public = format!("http://{}", mesh.address);
    for (path, name, url) in [
        (CARD.to_owned(), "echo", format!("{public}/")),
        (format!("/agents/plan{CARD}"), "plan", format!("{public}/agents/plan")),
    ] {
        let card = client.ask("GET", &path, &[], "").await;
        assert_eq!(card.status, StatusCode::OK);
        assert_eq!(card.body["name"], name);
        let interface =
            json!([{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
        assert_eq!(card.body["supportedInterfaces"], interface);
    }
}

#[tokio::test]
async fn a_card_that_is_not_there_is_404_with_advice() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    mesh.fake.offer(vec![agent("plan", false)]);
    for (path, advice) in [(CARD.to_owned(), "start a worker"), (format!("/agents/x{CARD}"), "'x'")]
    {
        let answer = client.ask("GET", &path, &[], "").await;
        assert_eq!((answer.status, answer.code()), (StatusCode::NOT_FOUND, 404));
        let error = &answer.body["error"];
        assert_eq!(error["status"], "NOT_FOUND");
        assert_eq!(error["details"][0]["reason"], "AGENT_NOT_FOUND");
        assert!(answer.message().contains(advice), "{answer:?}");
    }
    let posted = client.ask("POST", CARD, &[], "{}").await;
    assert_eq!(posted.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(posted.headers["allow"], "GET");
}

#[tokio::test]
async fn operators_see_agents_workers_and_tasks() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let agents = client.post("/mesh/Agents", "").await;
    assert_eq!(agents.body["agents"][0]["name"], "echo");
    assert_eq!(agents.body["agents"][0]["isDefault"], true);
    let one = client.post("/mesh/Agents", r#"{"name":"plan"}"#).await;
    assert_eq!(one.body["agents"].as_array().unwrap().len(), 1);
    let workers = client.post("/mesh/Workers", "{}").await;
    assert_eq!(workers.body["workers"][0]["name"], "w-1");
    let inspect = client.post("/mesh/Inspect", r#"{"taskId":"t-9"}"#).await;
    assert_eq!(inspect.body["task"]["id"], "t-9");
}

#[tokio::test]
async fn operators_errors_have_the_status_of_their_reason() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for (method, body, status, name) in [
        ("Inspect", "{}", 404, "TASK_NOT_FOUND"),
        ("Inspect", r#"{"taskId":7}"#, 400, "INVALID_PARAMS"),
        ("Inspect", "{", 400, "JSON_PARSE"),
        ("Forget", "{}", 404, "METHOD_NOT_FOUND"),
    ] {
        let answer = client.post(&format!("/mesh/{method}"), body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {body}");
        assert_eq!(answer.code(), i64::from(status));
        assert_eq!(answer.body["error"]["details"][0]["reason"], name);
    }
}

#[tokio::test]
async fn health_is_that_of_the_link() {
    let mesh = Mesh::start().await;
    let health = mesh.client().await.ask("GET", "/healthz", &[], "").await;
    assert_eq!((health.status, health.body), (StatusCode::OK, json!({"status": "ok"})));
}
