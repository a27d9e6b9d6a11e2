//! Operator queries over a whole mesh: stable pages, a watch that reports missed changes, counts,
//! and the actions Cancel and Answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use faultline_chassis::client::Channel;
use faultline_proto::v1::{
    ActivityRequest, EventsRequest, FailuresRequest, OperatorCancelRequest, TaskFilter,
    TasksRequest, WatchRequest, mesh_client::MeshClient,
};
use faultline_tests::{
    Frames, Rpc,
    rpc::message,
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING},
    until,
    wait::SOON,
};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::{Running, start, start_with};

fn ids(tasks: &Value) -> Vec<String> {
    let all = tasks["tasks"].as_array().into_iter().flatten();
    all.map(|task| task["taskId"].as_str().expect("a summary has an id").to_owned()).collect()
}

/// An open watch and the last known state of each task in it.
struct Watched {
    frames: Frames,
    rpc: Rpc,
    filter: Value,
    states: BTreeMap<String, String>,
    missed: bool,
    messages: usize,
}

async fn watch(up: &Running, filter: Value) -> Watched {
    let frames = up.rpc.watch(json!({"filter": &filter})).await.expect("the watch opens");
    let mut watched = Watched {
        frames,
        rpc: up.rpc.clone(),
        filter,
        states: BTreeMap::new(),
        missed: false,
        messages: 0,
    };
    watched.next().await;
    assert!(watched.states.is_empty(), "the first message is empty");
    watched
}

impl Watched {
    async fn next(&mut self) {
        let frame = self
            .frames
            .next()
            .await
            .expect("the watch continues")
            .expect("the watch has no end")
            .body;
        self.messages += 1;
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        if frame["missed"] == true {
            // As the console does: the watch lost changes, so the list is read again.
            self.missed = true;
            let list = self.rpc.mesh("Tasks", json!({"filter": self.filter})).await;
            let tasks = list["tasks"].as_array().into_iter().flatten();
            self.states = tasks.map(|t| (text(&t["taskId"]), text(&t["state"]))).collect();
        }
        for task in frame["tasks"].as_array().into_iter().flatten() {
            self.states.insert(text(&task["taskId"]), text(&task["state"]));
        }
        for id in frame["gone"].as_array().into_iter().flatten() {
            self.states.remove(&text(id));
        }
    }

    async fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let arrives = async {
            while !is(self) {
                self.next().await;
            }
        };
        tokio::time::timeout(SOON, arrives).await.unwrap_or_else(|_| panic!("not in time: {what}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_filtered_by_each_field() {
    let up = start().await;
    let done = task::id(&up.rpc.send("hello").await).to_owned();
    let root = up.script.send("delegate script { fail INVALID_ARGUMENT code=X text=no }").await;
    let root = task::id(&root).to_owned();
    let asks = task::id(&up.script.send("ask well").await).to_owned();
    let list = async |filter: Value| up.rpc.mesh("Tasks", json!({"filter": filter})).await;
    let all = list(json!({})).await;
    assert_eq!(ids(&all).len(), 4, "{all}");
    let failed = list(json!({"states": [FAILED], "roots": true})).await;
    assert_eq!(ids(&failed), [root.as_str()]);
    let summary = &failed["tasks"][0];
    assert_eq!(
        (&summary["reason"], &summary["origin"]),
        (&json!("INVALID_ARGUMENT"), &json!("script"))
    );
    assert_eq!((&summary["agent"], &summary["principal"]), (&json!("script"), &json!("local")));
    let inspected = up.rpc.inspect(&root).await;
    assert_eq!(summary["failureId"], inspected["failure"]["id"], "{inspected}");
    assert_eq!(inspected["notRetried"], "NOT_RETRIED_BELOW", "{inspected}");
    let child = up.rpc.inspect(inspected["children"][0]["taskId"].as_str().unwrap()).await;
    assert_eq!(child["notRetried"], "NOT_RETRIED_REASON", "{child}");
    let same = list(json!({"reason": "INVALID_ARGUMENT", "origin": "script"})).await;
    assert_eq!(same["tasks"][1]["parentId"], root, "{same}");
    assert_eq!(ids(&list(json!({"agent": "echo"})).await), [done]);
    assert_eq!(ids(&list(json!({"states": [INPUT_REQUIRED, WORKING]})).await), [asks.as_str()]);
    assert_eq!(ids(&list(json!({"principal": "nobody"})).await).len(), 0);
    let later = list(json!({"from": all["tasks"][0]["changed"]})).await;
    assert_eq!(ids(&later), [asks.as_str()]);
    let story = up.rpc.mesh("Events", json!({"taskId": asks, "after": 2})).await;
    assert_eq!(story["events"][0]["event"]["asked"]["interrupt"]["prompt"], "well", "{story}");
    let counts = up.rpc.mesh("Failures", json!({})).await;
    let count = &counts["failures"][0];
    assert_eq!((&count["failures"], &count["tasks"]), (&json!(1), &json!(2)), "{counts}");
    let activity = up.rpc.mesh("Activity", json!({})).await;
    let sum = |agent: usize, what: &str| -> u64 {
        let counts = activity["agents"][agent][what].as_array().expect("numbers");
        counts.iter().map(|n| n.as_u64().expect("a number")).sum()
    };
    assert_eq!((sum(0, "submitted"), sum(0, "completed"), sum(0, "failed")), (1, 1, 0));
    assert_eq!((sum(1, "submitted"), sum(1, "completed"), sum(1, "failed")), (3, 0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_list_each_task_once_while_tasks_are_added() {
    let up = start().await;
    let sent = join_all((0..40).map(|_| up.rpc.send("hello"))).await;
    let expected: BTreeSet<_> = sent.iter().map(|sent| task::id(sent).to_owned()).collect();
    let coming = async {
        loop {
            up.rpc.send("more").await;
        }
    };
    let paging = async {
        let mut seen = Vec::new();
        let mut token = String::new();
        loop {
            let page = json!({"pageSize": 7, "pageToken": token});
            let page = up.rpc.mesh("Tasks", page).await;
            seen.extend(ids(&page));
            match page["nextPageToken"].as_str() {
                Some(next) => token = next.to_owned(),
                None => return seen,
            }
        }
    };
    let seen = tokio::select! {
        seen = paging => seen,
        () = coming => unreachable!("the sends have no end"),
    };
    let once: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "nothing twice");
    assert!(once.is_superset(&expected), "nothing is left out");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_under_load_reports_the_end_of_every_task() {
    let up = start().await;
    let mut watched = watch(&up, json!({"roots": true})).await;
    let started = std::time::Instant::now();
    let sent = join_all((0..200).map(|_| up.rpc.send("hello"))).await;
    let sent: BTreeSet<_> = sent.iter().map(|sent| task::id(sent).to_owned()).collect();
    watched
        .until("all have ended", |w| {
            w.missed || sent.iter().all(|id| w.states.get(id).is_some_and(|s| s == COMPLETED))
        })
        .await;
    assert!(!watched.missed, "200 tasks fit into the watch buffer");
    let most = 3 + started.elapsed().as_millis() / 250;
    assert!(watched.messages as u128 <= most, "{} of {most}", watched.messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_names_tasks_that_leave_its_filter() {
    let up = start().await;
    let mut asking = watch(&up, json!({"states": [INPUT_REQUIRED]})).await;
    let task = up.script.send("ask well").await;
    let id = task::id(&task).to_owned();
    asking.until("the task asks", |w| w.states.contains_key(&id)).await;
    up.rpc.mesh("Answer", json!({"taskId": id, "text": "yes"})).await;
    asking.until("the task continues", |w| !w.states.contains_key(&id)).await;
}

/// An unread watch causes no backpressure for other callers; its next message reports the gap.
#[tokio::test(flavor = "multi_thread")]
async fn unread_watch_delays_no_other_caller() {
    let up = start().await;
    let slow = up.rpc.with_small_buffer().watch(json!({})).await.expect("the watch opens");
    let mut quick = watch(&up, json!({})).await;
    let mut last = String::new();
    for _ in 0..5 {
        let sent = join_all((0..100).map(|_| up.rpc.send("hello"))).await;
        last = task::id(&sent[99]).to_owned();
    }
    quick
        .until("the fast watch has the last task", |w| w.missed || w.states.contains_key(&last))
        .await;
    drop(slow);
    assert_eq!(task::state(&up.rpc.send("hello").await), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_cancel_and_answer_tasks_of_callers() {
    let up = start().await;
    let running = up.script.send_immediately("delegate script { sleep 60s }").await;
    let id = task::id(&running);
    let child = until("the task has delegated", SOON, async || {
        let children = up.rpc.inspect(id).await["children"].take();
        children[0]["taskId"].as_str().map(str::to_owned)
    })
    .await;
    let stopped = up.rpc.mesh("Cancel", json!({"taskId": id, "reason": "too dear"})).await;
    assert_eq!(task::state(&stopped["task"]), CANCELED, "{stopped}");
    let seen = up.script.task(id).await;
    assert_eq!(task::text(&seen["status"]["message"]), "cancelled by an operator: too dear");
    until("the child is canceled too", SOON, async || {
        (task::state(&up.rpc.inspect(&child).await["task"]) == CANCELED).then_some(())
    })
    .await;
    let asks = up.script.send("ask well; artifact a $answer").await;
    let answered = up.rpc.mesh("Answer", json!({"taskId": task::id(&asks), "text": "fine"})).await;
    assert_eq!(answered["interrupts"], Value::Null, "{answered}");
    until("the task has ended", SOON, async || {
        let task = up.script.task(task::id(&asks)).await;
        (task::state(&task) == COMPLETED && task::artifacts(&task)["a"] == "fine").then_some(())
    })
    .await;
    let again =
        up.rpc.path("/mesh/Answer").post(json!({"taskId": task::id(&asks)}).to_string()).await;
    assert_eq!(again.status, 400);
    assert!(again.json()["error"]["message"].as_str().unwrap().contains("has ended"));
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_without_the_right_to_act_are_refused() {
    let up = start_with(|config| config.gateway.operators_act = false).await;
    let asks = up.script.send("ask well").await;
    for method in ["Cancel", "Answer"] {
        let body = json!({"taskId": task::id(&asks), "text": "x"});
        let body = if method == "Cancel" { json!({"taskId": task::id(&asks)}) } else { body };
        let reply = up.rpc.path(&format!("/mesh/{method}")).post(body.to_string()).await;
        assert_eq!(reply.status, 403, "{method}");
        assert_eq!(reply.json()["error"]["details"][0]["reason"], "PERMISSION_DENIED");
    }
    assert_eq!(task::state(&up.script.task(task::id(&asks)).await), INPUT_REQUIRED);
}

/// The token of the mesh grants the operator role at the port of the coordinator.
#[tokio::test(flavor = "multi_thread")]
async fn operator_api_is_served_over_grpc() {
    let up = start().await;
    let channel = Channel::lazy(&up.mesh.hub_dial()).unwrap();
    let mut mesh = MeshClient::new(channel);
    let filter = Some(TaskFilter { agent: "script".into(), ..TaskFilter::default() });
    let watch = WatchRequest { filter: filter.clone() };
    let mut changes = mesh.watch(watch).await.unwrap().into_inner();
    let first = changes.message().await.unwrap().unwrap();
    assert!(first.tasks.is_empty() && !first.missed);
    up.rpc.call("SendMessage", message("hello")).await.unwrap();
    let running = up.script.send_immediately("sleep 60s").await;
    let change = tokio::time::timeout(Duration::from_secs(10), changes.message()).await;
    assert_eq!(change.unwrap().unwrap().unwrap().tasks[0].task_id, task::id(&running));
    let tasks = mesh.tasks(TasksRequest { filter, ..TasksRequest::default() }).await.unwrap();
    let task_id = tasks.into_inner().tasks[0].task_id.clone();
    assert_eq!(task_id, task::id(&running));
    let cancel = OperatorCancelRequest { task_id: task_id.clone(), ..<_>::default() };
    assert!(mesh.cancel(cancel).await.unwrap().into_inner().failure.is_some());
    let events = EventsRequest { task_id, page_size: 1, ..EventsRequest::default() };
    assert!(mesh.events(events).await.unwrap().into_inner().more);
    assert!(mesh.activity(ActivityRequest::default()).await.is_ok());
    assert!(mesh.failures(FailuresRequest::default()).await.is_ok());
}
