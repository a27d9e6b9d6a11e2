//! Faults of agents: panics, unbounded output, unreadable scripts, and rejections.

use faultline::LocalMesh;
use faultline_tests::{
    Plan, Rpc, in_process,
    rpc::message,
    task::{self, COMPLETED, FAILED, REJECTED},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn panic_fails_its_task_and_not_the_worker() {
    let mut cluster = Plan::default().start().await;
    let rpc = cluster.rpc().agent("script");
    let before = cluster.workers[0].pid();
    for round in 0..3 {
        let task = rpc.send("chunk some; panic").await;
        assert_eq!(task::state(&task), FAILED);
        let failure = &task["metadata"]["faultline.dev/failure"];
        assert_eq!(failure["reason"], "AGENT_PANICKED", "{failure}");
        assert_eq!(failure["origin"]["agent"], "script", "{failure}");
        assert!(!task.to_string().contains("the script said panic"), "the text is private: {task}");
        assert_eq!(rpc.task(task::id(&task)).await, task);
        let inspected = rpc.inspect(task::id(&task)).await;
        let attempts = inspected["attempts"].as_array().map(Vec::len);
        assert_eq!(attempts, Some(1), "round {round}: a panic is not a lost worker: {inspected}");
    }
    assert_eq!(task::state(&rpc.send("chunk well").await), COMPLETED);
    assert!(cluster.workers[0].exit_within(std::time::Duration::ZERO).await.is_none());
    assert_eq!(cluster.workers[0].pid(), before);
}

/// Writes more than a task may hold: one oversized artifact, or too many artifacts.
struct Greedy;

impl Agent for Greedy {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let many = cx.text() == "many";
        for n in 0..2000 {
            if many {
                cx.artifact(format!("a{n}"), "x").await?
            } else {
                cx.append("large", "x".repeat(1024 * 1024)).await?
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unbounded_output_fails_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let offer = Offer::new("greedy", Greedy);
    mesh.attach(Config::default(), |config| Worker::new(config).offer(offer)).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr());
    for what in ["many", "large"] {
        let mut params = message(what);
        params["tenant"] = "greedy".into();
        params["configuration"] = json!({"returnImmediately": true});
        let sent = rpc.call("SendMessage", params).await.unwrap();
        let id = task::id(&sent["task"]).to_owned();
        let ended = until("the task has ended", SOON, async || {
            // Without artifacts, because a page with them would be too large.
            let listed = rpc.call("ListTasks", json!({"tenant": "greedy"})).await.unwrap();
            let tasks = listed["tasks"].as_array()?.iter();
            tasks
                .clone()
                .find(|t| t["id"] == id.as_str() && task::is_final(task::state(t)))
                .cloned()
        })
        .await;
        assert_eq!(task::state(&ended), FAILED, "{what}");
        let failure = &ended["metadata"]["faultline.dev/failure"];
        assert_eq!(failure["reason"], "TASK_TOO_LARGE", "{failure}");
        assert_eq!(failure["origin"]["agent"], "greedy", "{failure}");
    }
    let held = until("the slots of the worker are free", SOON, async || {
        let workers = rpc.mesh("Workers", json!({})).await;
        let used = workers["workers"].as_array()?.iter().map(|w| w["used"].as_u64().unwrap_or(0));
        (used.sum::<u64>() == 0).then_some(())
    });
    held.await;
    assert_eq!(task::state(&rpc.send("hello").await), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_script_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    for (script, line, part) in [
        ("say a\n\nslep 2s; say b", "line 3:", "slep 2s"),
        ("chunk a; sleep 2", "line 1:", "sleep 2"),
        ("say a\nfail NO_SUCH_REASON", "line 2:", "fail NO_SUCH_REASON"),
        ("say a\nsay b\nsay c\ndata {\"a\": }", "line 4:", "data"),
        ("chunk \"never closed", "line 1:", "never closed"),
    ] {
        let task = rpc.send(script).await;
        assert_eq!(task::state(&task), FAILED, "{script}");
        let failure = &task["metadata"]["faultline.dev/failure"];
        assert_eq!(failure["reason"], "INVALID_ARGUMENT", "{failure}");
        let text = failure["publicMessage"].as_str().unwrap();
        assert!(text.contains(line) && text.contains(part), "{text}");
        assert_eq!(failure["violations"][0]["field"], "message.parts[0].text", "{failure}");
        assert_eq!(task["metadata"]["error_param"], "message.parts[0].text");
        assert!(task.get("artifacts").is_none(), "no line of an unreadable script runs: {task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_has_a_reason_and_is_not_a_failed_task() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let (trace_id, header) = crate::trace();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script").header("traceparent", header);
    let task = rpc.send("say looking; reject not my kind of work").await;
    assert_eq!(task::state(&task), REJECTED);
    let message = &task["status"]["message"];
    assert_eq!(task::text(message), "not my kind of work");
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["reason"], "TASK_REJECTED", "{failure}");
    assert_eq!(failure["publicMessage"], "not my kind of work", "{failure}");
    assert_eq!(failure["traceId"], trace_id.as_str(), "{failure}");
    assert!(
        message["metadata"]["faultline.dev/failure"].is_null(),
        "the record occurs once: {task}"
    );
    for metadata in [&task["metadata"], &message["metadata"]] {
        assert_eq!(metadata["error_message"], "not my kind of work", "{metadata}");
        assert_eq!(metadata["task_state"], "rejected", "{metadata}");
    }
    assert_eq!(rpc.task(task::id(&task)).await, task);
    let inspected = rpc.inspect(task::id(&task)).await;
    assert_eq!(task::public(&inspected["failure"]), task["metadata"]["faultline.dev/failure"]);
}
