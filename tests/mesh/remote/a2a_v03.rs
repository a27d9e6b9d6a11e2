//! Remote agents that speak only A2A 0.3, by JSON-RPC and HTTP+JSON: another mesh with its
//! endpoints for 0.3, and scripted peers that break the protocol.

use faultline::{
    remote::Remote,
    testing::{Peer, Reply, Request},
};
use faultline_tests::{
    Rpc,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, FAILED, Fold, INPUT_REQUIRED, REJECTED},
    until,
    wait::SOON,
};
use serde_json::{Value, json};

use crate::{Running, start_with};

const TRANSPORTS: [&str; 2] = ["JSONRPC", "HTTP+JSON"];

/// Path of the card that a scripted peer serves.
const CARD: &str = "/old.json";

fn card(url: &str, transport: &str) -> Value {
    json!({"name": "old", "description": "Speaks 0.3", "version": "1", "protocolVersion": "0.3.0",
        "url": url, "preferredTransport": transport, "capabilities": {"streaming": true},
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"], "skills": []})
}

fn remote(peer: &Peer, allow_origins: Vec<String>) -> Remote {
    Remote { card: format!("{}{CARD}", peer.url()), allow_origins, ..Remote::default() }
}

/// A mesh that offers the agent of a card of 0.3 as `partner`.
async fn offering(peer: &Peer, allow_origins: Vec<String>) -> (Running, Rpc) {
    let remote = remote(peer, allow_origins);
    let here = start_with(|config| {
        config.coordinator.retry_base_ms = 20;
        config.remote.insert("partner".to_owned(), remote);
    })
    .await;
    let partner = here.rpc.agent("partner");
    (here, partner)
}

/// Two meshes, one of which offers the agent `script` of the other by a card of 0.3.
async fn two_meshes(transport: &str) -> (Running, Running, Rpc) {
    let there = start_with(|_| {}).await;
    let url = format!("{}/agents/script", there.mesh.url());
    let shown = card(&url, transport);
    let peer = Peer::answering(move |_, _| Reply::json(200, shown.clone())).await;
    let peer = peer.expect("a port is free");
    let (here, partner) = offering(&peer, vec![there.mesh.url()]).await;
    (there, here, partner)
}

/// A peer with a card of 0.3 that answers all other requests by the script, and a mesh that uses
/// that peer.
async fn scripted(
    transport: &'static str,
    mut script: impl FnMut(&Request, usize) -> Reply + Send + 'static,
) -> (Peer, Running, Rpc) {
    let peer = Peer::answering(move |request, count| match &*request.path {
        CARD => {
            let host = request.header("host").unwrap_or_default();
            Reply::json(200, card(&format!("http://{host}"), transport))
        }
        _ => script(request, count),
    });
    let peer = peer.await.expect("a port is free");
    let (here, partner) = offering(&peer, Vec::new()).await;
    (peer, here, partner)
}

async fn tasks(rpc: &Rpc) -> Vec<Value> {
    let list = rpc.call("ListTasks", json!({"pageSize": 100})).await.expect("tasks are listed");
    list["tasks"].as_array().expect("tasks are a list").clone()
}

fn calls(peer: &Peer) -> Vec<Request> {
    peer.calls().into_iter().filter(|call| call.path != CARD).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_an_agent_of_0_3_arrives_in_chunks() {
    for transport in TRANSPORTS {
        let (there, _here, partner) = two_meshes(transport).await;
        let script = "say one; chunk \"a \"; sleep 50ms; chunk \"b \"; artifact extra whole; \
                      sleep 50ms; chunk c; message done";
        let sent = partner.stream("SendStreamingMessage", message(script)).await.unwrap();
        let frames = sent.all().await;
        let fold = Fold::of(&frames);
        assert_eq!(fold.finals(), [COMPLETED], "{transport}: {frames:?}");
        assert_eq!(fold.artifacts["output"], "a b c", "{transport}");
        assert_eq!(fold.artifacts["extra"], "whole", "{transport}");
        let chunks = frames.iter().filter(|f| f.body.get("artifactUpdate").is_some()).count();
        assert!(chunks >= 3, "{transport}: chunks arrive one by one, {chunks}");
        let statuses: Vec<_> = frames.iter().map(|f| &f.body["statusUpdate"]["status"]).collect();
        assert!(statuses.iter().any(|s| task::text(&s["message"]) == "one"), "{statuses:?}");
        let stored = partner.task(task::id(&frames[0].body["task"])).await;
        assert_eq!(task::text(&stored["status"]["message"]), "done", "{stored}");
        assert_eq!(tasks(&there.rpc).await.len(), 1, "{transport}: sent once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_of_an_agent_of_0_3_are_answered() {
    for transport in TRANSPORTS {
        let (there, _here, partner) = two_meshes(transport).await;
        let script = "chunk \"hello \"; ask \"Your name?\"; chunk $answer; ask \"And?\"; \
                      chunk \" and $answer\"";
        let asked = partner.send(script).await;
        let id = task::id(&asked);
        assert_eq!(task::state(&asked), INPUT_REQUIRED, "{transport}: {asked}");
        assert_eq!(task::text(&asked["status"]["message"]), "Your name?");
        let again = partner.call("SendMessage", answer(id, "Ada")).await.expect("the task waits");
        assert_eq!(task::text(&again["task"]["status"]["message"]), "And?", "{again}");
        let done = partner.call("SendMessage", answer(id, "Bob")).await.expect("the task waits");
        assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
        assert_eq!(task::artifacts(&done["task"])["output"], "hello Ada and Bob");
        assert_eq!(tasks(&there.rpc).await.len(), 1, "{transport}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn next_worker_continues_the_same_task_of_0_3() {
    let there = start_with(|_| {}).await;
    let shown = card(&format!("{}/agents/script", there.mesh.url()), "JSONRPC");
    let peer = Peer::answering(move |_, _| Reply::json(200, shown.clone())).await.unwrap();
    let (mut here, partner) = offering(&peer, vec![there.mesh.url()]).await;
    let script = "chunk \"one \"; ask \"Well?\"; chunk $answer";
    let task = partner.send_immediately(script).await;
    until("the task asks", SOON, async || {
        let task = partner.task(task::id(&task)).await;
        (task::state(&task) == INPUT_REQUIRED).then_some(())
    })
    .await;
    here.mesh.detach().await.expect("the worker detaches");
    let remote = remote(&peer, vec![there.mesh.url()]);
    let remotes = [("partner".to_owned(), remote)].into();
    let offers = faultline::remote::offers(&remotes).await;
    let offer = offers.expect("the agent is offered").remove(0);
    let worker = faultline_worker::Config::default();
    let attached = here.mesh.attach(worker, |c| faultline_worker::Worker::new(c).offer(offer));
    attached.await.expect("another worker attaches");
    let done = partner.call("SendMessage", answer(task::id(&task), "two")).await.unwrap();
    assert_eq!(task::artifacts(&done["task"])["output"], "one two", "{done}");
    assert_eq!(tasks(&there.rpc).await.len(), 1, "sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_failure_and_rejection_cross_to_and_from_an_agent_of_0_3() {
    for transport in TRANSPORTS {
        let (there, _here, partner) = two_meshes(transport).await;
        let task = partner.send_immediately("chunk here; sleep 120s").await;
        until("the first chunk has arrived", SOON, async || {
            let task = partner.task(task::id(&task)).await;
            task::artifacts(&task).get("output").cloned()
        })
        .await;
        let canceled = partner.call("CancelTask", json!({"id": task["id"]})).await.unwrap();
        assert_eq!(task::state(&canceled), CANCELED, "{transport}");
        until("the remote task is canceled", SOON, async || {
            let theirs = tasks(&there.rpc).await;
            (task::state(&theirs[0]) == CANCELED).then_some(())
        })
        .await;
        let failed = partner.send("fail FAILED_PRECONDITION code=40401 text=\"closed\"").await;
        let failure = &failed["metadata"]["faultline.dev/failure"];
        assert_eq!(task::state(&failed), FAILED, "{transport}: {failed}");
        assert_eq!(
            (&failure["reason"], &failure["foreign"]),
            (&json!("FAILED_PRECONDITION"), &json!(true))
        );
        assert_eq!(failure["businessCode"], "40401", "{transport}: {failure}");
        assert_eq!(failure["origin"]["agent"], "partner", "{failure}");
        let rejected = partner.send("reject \"not my work\"").await;
        assert_eq!(task::state(&rejected), REJECTED, "{transport}: {rejected}");
        assert_eq!(task::text(&rejected["status"]["message"]), "not my work");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_of_0_3_is_polled_after_its_stream_breaks() {
    for transport in TRANSPORTS {
        let is_rpc = transport == "JSONRPC";
        let script = move |request: &Request, _: usize| {
            let part = |text: &str| {
                if is_rpc { json!({"kind": "text", "text": text}) } else { json!({"text": text}) }
            };
            let artifact = |parts: &[Value]| json!({"artifactId": "a", "parts": parts});
            let working = if is_rpc { "working" } else { "TASK_STATE_WORKING" };
            let done = if is_rpc { "completed" } else { "TASK_STATE_COMPLETED" };
            let method = request.method();
            let verb = &*request.verb;
            if method == "message/stream" || request.path == "/v1/message:stream" {
                let task = json!({"kind": "task", "id": "t", "contextId": "c",
                    "status": {"state": working}, "artifacts": [artifact(&[part("one ")])]});
                return if is_rpc {
                    Reply::stream([task]).without_end()
                } else {
                    let text = format!("data: {}\n\n", json!({ "task": task }));
                    Reply::bytes(200, "text/event-stream", text)
                };
            }
            assert!(method == "tasks/get" || (verb, &*request.path) == ("GET", "/v1/tasks/t"));
            let task = json!({"kind": "task", "id": "t", "contextId": "c",
                "status": {"state": done, "timestamp": "2026-11-18T10:00:00.5"},
                "artifacts": [artifact(&[part("one "), part("two")])]});
            if is_rpc { Reply::result(task) } else { Reply::json(200, task) }
        };
        let (peer, _here, partner) = scripted(transport, script).await;
        let task = partner.send("x").await;
        assert_eq!(task::state(&task), COMPLETED, "{transport}: {task}");
        assert_eq!(task::artifacts(&task)["a"], "one two", "{transport}");
        let sent = calls(&peer).remove(0);
        assert_eq!(sent.header("content-type"), Some("application/json"));
        assert_eq!(sent.header("a2a-version"), Some("0.3"));
        let body = sent.json();
        let (message, parts) = if is_rpc {
            (&body["params"]["message"], json!([{"kind": "text", "text": "x"}]))
        } else {
            (&body["message"], json!([{"text": "x"}]))
        };
        assert_eq!(message[if is_rpc { "parts" } else { "content" }], parts, "{body}");
        assert_eq!(message["role"], if is_rpc { "user" } else { "ROLE_USER" }, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_of_0_3_is_blamed_for_protocol_errors_and_lost_tasks() {
    let working = json!({"kind": "task", "id": "t", "contextId": "c",
        "status": {"state": "working"}});
    let odd = json!({"kind": "artifact-update", "taskId": "t", "contextId": "c",
        "artifact": {"artifactId": "film", "parts": [{"kind": "video", "video": "AAAA"}]}});
    let streams = move |request: &Request, _: usize| match &*request.method() {
        "message/stream" => Reply::stream([working.clone(), odd.clone()]).without_end(),
        _ => Reply::error(json!({"code": -32001, "message": "Task not found"})),
    };
    let forgets = |request: &Request, _: usize| match &*request.path {
        "/v1/message:stream" => {
            let task = json!({"id": "t", "status": {"state": "TASK_STATE_WORKING"}});
            let text = format!("data: {}\n\n", json!({ "task": task }));
            Reply::bytes(200, "text/event-stream", text)
        }
        // The error of the SDK of 0.3.
        _ => Reply::json(404, json!({"message": "Task not found"})),
    };
    let refuses = |_: &Request, _: usize| Reply::json(422, json!({"message": "no such room"}));
    let (odd, _a, a) = scripted("JSONRPC", streams).await;
    let (_lost, _b, b) = scripted("HTTP+JSON", forgets).await;
    let (_no, _c, c) = scripted("HTTP+JSON", refuses).await;
    for (partner, reason, text) in [
        (a, "INVALID_AGENT_RESPONSE", "result.artifact.parts[0].kind"),
        (b, "OUTCOME_UNKNOWN", "no longer knows the task"),
        (c, "INVALID_PARAMS", "no such room"),
    ] {
        let task = partner.send("x").await;
        let failure = &task["metadata"]["faultline.dev/failure"];
        assert_eq!(task::state(&task), FAILED, "{reason}: {task}");
        assert_eq!((&failure["reason"], &failure["foreign"]), (&json!(reason), &json!(true)));
        assert!(failure["publicMessage"].as_str().unwrap().contains(text), "{failure}");
    }
    // A task whose stream is invalid is cancelled at the peer.
    until("the peer gets a cancel", SOON, async || {
        calls(&odd).iter().any(|call| call.method() == "tasks/cancel").then_some(())
    })
    .await;
}
