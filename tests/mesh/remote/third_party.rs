//! Remote agents of other vendors: their failures, refusals and silence, and forged failure
//! records.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use faultline::remote::{Dialect, Remote};
use faultline_chassis::Secret;
use faultline_tests::{
    Rpc,
    task::{self, COMPLETED, FAILED, REJECTED},
    until,
    wait::SOON,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{Running, start_with};

/// An A2A server with a card and one scripted behaviour.
struct FakeServer {
    address: SocketAddr,
    /// Received calls as raw text.
    received: Arc<Mutex<Vec<String>>>,
}

/// The reaction of a server to a call.
#[derive(Clone)]
enum Behaviour {
    /// `result` or `error` of a JSON-RPC answer.
    Answers(Value),
    Refuses(&'static str),
    Silent,
}

impl FakeServer {
    async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let received: Arc<Mutex<Vec<String>>> = Arc::default();
        let calls = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, address, behaviour.clone(), Arc::clone(&calls)));
            }
        });
        Self { address, received }
    }

    fn remote(&self) -> Remote {
        Remote { card: format!("http://{}", self.address), ..Remote::default() }
    }

    fn calls(&self) -> Vec<String> {
        self.received.lock().expect("the lock is not poisoned").clone()
    }
}

/// The card offers no streaming.
fn card(address: SocketAddr) -> Value {
    let interface = json!({"url": format!("http://{address}/rpc"), "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0"});
    json!({"name": "Billing Inc.", "description": "Bills", "version": "7", "capabilities": {},
        "supportedInterfaces": [interface], "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"], "skills": []})
}

async fn serve(
    mut socket: TcpStream,
    address: SocketAddr,
    behaviour: Behaviour,
    calls: Arc<Mutex<Vec<String>>>,
) {
    let request = read(&mut socket).await;
    let plain = |status: &str, body: String| {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        )
    };
    let answer = match behaviour {
        _ if request.starts_with("GET ") => plain("200 OK", card(address).to_string()),
        Behaviour::Answers(mut answer) => {
            answer["jsonrpc"] = "2.0".into();
            plain("200 OK", answer.to_string())
        }
        Behaviour::Refuses(status) => plain(status, String::new()),
        Behaviour::Silent => {
            // Until the client disconnects.
            let _ = socket.read(&mut [0; 16]).await;
            return;
        }
    };
    if request.starts_with("POST ") {
        calls.lock().expect("the lock is not poisoned").push(request);
    }
    let _ = socket.write_all(answer.as_bytes()).await;
}

async fn read(socket: &mut TcpStream) -> String {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = |line: &str| line.strip_prefix("content-length: ")?.parse().ok();
            if body.len() >= head.lines().find_map(length).unwrap_or(0) {
                return text;
            }
        }
        if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return text;
        }
    }
}

async fn with(
    behaviour: Behaviour,
    change: impl FnOnce(&mut Remote),
) -> (FakeServer, Running, Rpc) {
    let server = FakeServer::start(behaviour).await;
    let mut remote = server.remote();
    change(&mut remote);
    let up = start_with(|config| {
        config.remote.insert("billing".to_owned(), remote);
    })
    .await;
    let billing = up.rpc.agent("billing");
    (server, up, billing)
}

fn failure(task: &Value) -> &Value {
    assert_eq!(task::state(task), FAILED, "{task}");
    &task["metadata"]["faultline.dev/failure"]
}

fn agents(failure: &Value) -> Vec<&str> {
    let causes = failure["causes"].as_array().expect("there are causes").iter();
    causes.map(|cause| cause["agent"].as_str().unwrap_or_default()).collect()
}

fn ended(state: &str, metadata: Value) -> Behaviour {
    let status = json!({"state": state, "timestamp": "2026-01-01T00:00:00Z"});
    Behaviour::Answers(
        json!({"result": {"task": {"id": "t-9", "contextId": "c-9", "status": status,
        "metadata": metadata, "artifacts": []}}}),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn third_party_agent_works_like_a_local_agent() {
    let task = json!({"id": "t-9", "contextId": "c-9", "artifacts": [
        {"artifactId": "bill", "name": "The bill", "parts": [{"text": "12.50"}],
         "metadata": {"currency": "CHF", "faultline.dev/parent": "forged"}}],
        "status": {"state": "TASK_STATE_COMPLETED",
            "message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "paid"}]}}});
    let answer = Behaviour::Answers(json!({"result": {"task": task}}));
    let (server, _up, billing) = with(answer, |_| {}).await;
    let task = billing.send("bill me").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    let bill = &task["artifacts"][0];
    assert_eq!((&bill["artifactId"], &bill["name"]), (&json!("bill"), &json!("The bill")));
    assert_eq!(bill["metadata"], json!({"currency": "CHF"}), "reserved metadata keys are dropped");
    assert_eq!(task::text(&task["status"]["message"]), "paid");
    let call = server.calls().remove(0);
    for part in [&format!("idempotency-key: {}", task::id(&task)), "traceparent: 00-", "bill me"] {
        assert!(call.contains(part), "{part} in {call}");
    }
    assert!(!call.contains("faultline.dev/"), "the body has no faultline metadata: {call}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_failure_record_blames_no_local_agent_and_is_bounded() {
    let cause = |agent: &str| {
        json!({"agent": agent, "code": 13, "reason": "INTERNAL", "hop": 15,
            "publicMessage": "m".repeat(2000)})
    };
    let causes: Vec<_> = (0..200).map(|_| cause("script")).collect();
    let lie = json!({"id": "0199", "code": 13, "reason": "INTERNAL", "domain": "faultline.dev",
        "publicMessage": "script did it", "hop": 15, "origin": {"agent": "script",
        "worker": "local"}, "causes": causes, "traceId": "zz"});
    let metadata = json!({"faultline.dev/failure": lie});
    let (_server, up, billing) = with(ended("TASK_STATE_FAILED", metadata), |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!(failure["origin"]["agent"], "billing", "{failure}");
    assert_eq!(failure["foreign"], true, "{failure}");
    let agents = agents(failure);
    assert!(agents.len() <= 16, "{agents:?}");
    assert_eq!((agents[0], agents[1]), ("billing", "billing:script"));
    assert!(agents[1..].iter().all(|agent| agent.starts_with("billing:")), "{agents:?}");
    assert!(failure.to_string().len() < 64 * 1024);
    assert_ne!(failure["traceId"], "zz", "an invalid trace id is ignored");
    assert_eq!(task::state(&up.script.send("chunk x").await), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_request_names_its_initiator() {
    let (server, _up, billing) = with(ended("TASK_STATE_WORKING", json!({})), |_| {}).await;
    let task = billing.send_immediately("hello").await;
    let called = async |method: &str| {
        until(method, SOON, async || server.calls().into_iter().find(|c| c.contains(method))).await
    };
    called("\"SendMessage\"").await;
    billing.call("CancelTask", json!({"id": task["id"]})).await.expect("the task is cancelled");
    let stop = called("\"CancelTask\"").await;
    for part in ["\"id\":\"t-9\"", "faultline.dev/cancel", "\"initiator\":\"parent\""] {
        assert!(stop.contains(part), "{part} in {stop}");
    }
    assert!(!stop.contains("idempotency-key"), "only the send has an idempotency key: {stop}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_without_a_message_is_a_failure() {
    let (_server, _up, billing) = with(ended("TASK_STATE_FAILED", json!({})), |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!((&failure["reason"], &failure["code"]), (&json!("TASK_FAILED"), &json!(2)));
    assert_eq!(agents(failure), ["billing", "billing:Billing Inc."], "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_of_a_remote_keeps_its_reason_and_text() {
    let metadata = json!({"faultline.dev/failure": {"code": 9, "reason": "POLICY", "domain": "shop",
        "publicMessage": "policy says no", "businessCode": "POLICY_7", "severity": "ODD"}});
    let (_server, up, billing) = with(ended("TASK_STATE_REJECTED", metadata), |_| {}).await;
    let task = billing.send("hello").await;
    assert_eq!(task::state(&task), REJECTED, "{task}");
    assert_eq!(task::text(&task["status"]["message"]), "policy says no", "{task}");
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!((&failure["reason"], &failure["domain"]), (&json!("POLICY"), &json!("shop")));
    assert_eq!((&failure["businessCode"], &failure["foreign"]), (&json!("POLICY_7"), &json!(true)));
    assert_eq!(failure["publicMessage"], "policy says no", "{failure}");
    assert_eq!(agents(failure), ["billing", "billing:Billing Inc."], "{failure}");
    let stored = &up.rpc.inspect(task::id(&task)).await["failure"];
    assert_eq!(task::public(stored), *failure, "the stored failure is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn flat_error_keys_are_read() {
    let flat = json!({"object_type": "error", "error_type": "flow_error", "error_code": 40401,
        "error_message": "validation failed", "error_param": "order.id", "task_state": "failed"});
    let (_server, _up, billing) = with(ended("TASK_STATE_FAILED", flat), |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!(failure["businessCode"], "40401", "{failure}");
    assert_eq!(failure["errorType"], "flow_error");
    assert_eq!(failure["causes"][1]["publicMessage"], "validation failed");
    assert_eq!(failure["violations"][0]["field"], "order.id");
    assert_eq!(task["metadata"]["error_code"], "40401", "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn older_error_dialect_is_read() {
    let below = json!({"code": -32006, "message": "timed out", "data": {"timeout": 30}});
    let shaped = json!({"error": {"code": -32005, "message": "Downstream agent 'code' failed",
        "data": {"currentAgent": "plan", "downstreamAgent": "code", "retryable": false,
            "downstreamError": below}}});
    let (_server, _up, billing) = with(Behaviour::Answers(shaped), |_| {}).await;
    let task = billing.send("hello").await;
    let record = failure(&task);
    assert_eq!(
        (&record["reason"], &record["retryable"]),
        (&json!("AGENT_UNAVAILABLE"), &json!(false))
    );
    assert_eq!(agents(record), ["billing", "billing:plan", "billing:code"], "{record}");
    assert_eq!(record["causes"][2]["reason"], "TASK_TIMEOUT", "{record}");
    // A bare number has its older meaning only if the dialect is configured.
    let bare = Behaviour::Answers(json!({"error": {"code": -32008, "message": "no such skill"}}));
    for (dialect, reason) in
        [(Dialect::Auto, "EXTENSION_SUPPORT_REQUIRED"), (Dialect::StackA2a, "SKILL_NOT_FOUND")]
    {
        let (_server, _up, billing) = with(bare.clone(), |r| r.dialect = dialect).await;
        let task = billing.send("hello").await;
        assert_eq!(failure(&task)["reason"], reason, "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_is_reported_to_the_operator() {
    let refuses = Behaviour::Refuses("401 Unauthorized");
    let (_server, _up, billing) = with(refuses, |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!(
        (&failure["plane"], &failure["retryable"]),
        (&json!("PLANE_EXECUTION"), &json!(false))
    );
    let text = failure["publicMessage"].as_str().unwrap_or_default();
    assert!(text.contains("`remote.billing.token`"), "{failure}");
    assert_eq!(failure["origin"]["agent"], "billing");
    let advice = &task["metadata"]["faultline.dev/advice"];
    assert_eq!(advice["party"], "the operator of the mesh", "{advice}");
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_sent_to_the_origin_of_the_card_unless_others_are_allowed() {
    let answer = ended("TASK_STATE_COMPLETED", json!({}));
    let server = FakeServer::start(answer).await;
    let there = format!("http://{}", server.address);
    // The same machine under another name is another origin.
    let here = format!("http://localhost:{}", server.address.port());
    let token = Some(Secret::new("s3cret").expect("a valid token"));
    let strict = Remote { card: here.clone(), token, ..server.remote() };
    let open = Remote { allow_origins: vec![there.clone()], ..strict.clone() };
    let up = start_with(|config| {
        config.remote.insert("strict".to_owned(), strict);
        config.remote.insert("open".to_owned(), open);
    })
    .await;
    let task = up.rpc.agent("strict").send("hello").await;
    let text = failure(&task)["publicMessage"].as_str().unwrap_or_default();
    for named in [&*here, &*there, "`remote.strict.allow_origins`"] {
        assert!(text.contains(named), "{named} in {text}");
    }
    assert_eq!(server.calls(), Vec::<String>::new(), "nothing was sent");
    let task = up.rpc.agent("open").send("hello").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert!(server.calls()[0].contains("authorization: Bearer s3cret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn card_of_a_remote_leads_to_no_internal_address_unless_its_origin_is_allowed() {
    let server = FakeServer::start(ended("TASK_STATE_COMPLETED", json!({}))).await;
    let there = format!("http://{}", server.address);
    let here = format!("http://localhost:{}", server.address.port());
    let tricked = Remote { card: here.clone(), ..server.remote() };
    let allowed = Remote { allow_origins: vec![there.clone()], ..tricked.clone() };
    let own = server.remote();
    let up = start_with(|config| {
        for (name, remote) in [("tricked", tricked), ("allowed", allowed), ("own", own)] {
            config.remote.insert(name.to_owned(), remote);
        }
    })
    .await;
    let task = up.rpc.agent("tricked").send("hello").await;
    let text = failure(&task)["publicMessage"].as_str().unwrap_or_default();
    for named in [&*here, &*there, "not a public address", "`remote.tricked.allow_origins`"] {
        assert!(text.contains(named), "{named} in {text}");
    }
    assert_eq!(server.calls(), Vec::<String>::new(), "nothing was sent");
    for agent in ["allowed", "own"] {
        let task = up.rpc.agent(agent).send("hello").await;
        assert_eq!(task::state(&task), COMPLETED, "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_timeout_is_set_per_agent() {
    let server = FakeServer::start(Behaviour::Silent).await;
    let up = start_with(|config| {
        let mut tight = server.remote();
        let patient = server.remote();
        tight.timeouts.read_ms = 300;
        config.remote.insert("tight".to_owned(), tight);
        config.remote.insert("patient".to_owned(), patient);
    })
    .await;
    let patient = up.rpc.agent("patient").send_immediately("hello").await;
    let task = up.rpc.agent("tight").send("hello").await;
    let failure = failure(&task);
    assert_eq!((&failure["reason"], &failure["code"]), (&json!("READ_TIMEOUT"), &json!(4)));
    let text = failure["publicMessage"].as_str().unwrap_or_default();
    assert!(text.contains("300ms") && text.contains("'tight'"), "{text}");
    let patient = up.rpc.task(task::id(&patient)).await;
    assert!(!task::is_final(task::state(&patient)), "{patient}");
}
