//! Remote agents that answer with errors: retries, circuit breaker and failover, as for local
//! agents.

use std::time::Duration;

use faultline::{
    remote::Remote,
    testing::{Peer, Reply},
};
use faultline_tests::{
    Rpc,
    rpc::message,
    task::{self, COMPLETED, FAILED},
};
use serde_json::{Value, json};

use crate::{Running, start_with};

/// A mesh that offers this peer as `billing` and retries quickly.
async fn mesh_with(peer: &Peer, change: impl FnOnce(&mut faultline::Config)) -> (Running, Rpc) {
    let remote = Remote { card: peer.url(), ..Remote::default() };
    let up = start_with(|config| {
        config.coordinator.retries = 2;
        config.coordinator.retry_base_ms = 20;
        config.remote.insert("billing".to_owned(), remote);
        change(config);
    })
    .await;
    let billing = up.rpc.agent("billing");
    (up, billing)
}

fn failure(task: &Value) -> &Value {
    assert_eq!(task::state(task), FAILED, "{task}");
    &task["metadata"]["faultline.dev/failure"]
}

fn reply_with_task(id: &str, state: &str, metadata: &Value) -> Reply {
    let status = json!({"state": state, "timestamp": "2026-01-01T00:00:00Z"});
    let parts = json!([{"text": "done"}]);
    Reply::stream([json!({"task": {"id": id, "contextId": "c", "status": status,
        "metadata": metadata, "artifacts": [{"artifactId": "a", "parts": parts}]}})])
}

fn completed() -> Reply {
    reply_with_task("done", "TASK_STATE_COMPLETED", &json!({}))
}

fn unavailable() -> Value {
    json!({"faultline.dev/failure": {"code": 14, "reason": "UNAVAILABLE",
        "domain": "faultline.dev", "publicMessage": "down", "retryable": true}})
}

fn busy() -> Reply {
    let info = json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "RATE_LIMITED", "domain": "faultline.dev"});
    let delay = json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.3s"});
    Reply::error(json!({"code": -31008, "message": "slow down", "data": [info, delay]}))
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_errors_of_a_peer_are_retried() {
    type Replies = fn(usize) -> Reply;
    let failed: Replies =
        |at| reply_with_task(&format!("t-{at}"), "TASK_STATE_FAILED", &unavailable());
    let cases: [(&str, Replies, u64); 3] = [
        ("a page of its proxy", |_| Reply::html(503), 0),
        ("a refusal that says when", |_| busy(), 300),
        ("a task that failed", failed, 0),
    ];
    for (name, reply, pause) in cases {
        let peer = Peer::answering(move |_, at| if at < 2 { reply(at) } else { completed() });
        let peer = peer.await.expect("a peer starts");
        let (up, billing) = mesh_with(&peer, |_| {}).await;
        let task = billing.send("hello").await;
        assert_eq!(task::state(&task), COMPLETED, "{name}: {task}");
        assert_eq!(task::artifacts(&task)["a"], "done", "{name}: {task}");
        assert_eq!(peer.methods(), ["SendStreamingMessage"; 3], "{name}");
        let waited = peer.gaps().into_iter().min().unwrap_or_default();
        assert!(waited >= Duration::from_millis(pause), "{name}: {waited:?}");
        let seen = up.rpc.inspect(task::id(&task)).await;
        let attempts = seen["attempts"].as_array().expect("there are attempts").iter();
        let outcomes: Vec<_> = attempts.map(|attempt| attempt["outcome"].clone()).collect();
        assert_eq!(outcomes, ["OUTCOME_FAILED", "OUTCOME_FAILED", "OUTCOME_ENDED"], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_peer_opens_the_circuit() {
    let peer = Peer::answering(|_, _| Reply::html(503)).await.expect("a peer starts");
    let (up, billing) = mesh_with(&peer, |config| {
        config.coordinator.breaker_failures = 2;
    })
    .await;
    for _ in 0..2 {
        let task = billing.send("hello").await;
        let failure = failure(&task);
        assert_eq!(
            (&failure["reason"], &failure["retriesSpent"]),
            (&"UNAVAILABLE".into(), &2.into())
        );
    }
    let health = &up.rpc.mesh("Agents", json!({"name": "billing"})).await["agents"][0]["health"];
    assert_eq!(health["circuit"], "CIRCUIT_OPEN", "{health}");
    let refused =
        billing.call("SendMessage", message("hello")).await.expect_err("the circuit is open");
    assert_eq!(refused["data"][0]["reason"], "CIRCUIT_OPEN", "{refused}");
    assert_eq!(peer.calls().len(), 6, "the peer is not called any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_agent_serves_for_a_failing_peer() {
    let failing = Peer::answering(|_, _| Reply::html(503)).await.expect("a peer starts");
    let working = Peer::answering(|_, _| completed()).await.expect("a peer starts");
    let stand_in = Remote { card: working.url(), ..Remote::default() };
    let (up, billing) = mesh_with(&failing, |config| {
        config.remote.insert("second".to_owned(), stand_in);
        let policy = config.coordinator.agents.entry("billing".to_owned()).or_default();
        policy.failover = vec!["second".to_owned()];
    })
    .await;
    let task = billing.send("hello").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert_eq!(
        (failing.calls().len(), working.calls().len()),
        (3, 1),
        "retries come before failover"
    );
    let seen = up.rpc.inspect(task::id(&task)).await;
    assert_eq!(seen["attempts"][3]["agent"], "second", "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn task_in_an_unknown_state_is_an_invalid_agent_response() {
    let unknown = |_: &_, _| reply_with_task("t-1", "TASK_STATE_UNSPECIFIED", &json!({}));
    let peer = Peer::answering(unknown).await.expect("a peer starts");
    let (_up, billing) = mesh_with(&peer, |_| {}).await;
    let task = billing.send("hello").await;
    let failure = failure(&task);
    assert_eq!(failure["reason"], "INVALID_AGENT_RESPONSE", "{failure}");
    assert_eq!(failure["origin"]["agent"], "billing", "{failure}");
}
