//! Failures of remote agents: error answers and broken connections become failures that name the
//! agent and every hop, and protocol errors are attributed to the remote agent.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use faultline::{
    LocalMesh,
    remote::Remote,
    testing::{Peer, Reply},
};
use faultline_proto::{Failure, a2a, json as proto_json};
use faultline_tests::{
    Rpc, in_process,
    task::{self, COMPLETED, FAILED},
};
use serde_json::{Value, json};

/// A mesh whose remote agents are these peers, by name.
async fn start_with(dir: &Path, peers: &[(&str, &Peer)]) -> (LocalMesh, Rpc) {
    let mut config = in_process(dir);
    config.coordinator.retry_base_ms = 20;
    for (name, peer) in peers {
        let remote = Remote { card: peer.url(), ..Remote::default() };
        config.remote.insert((*name).to_owned(), remote);
    }
    let mesh = LocalMesh::start(config).await.expect("a mesh starts");
    let rpc = Rpc::at(mesh.gateway_addr());
    (mesh, rpc)
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

/// Whether a client may retry, by the record of the task.
fn may_retry(task: &Value) -> bool {
    let task: a2a::Task = proto_json::from_str(&task.to_string()).expect("a task");
    let status = task.status.expect("a task has a status");
    Failure::of_task(&status, task.metadata.as_ref()).expect("a failure").may_retry()
}

/// A peer that answers every call with an error and HTTP 200.
async fn refusing() -> Peer {
    let error = json!({"code": -31009, "message": "the books are closed", "data": [
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "FAILED_PRECONDITION",
         "domain": "faultline.dev", "metadata": {"businessCode": "BOOKS_7"}}]});
    Peer::answering(move |_, _| Reply::error(error.clone())).await.expect("a port is free")
}

/// A peer that closes every connection.
async fn dropping() -> Peer {
    let dropped = || Reply::json(200, json!({})).drop_before_headers();
    Peer::answering(move |_, _| dropped()).await.expect("a port is free")
}

#[tokio::test(flavor = "multi_thread")]
async fn error_answer_and_lost_connection_are_wrapped_alike() {
    let books = refusing().await;
    let ships = dropping().await;
    let dir = tempfile::tempdir().unwrap();
    let (_mesh, rpc) = start_with(dir.path(), &[("books", &books), ("ships", &ships)]).await;
    for (agent, reason, retryable, text) in [
        ("books", "FAILED_PRECONDITION", false, "the books are closed"),
        ("ships", "AGENT_UNAVAILABLE", true, "'ships'"),
    ] {
        let script = format!("delegate script {{ delegate {agent} {{ please }} }}");
        let task = rpc.agent("script").send(&script).await;
        assert_eq!(task::state(&task), FAILED, "{task}");
        let failure = failure(&task);
        assert_eq!(failure["reason"], reason, "{failure}");
        assert_eq!(may_retry(&task), retryable, "as the record says: {failure}");
        assert_eq!(failure["origin"]["agent"], agent, "{failure}");
        let message = failure["publicMessage"].as_str().unwrap();
        assert!(message.contains(text) && message.starts_with(agent), "{failure}");
        assert!(message.ends_with("script)"), "the hops between are named: {failure}");
        let causes = failure["causes"].as_array().expect("there are causes");
        let names: Vec<_> = causes.iter().map(|c| c["agent"].as_str().unwrap()).collect();
        assert_eq!(names[..3], ["script", "script", agent], "{failure}");
        assert!(causes[1].get("publicMessage").is_none(), "the text occurs once: {failure}");
        let root = causes.last().expect("there is a root");
        assert!(root["publicMessage"].as_str().unwrap().contains(text), "{failure}");
        assert_eq!(
            rpc.inspect(task::id(&task)).await["failure"],
            *failure,
            "the stored failure is the same"
        );
    }
    let address = ships.url().replace("http://", "");
    let listed = rpc.call("ListTasks", json!({"pageSize": 100})).await.unwrap().to_string();
    assert!(listed.contains("BOOKS_7") && !listed.contains(&address), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_with_http_200_is_not_a_result() {
    let books = refusing().await;
    let dir = tempfile::tempdir().unwrap();
    let (_mesh, rpc) = start_with(dir.path(), &[("books", &books)]).await;
    let script = rpc.agent("script");
    let task = script.send("fanout 2 of script,books { sleep 20ms; chunk x }").await;
    assert_eq!(task::state(&task), FAILED, "{task}");
    assert_eq!(failure(&task)["reason"], "MIN_RESULTS_NOT_MET", "{task}");
    let aggregate = &failure(&task)["aggregate"];
    assert_eq!((&aggregate["required"], &aggregate["asked"]), (&json!(2), &json!(2)));
    assert!(aggregate["succeeded"].as_u64().unwrap_or(0) < 2, "{aggregate}");
    let branch = &aggregate["branches"][0];
    assert_eq!((&branch["agent"], &branch["code"]), (&json!("books"), &json!(9)), "{branch}");
    let task = script.send("fanout 1 of books,script { sleep 500ms; chunk x }").await;
    assert_eq!((task::state(&task), &*task::artifacts(&task)["output"]), (COMPLETED, "x"));
    let tolerated = &task["metadata"]["faultline.dev/tolerated"];
    assert_eq!(tolerated[0]["businessCode"], "BOOKS_7", "{task}");
    assert_eq!(task["metadata"]["faultline.dev/degraded"], true, "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_is_read_again_from_its_file() {
    let accepted = Arc::new(Mutex::new("first"));
    let accepting = Arc::clone(&accepted);
    let done = json!({"id": "t", "contextId": "c", "status": {"state": COMPLETED}});
    let peer = Peer::answering(move |request, _| {
        let token = format!("Bearer {}", accepting.lock().expect("the lock is not poisoned"));
        if request.header("authorization") == Some(&token) {
            Reply::stream([json!({"task": done.clone()})])
        } else {
            Reply::json(401, json!({}))
        }
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "first\n").unwrap();
    let mut config = in_process(dir.path());
    let card = peer.url();
    let token_file = Some(token.clone());
    let remote = Remote { card, token_file, ..Remote::default() };
    config.remote.insert("books".to_owned(), remote);
    let mesh = LocalMesh::start(config).await.unwrap();
    let books = Rpc::at(mesh.gateway_addr()).agent("books");
    assert_eq!(task::state(&books.send("x").await), COMPLETED);
    *accepted.lock().unwrap() = "second";
    std::fs::write(&token, "second\n").unwrap();
    let task = books.send("x").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    let attempts = books.inspect(task::id(&task)).await["attempts"].as_array().map(Vec::len);
    assert_eq!(attempts, Some(1), "the renewal costs no attempt");
    // A token that is not renewed is reported to the operator.
    *accepted.lock().unwrap() = "third";
    let task = books.send("x").await;
    let failure = failure(&task);
    assert_eq!((task::state(&task), &failure["retryable"]), (FAILED, &json!(false)), "{task}");
    assert!(failure["publicMessage"].as_str().unwrap().contains("`remote.books."), "{failure}");
    let seen = format!("{task} {}", books.inspect(task::id(&task)).await);
    assert!(!seen.contains("second") && !seen.contains("token\""), "no token leaks: {seen}");
}

/// Asserts that a task failed for this reason with the remote agent as origin.
fn assert_blamed(task: &Value, agent: &str, reason: &str) {
    assert_eq!(task::state(task), FAILED, "{task}");
    let failure = failure(task);
    assert_eq!((&failure["reason"], &failure["foreign"]), (&json!(reason), &json!(true)), "{task}");
    assert_eq!(failure["origin"], json!({"agent": agent, "service": "remote"}), "{failure}");
    let root = failure["causes"].as_array().and_then(|causes| causes.last()).expect("a root");
    assert_eq!(root["reason"], reason, "the root of the chain says the same: {failure}");
    assert!(root["agent"].as_str().is_some_and(|a| a.starts_with(&format!("{agent}:"))), "{root}");
    let advice = &task["metadata"]["faultline.dev/advice"];
    let text = advice["text"].as_str().unwrap_or_default();
    assert!(text.contains(&format!("remote agent '{agent}'")), "{advice}");
    assert!(!text.contains("check the task id"), "{advice}");
    match reason {
        // Only the caller can know whether a repetition does harm.
        "OUTCOME_UNKNOWN" => assert_eq!(advice["verdict"], "check", "{advice}"),
        _ => assert_eq!(
            (&advice["verdict"], &advice["actor"], &advice["agent"]),
            (&json!("report"), &json!("remote"), &json!(agent)),
            "{advice}"
        ),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_answer_of_a_remote_is_an_invalid_agent_response() {
    let unstated = json!({"task": {"id": "t", "status": {"state": "TASK_STATE_ODD"}}});
    let nameless = json!({"task": {"status": {"state": COMPLETED}}});
    for (what, reply) in [
        ("an empty result", Reply::result(json!({}))),
        ("an empty event", Reply::stream([json!({})])),
        ("a state that is unknown", Reply::stream([unstated])),
        ("a task without an id", Reply::stream([nameless])),
        ("no JSON", Reply::bytes(200, "application/json", "{\"result\":")),
        ("a page", Reply::html(200)),
        ("neither result nor error", Reply::json(200, json!({"jsonrpc": "2.0", "id": 1}))),
    ] {
        let peer = Peer::answering(move |_, _| reply.clone()).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (_mesh, rpc) = start_with(dir.path(), &[("books", &peer)]).await;
        let task = rpc.agent("books").send("x").await;
        assert_blamed(&task, "books", "INVALID_AGENT_RESPONSE");
        assert!(!may_retry(&task), "{what}");
        assert_eq!(peer.calls().len(), 1, "{what}: the peer is called once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_part_without_known_content_fails_the_task_and_is_named() {
    let text = json!({"text": "x"});
    let odd = json!({"video": "AAAA", "mediaType": "video/mp4"});
    let working = || json!({"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}});
    let message = json!({"messageId": "m", "role": "ROLE_AGENT", "parts": [odd]});
    let artifact = json!({"artifactId": "film", "parts": [text, odd]});
    let status = json!({"state": COMPLETED, "message": message});
    let update = json!({"taskId": "t", "contextId": "c", "artifact": artifact});
    let done = json!({"id": "t", "status": {"state": COMPLETED}, "artifacts": [artifact]});
    for (named, events) in [
        ("parts[0] of the message", vec![json!({"message": message})]),
        ("parts[1] of the artifact 'film'", vec![json!({"task": done})]),
        ("parts[1] of the artifact 'film'", vec![working(), json!({"artifactUpdate": update})]),
        (
            "parts[0] of the status.message",
            vec![working(), json!({"statusUpdate": {"taskId": "t", "status": status}})],
        ),
    ] {
        let peer = Peer::start([Reply::stream(events)]).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (_mesh, rpc) = start_with(dir.path(), &[("books", &peer)]).await;
        let task = rpc.agent("books").send("x").await;
        assert_blamed(&task, "books", "INVALID_AGENT_RESPONSE");
        let root = failure(&task)["causes"].as_array().and_then(|c| c.last()).unwrap();
        assert!(root["publicMessage"].as_str().unwrap().contains(named), "{named}: {root}");
        let made = task["artifacts"].to_string();
        assert!(!made.contains("{}"), "no empty part is stored: {made}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_that_forgot_its_task_is_blamed_and_not_the_caller() {
    let started = || {
        let task =
            json!({"id": "t-1", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}});
        Reply::stream([json!({"task": task})]).without_end()
    };
    let gone = || Reply::error(json!({"code": -32001, "message": "Task not found"}));
    let loses_task = move |request: &faultline::testing::Request, _: usize| match &*request.method()
    {
        "SendStreamingMessage" => started(),
        _ => gone(),
    };
    let peer = Peer::answering(loses_task).await.unwrap();
    let refuses = Peer::answering(move |_, _| gone()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (_mesh, rpc) = start_with(dir.path(), &[("books", &peer), ("lost", &refuses)]).await;
    let task = rpc.agent("books").send("x").await;
    assert_blamed(&task, "books", "OUTCOME_UNKNOWN");
    assert!(!may_retry(&task), "the work may have been done: {task}");
    let sends = peer.methods().iter().filter(|m| *m == "SendStreamingMessage").count();
    assert_eq!(sends, 1, "a new task is not started: {:?}", peer.methods());
    // The send names no task, so the answer breaks the protocol.
    let task = rpc.agent("lost").send("x").await;
    assert_blamed(&task, "lost", "INVALID_AGENT_RESPONSE");
}

#[tokio::test(flavor = "multi_thread")]
async fn timestamps_of_a_remote_without_a_zone_are_utc() {
    let status = json!({"state": COMPLETED, "timestamp": "2026-11-18T10:00:00.123456"});
    let done = json!({"task": {"id": "t", "contextId": "c", "status": status}});
    let peer = Peer::answering(move |_, _| Reply::stream([done.clone()])).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (_mesh, rpc) = start_with(dir.path(), &[("books", &peer)]).await;
    let task = rpc.agent("books").send("x").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
}
