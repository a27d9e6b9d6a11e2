//! SendMessage: routing to an agent, immediate returns, client timeouts and history length.

use faultline_tests::{
    Process, Rpc,
    rpc::message,
    task::{self, COMPLETED, WORKING, is_final},
    until,
    wait::SOON,
};
use serde_json::json;

use crate::start;

/// The request of the README, byte for byte.
const README: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"tenant":"echo","#,
    r#""message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"hello"}]}}}"#,
);

#[test]
fn readme_contains_the_tested_request() {
    assert!(include_str!("../../../README.md").contains(README));
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_request_is_answered_by_faultline_up() {
    let dir = tempfile::tempdir().unwrap();
    let up = ["up", "--listen", "127.0.0.1:0", "--hub", "127.0.0.1:0", "--data", "data"];
    let process = Process::start(dir.path(), "up", &up).await;
    let address =
        process.ready().strip_prefix("http://").expect("the ready line holds the address");
    let rpc = Rpc::at(address.parse().unwrap());
    let reply = rpc.post(README).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["id"]), (200, &json!(1)));
    let task = &reply.json()["result"]["task"];
    assert_eq!(task::state(task), COMPLETED);
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "hello", "{task}");
    assert_eq!(task["history"][0]["messageId"], "m1", "{task}");
    assert_eq!(&rpc.task(task::id(task)).await, task);
}

#[tokio::test(flavor = "multi_thread")]
async fn message_is_routed_by_path_tenant_or_default_agent() {
    let up = start().await;
    let by_tenant = |tenant: &str| {
        let mut params = message("chunk x");
        params["tenant"] = tenant.into();
        params
    };
    let output = |sent: &serde_json::Value| {
        task::artifacts(&sent["task"]).into_keys().collect::<Vec<_>>().join(",")
    };
    for (rpc, params, artifact) in [
        (up.rpc.clone(), message("x"), "echo"),
        (up.rpc.clone(), by_tenant("script"), "output"),
        (up.rpc.clone(), by_tenant("echo"), "echo"),
        (up.rpc.agent("script"), message("chunk x"), "output"),
        (up.rpc.path("/agents/script/"), message("chunk x"), "output"),
        (up.rpc.agent("script"), by_tenant("script"), "output"),
    ] {
        let sent = send(&rpc, params).await;
        assert_eq!(output(&sent), artifact, "{rpc:?}");
    }
    let mismatch = up.rpc.agent("echo").call("SendMessage", by_tenant("script")).await.unwrap_err();
    assert_eq!(mismatch["code"], -32602, "{mismatch}");
    assert!(mismatch["message"].as_str().unwrap().contains("tenant"), "{mismatch}");
    for unknown in [up.rpc.agent("nobody"), up.rpc.path("/agents/nobody/")] {
        for method in ["SendMessage", "SendStreamingMessage"] {
            let refused = unknown.call(method, message("x")).await.unwrap_err();
            assert_eq!(refused["code"], -31005, "{refused}");
            assert_eq!(refused["data"][0]["reason"], "AGENT_NOT_FOUND", "{refused}");
        }
    }
}

async fn send(rpc: &Rpc, params: serde_json::Value) -> serde_json::Value {
    rpc.call("SendMessage", params).await.expect("the send succeeds")
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_may_answer_with_a_message_without_a_task() {
    let up = start().await;
    let sent = send(&up.script, message("message \"just this\"")).await;
    assert!(sent.get("task").is_none(), "{sent}");
    assert_eq!(task::text(&sent["message"]), "just this");
    assert_eq!(sent["message"]["role"], "ROLE_AGENT");
    assert!(sent["message"].get("taskId").is_none(), "there is no task to name: {sent}");
    let stream = up.script.stream("SendStreamingMessage", message("message again")).await.unwrap();
    let frames = stream.all().await;
    assert_eq!(frames.len(), 1, "{frames:?}");
    assert_eq!(frames[0].id, None, "an event that is not stored has no number");
    assert_eq!(task::text(&frames[0].body["message"]), "again");
    let listed = up.rpc.call("ListTasks", json!({})).await.unwrap();
    assert_eq!(listed["totalSize"].as_u64().unwrap_or(0), 0, "{listed}");
    let task = up.script.send("say first; message \"then this\"").await;
    assert_eq!(task::state(&task), COMPLETED);
    assert_eq!(task::text(&task["status"]["message"]), "then this");
}

#[tokio::test(flavor = "multi_thread")]
async fn immediate_send_returns_the_running_task() {
    let up = start().await;
    let task = up.script.send_immediately("say on it; sleep 300ms; chunk done").await;
    assert!(!is_final(task::state(&task)), "{task}");
    let id = task::id(&task).to_owned();
    let ended = until("the task has ended", SOON, async || {
        let task = up.rpc.task(&id).await;
        is_final(task::state(&task)).then_some(task)
    });
    assert_eq!(task::artifacts(&ended.await)["output"], "done");
    let echoed = up.rpc.send_immediately("x").await;
    assert!(!task::id(&echoed).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn client_timeout_names_the_task_and_leaves_it_running() {
    let up = start().await;
    let impatient = up.script.header("prefer", "wait=1");
    let error = impatient.call("SendMessage", message("sleep 2s; chunk done")).await.unwrap_err();
    assert_eq!(error["code"], -31004, "{error}");
    let mut details = error["data"].as_array().unwrap().iter();
    let failure = details.find(|detail| detail["@type"].as_str().unwrap().ends_with("Failure"));
    let failure = failure.expect("the record is among the details");
    let id = failure["taskId"].as_str().expect("the failure names the task").to_owned();
    assert_eq!(task::state(&up.rpc.task(&id).await), WORKING);
    until("the task has ended", SOON, async || {
        let task = up.rpc.task(&id).await;
        (task::state(&task) == COMPLETED).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_length_limits_the_history() {
    let up = start().await;
    let mut params = message("ask \"first?\"; ask \"second?\"");
    params["configuration"] = json!({"historyLength": 1});
    let sent = send(&up.script, params).await;
    let id = task::id(&sent["task"]).to_owned();
    let count = |task: &serde_json::Value| task["history"].as_array().map_or(0, Vec::len);
    assert_eq!(count(&sent["task"]), 1, "{sent}");
    send(&up.script, faultline_tests::rpc::answer(&id, "one")).await;
    // The message, the first question, its answer, the second question.
    for (length, expected) in [(None, 4), (Some(0), 0), (Some(2), 2), (Some(99), 4)] {
        let mut params = json!({"id": id});
        if let Some(length) = length {
            params["historyLength"] = length.into();
        }
        let task = up.rpc.call("GetTask", params).await.unwrap();
        assert_eq!(count(&task), expected, "{task}");
    }
    let task = up.rpc.call("GetTask", json!({"id": id, "historyLength": 2})).await.unwrap();
    let texts: Vec<_> = task["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(texts, ["one", "second?"], "the latest are kept");
}
