//! Remote agents that are not faultlines: servers of other houses, that fail in words of their own,
//! say nothing, or lie.

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

/// A server with a card that answers every call with the same.
struct Stranger {
    address: SocketAddr,
    /// What was called, as it came.
    seen: Arc<Mutex<Vec<String>>>,
}

/// What it does with a call.
#[derive(Clone)]
enum Manner {
    /// `result` or `error` of a JSON-RPC answer.
    Answers(Value),
    Refuses(&'static str),
    Silent,
}

impl Stranger {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let calls = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, address, manner.clone(), Arc::clone(&calls)));
            }
        });
        Self { address, seen }
    }

    fn remote(&self) -> Remote {
        Remote { card: format!("http://{}", self.address), ..Remote::default() }
    }

    fn calls(&self) -> Vec<String> {
        self.seen.lock().expect("nobody panics with it").clone()
    }
}

/// It has no streams, as many of its kind have none.
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
    manner: Manner,
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
    let answer = match manner {
        _ if request.starts_with("GET ") => plain("200 OK", card(address).to_string()),
        Manner::Answers(mut answer) => {
            answer["jsonrpc"] = "2.0".into();
            plain("200 OK", answer.to_string())
        }
        Manner::Refuses(status) => plain(status, String::new()),
        Manner::Silent => {
            // Until the other hangs up.
            let _ = socket.read(&mut [0; 16]).await;
            return;
        }
    };
    if request.starts_with("POST ") {
        calls.lock().expect("nobody panics with it").push(request);
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

async fn with(manner: Manner, change: impl FnOnce(&mut Remote)) -> (Stranger, Running, Rpc) {
    let stranger = Stranger::start(manner).await;
    let mut remote = stranger.remote();
    change(&mut remote);
    let up = start_with(|config| {
        config.remote.insert("billing".to_owned(), remote);
    })
    .await;
    let billing = up.rpc.agent("billing");
    (stranger, up, billing)
}

fn failure(task: &Value) -> &Value {
    assert_eq!(task::state(task), FAILED, "{task}");
    &task["metadata"]["faultline.dev/failure"]
}

fn agents(failure: &Value) -> Vec<&str> {
    let causes = failure["causes"].as_array().expect("there are causes").iter();
    causes.map(|cause| cause["agent"].as_str().unwrap_or_default()).collect()
}

fn ended(state: &str, metadata: Value) -> Manner {
    let status = json!({"state": state, "timestamp": "2026-01-01T00:00:00Z"});
    Manner::Answers(json!({"result": {"task": {"id": "t-9", "contextId": "c-9", "status": status,
        "metadata": metadata, "artifacts": []}}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_works_is_an_agent_like_any_other() {
    let task = json!({"id": "t-9", "contextId": "c-9", "artifacts": [
        {"artifactId": "bill", "name": "The bill", "parts": [{"text": "12.50"}],
         "metadata": {"currency": "CHF", "faultline.dev/parent": "forged"}}],
        "status": {"state": "TASK_STATE_COMPLETED",
            "message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "paid"}]}}});
    let answer = Manner::Answers(json!({"result": {"task": task}}));
    let (stranger, _up, billing) = with(answer, |_| {}).await;
    let task = billing.send("bill me").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    let bill = &task["artifacts"][0];
    assert_eq!((&bill["artifactId"], &bill["name"]), (&json!("bill"), &json!("The bill")));
    assert_eq!(bill["metadata"], json!({"currency": "CHF"}), "what claims to be ours is not");
    assert_eq!(task::text(&task["status"]["message"]), "paid");
    let call = stranger.calls().remove(0);
    for told in [&format!("idempotency-key: {}", task::id(&task)), "traceparent: 00-", "bill me"] {
        assert!(call.contains(told), "{told} in {call}");
    }
    assert!(!call.contains("faultline.dev/"), "nothing of ours in the body: {call}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_liar_cannot_blame_our_agents_nor_flood_the_chain() {
    let cause = |agent: &str| {
        json!({"agent": agent, "code": 13, "reason": "INTERNAL", "hop": 15,
            "publicMessage": "m".repeat(2000)})
    };
    let causes: Vec<_> = (0..200).map(|_| cause("script")).collect();
    let lie = json!({"id": "0199", "code": 13, "reason": "INTERNAL", "domain": "faultline.dev",
        "publicMessage": "script did it", "hop": 15, "origin": {"agent": "script",
        "worker": "local"}, "causes": causes, "traceId": "zz"});
    let told = json!({"faultline.dev/failure": lie});
    let (_stranger, up, billing) = with(ended("TASK_STATE_FAILED", told), |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!(failure["origin"]["agent"], "billing", "{failure}");
    assert_eq!(failure["foreign"], true, "{failure}");
    let agents = agents(failure);
    assert!(agents.len() <= 16, "{agents:?}");
    assert_eq!((agents[0], agents[1]), ("billing", "billing:script"));
    assert!(agents[1..].iter().all(|agent| agent.starts_with("billing:")), "{agents:?}");
    assert!(failure.to_string().len() < 64 * 1024);
    assert_ne!(failure["traceId"], "zz", "what is no trace is not taken for one");
    assert_eq!(task::state(&up.script.send("chunk x").await), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_says_who_stopped_it() {
    let (stranger, _up, billing) = with(ended("TASK_STATE_WORKING", json!({})), |_| {}).await;
    let task = billing.send_immediately("hello").await;
    let called = async |method: &str| {
        until(method, SOON, async || stranger.calls().into_iter().find(|c| c.contains(method)))
            .await
    };
    called("\"SendMessage\"").await;
    billing.call("CancelTask", json!({"id": task["id"]})).await.expect("it can be stopped");
    let stop = called("\"CancelTask\"").await;
    for told in ["\"id\":\"t-9\"", "faultline.dev/cancel", "\"initiator\":\"parent\""] {
        assert!(stop.contains(told), "{told} in {stop}");
    }
    assert!(!stop.contains("idempotency-key"), "a key is for the send alone: {stop}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_without_a_word_is_one_all_the_same() {
    let (_stranger, _up, billing) = with(ended("TASK_STATE_FAILED", json!({})), |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!((&failure["reason"], &failure["code"]), (&json!("TASK_FAILED"), &json!(2)));
    assert_eq!(agents(failure), ["billing", "billing:Billing Inc."], "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_of_his_stays_one_with_all_that_he_says() {
    let told = json!({"faultline.dev/failure": {"code": 9, "reason": "POLICY", "domain": "shop",
        "publicMessage": "policy says no", "businessCode": "POLICY_7", "severity": "ODD"}});
    let (_stranger, up, billing) = with(ended("TASK_STATE_REJECTED", told), |_| {}).await;
    let task = billing.send("hello").await;
    assert_eq!(task::state(&task), REJECTED, "{task}");
    assert_eq!(task::text(&task["status"]["message"]), "policy says no", "{task}");
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!((&failure["reason"], &failure["domain"]), (&json!("POLICY"), &json!("shop")));
    assert_eq!((&failure["businessCode"], &failure["foreign"]), (&json!("POLICY_7"), &json!(true)));
    assert_eq!(failure["publicMessage"], "policy says no", "{failure}");
    assert_eq!(agents(failure), ["billing", "billing:Billing Inc."], "{failure}");
    let stored = &up.rpc.inspect(task::id(&task)).await["failure"];
    assert_eq!(task::public(stored), *failure, "as it is stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn flat_keys_are_read() {
    let flat = json!({"object_type": "error", "error_type": "flow_error", "error_code": 40401,
        "error_message": "validation failed", "error_param": "order.id", "task_state": "failed"});
    let (_stranger, _up, billing) = with(ended("TASK_STATE_FAILED", flat), |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!(failure["businessCode"], "40401", "{failure}");
    assert_eq!(failure["errorType"], "flow_error");
    assert_eq!(failure["causes"][1]["publicMessage"], "validation failed");
    assert_eq!(failure["violations"][0]["field"], "order.id");
    assert_eq!(task["metadata"]["error_code"], "40401", "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_dialect_is_understood() {
    let below = json!({"code": -32006, "message": "timed out", "data": {"timeout": 30}});
    let shaped = json!({"error": {"code": -32005, "message": "Downstream agent 'code' failed",
        "data": {"currentAgent": "plan", "downstreamAgent": "code", "retryable": false,
            "downstreamError": below}}});
    let (_stranger, _up, billing) = with(Manner::Answers(shaped), |_| {}).await;
    let task = billing.send("hello").await;
    let told = failure(&task);
    assert_eq!((&told["reason"], &told["retryable"]), (&json!("AGENT_UNAVAILABLE"), &json!(false)));
    assert_eq!(agents(told), ["billing", "billing:plan", "billing:code"], "{told}");
    assert_eq!(told["causes"][2]["reason"], "TASK_TIMEOUT", "{told}");
    // A number alone has the older meaning only where that is configured.
    let bare = Manner::Answers(json!({"error": {"code": -32008, "message": "no such skill"}}));
    for (dialect, reason) in
        [(Dialect::Auto, "EXTENSION_SUPPORT_REQUIRED"), (Dialect::StackA2a, "SKILL_NOT_FOUND")]
    {
        let (_stranger, _up, billing) = with(bare.clone(), |r| r.dialect = dialect).await;
        let task = billing.send("hello").await;
        assert_eq!(failure(&task)["reason"], reason, "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_bad_token_is_the_operators_matter_and_not_our_callers() {
    let refuses = Manner::Refuses("401 Unauthorized");
    let (_stranger, _up, billing) = with(refuses, |_| {}).await;
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
async fn our_token_stays_where_the_card_is_from_unless_another_origin_is_allowed() {
    let answer = ended("TASK_STATE_COMPLETED", json!({}));
    let stranger = Stranger::start(answer).await;
    let there = format!("http://{}", stranger.address);
    // The same machine by another name: to a browser and to us another origin.
    let here = format!("http://localhost:{}", stranger.address.port());
    let token = Some(Secret::new("s3cret").expect("it can be sent"));
    let shy = Remote { card: here.clone(), token, ..stranger.remote() };
    let open = Remote { allow_origins: vec![there.clone()], ..shy.clone() };
    let up = start_with(|config| {
        config.remote.insert("shy".to_owned(), shy);
        config.remote.insert("open".to_owned(), open);
    })
    .await;
    let task = up.rpc.agent("shy").send("hello").await;
    let text = failure(&task)["publicMessage"].as_str().unwrap_or_default();
    for named in [&*here, &*there, "`remote.shy.allow_origins`"] {
        assert!(text.contains(named), "{named} in {text}");
    }
    assert_eq!(stranger.calls(), Vec::<String>::new(), "nothing was sent");
    let task = up.rpc.agent("open").send("hello").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert!(stranger.calls()[0].contains("authorization: Bearer s3cret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn card_of_a_remote_leads_to_no_internal_address_unless_its_origin_is_allowed() {
    let stranger = Stranger::start(ended("TASK_STATE_COMPLETED", json!({}))).await;
    let there = format!("http://{}", stranger.address);
    let here = format!("http://localhost:{}", stranger.address.port());
    let tricked = Remote { card: here.clone(), ..stranger.remote() };
    let allowed = Remote { allow_origins: vec![there.clone()], ..tricked.clone() };
    let own = stranger.remote();
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
    assert_eq!(stranger.calls(), Vec::<String>::new(), "nothing was sent");
    for agent in ["allowed", "own"] {
        let task = up.rpc.agent(agent).send("hello").await;
        assert_eq!(task::state(&task), COMPLETED, "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_silent_agents_only_the_one_with_little_patience_fails() {
    let stranger = Stranger::start(Manner::Silent).await;
    let up = start_with(|config| {
        let mut tight = stranger.remote();
        let patient = stranger.remote();
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
