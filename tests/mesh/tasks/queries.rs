//! GetTask, ListTasks with filters and pages, and CancelTask.

use std::collections::HashSet;

use faultline_tests::{
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED},
    until,
    wait::SOON,
};
use serde_json::{Value, json};

use crate::{Running, start};

async fn list(up: &Running, params: Value) -> Value {
    up.rpc.call("ListTasks", params).await.expect("tasks can be listed")
}

fn ids(listed: &Value) -> Vec<String> {
    let tasks = listed["tasks"].as_array().into_iter().flatten();
    tasks.map(|task| task::id(task).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn task_is_visible_at_the_root_and_at_its_agent_only() {
    let up = start().await;
    let task = up.script.send("chunk a").await;
    let id = task::id(&task);
    assert_eq!(up.rpc.task(id).await, task);
    assert_eq!(up.script.task(id).await, task);
    for (rpc, params) in [
        (up.rpc.agent("echo"), json!({"id": id})),
        (up.rpc.clone(), json!({"id": id, "tenant": "echo"})),
    ] {
        for method in ["GetTask", "CancelTask"] {
            let hidden = rpc.call(method, params.clone()).await.unwrap_err();
            assert_eq!(hidden["code"], -32001, "{hidden}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_is_filtered_by_each_parameter() {
    let up = start().await;
    let echoed = up.rpc.send("x").await;
    let done = up.script.send("chunk a").await;
    let failed = up.script.send("fail INTERNAL").await;
    let waiting = up.script.send("ask \"well?\"").await;
    let id = |task: &Value| task::id(task).to_owned();
    let every = [&waiting, &failed, &done, &echoed].map(id);
    let listed = list(&up, json!({})).await;
    let newest_first = ids(&listed);
    assert_eq!(newest_first, every, "the latest change comes first");
    assert_eq!(listed["totalSize"], 4, "{listed}");
    assert_eq!(listed["tasks"][3].get("artifacts"), None, "artifacts are omitted by default");
    for (params, expected) in [
        (json!({"tenant": "script"}), vec![id(&waiting), id(&failed), id(&done)]),
        (json!({"tenant": "echo"}), vec![id(&echoed)]),
        (json!({"status": FAILED}), vec![id(&failed)]),
        (json!({"status": COMPLETED, "tenant": "script"}), vec![id(&done)]),
        (json!({"status": INPUT_REQUIRED}), vec![id(&waiting)]),
        (json!({"contextId": done["contextId"]}), vec![id(&done)]),
        (json!({"contextId": "unknown"}), vec![]),
        (
            json!({"statusTimestampAfter": failed["status"]["timestamp"]}),
            vec![id(&waiting), id(&failed)],
        ),
        (json!({"statusTimestampAfter": "2199-01-01T00:00:00Z"}), vec![]),
    ] {
        let listed = list(&up, params.clone()).await;
        assert_eq!(ids(&listed), expected, "{params}");
        let total = listed["totalSize"].as_u64().unwrap_or(0);
        assert_eq!(total, expected.len() as u64, "{params}");
    }
    let with = list(&up, json!({"status": COMPLETED, "includeArtifacts": true})).await;
    assert_eq!(task::artifacts(&with["tasks"][0])["output"], "a");
    let without = list(&up, json!({"historyLength": 0})).await;
    assert!(without["tasks"][0].get("history").is_none(), "{without}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_list_each_task_once_while_tasks_are_added() {
    let up = start().await;
    let mut made = HashSet::new();
    for n in 0..23 {
        made.insert(task::id(&up.rpc.send(&n.to_string()).await).to_owned());
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let page = list(&up, json!({"pageSize": 5, "pageToken": token})).await;
        assert_eq!(page["pageSize"], 5);
        seen.extend(ids(&page));
        token = page["nextPageToken"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
        // Newer than all remaining pages.
        up.rpc.send("one more").await;
    }
    assert_eq!(seen.len(), 23);
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), made);
    for bad in ["x", "1.2", "zz.0197a000-0000-7000-8000-000000000000"] {
        let refused = up.rpc.call("ListTasks", json!({"pageToken": bad})).await.unwrap_err();
        assert_eq!(refused["code"], -32602, "{bad}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn working_task_is_cancelled_once() {
    let up = start().await;
    let task = up.script.send_immediately("chunk a; sleep 60s; chunk b").await;
    let id = task::id(&task);
    let stream = up.rpc.stream("SubscribeToTask", json!({"id": id})).await.unwrap();
    let canceled = up.rpc.call("CancelTask", json!({"id": id})).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    let failure = &canceled["metadata"]["faultline.dev/failure"];
    assert_eq!((&failure["reason"], &failure["taskId"]), (&json!("CANCELLED"), &json!(id)));
    let frames = stream.all().await;
    let last = &frames[frames.len() - 1].body["statusUpdate"];
    assert_eq!(task::state(last), CANCELED, "subscribers see the cancel");
    let again = up.rpc.call("CancelTask", json!({"id": id})).await.unwrap_err();
    assert_eq!(again["code"], -32002, "{again}");
    assert_eq!(again["data"][0]["reason"], "TASK_NOT_CANCELABLE", "{again}");
    assert_eq!(task::state(&up.rpc.task(id).await), CANCELED);
    until("the agent has stopped and its slot is free", SOON, async || {
        let workers = up.rpc.mesh("Workers", json!({})).await;
        (workers["workers"][0]["used"].as_u64().unwrap_or(0) == 0).then_some(())
    })
    .await;
    let late = up.rpc.inspect(id).await["lateReports"].as_u64().unwrap_or(0);
    assert_eq!(late, 0, "a stopped agent sends no late report");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_task_is_cancelled() {
    let up = start().await;
    let task = up.script.send("chunk a; ask \"well?\"").await;
    let id = task::id(&task);
    assert_eq!(task::state(&task), INPUT_REQUIRED);
    let canceled = up.script.call("CancelTask", json!({"id": id})).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    assert_eq!(task::artifacts(&canceled)["output"], "a", "written output stays");
    let late = up.script.call("SendMessage", faultline_tests::rpc::answer(id, "x")).await;
    assert_eq!(late.unwrap_err()["code"], -32004);
    let agents = up.rpc.mesh("Agents", json!({"name": "script"})).await;
    assert_eq!(agents["agents"][0]["waiting"].as_u64().unwrap_or(0), 0, "{agents}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_that_ignores_cancellation_loses_its_slot() {
    let up = crate::start_with(|config| config.worker.slots = 1).await;
    let task = up.script.send_immediately("say hanging; hang").await;
    let canceled = up.rpc.call("CancelTask", json!({"id": task::id(&task)})).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED, "the cancel does not wait for the agent");
    // The worker frees its only slot after the stop timeout.
    let next = up.script.send("chunk next").await;
    assert_eq!(task::state(&next), COMPLETED);
}
