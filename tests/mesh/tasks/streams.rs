//! Streams of a task: order of events, resumption by Last-Event-ID, snapshots and refusals.

use faultline_tests::{
    Frame, Rpc,
    rpc::message,
    task::{self, COMPLETED, Fold, is_final},
};
use serde_json::json;

use crate::start;

async fn stream(rpc: &Rpc, script: &str) -> Vec<Frame> {
    let frames = rpc.stream("SendStreamingMessage", message(script)).await;
    frames.expect("a stream begins").all().await
}

async fn resume(rpc: &Rpc, id: &str, after: u64) -> Vec<Frame> {
    let rpc = rpc.header("last-event-id", after);
    let frames = rpc.stream("SubscribeToTask", json!({"id": id})).await;
    frames.expect("the stream resumes").all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_begins_with_the_task_and_ends_with_its_final_status() {
    let up = start().await;
    let script = "say a; chunk 1; sleep 10ms; chunk 2; artifact note text; data {\"x\":1}; say b";
    let frames = stream(&up.script, script).await;
    let first = &frames[0];
    let last = &frames[frames.len() - 1];
    assert_eq!(first.id, Some(1));
    let id = task::id(&first.body["task"]);
    assert_eq!(task::state(&last.body["statusUpdate"]), COMPLETED);
    let ids: Vec<_> = frames.iter().map(|f| f.id.expect("every event has a number")).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for frame in &frames[1..] {
        let update = ["statusUpdate", "artifactUpdate"].iter().find_map(|k| frame.body.get(*k));
        let update = update.unwrap_or_else(|| panic!("not an update: {frame:?}"));
        assert_eq!(update["taskId"], id);
        assert_eq!(update["contextId"], first.body["task"]["contextId"]);
    }
    let texts = frames.iter().map(|f| task::text(&f.body["statusUpdate"]["status"]["message"]));
    let texts: Vec<_> = texts.filter(|s| !s.is_empty()).collect();
    assert_eq!(texts, ["a", "b"]);
    let fold = Fold::of(&frames);
    let stored = up.rpc.task(id).await;
    assert_eq!(fold.artifacts, task::artifacts(&stored));
    assert_eq!((fold.artifacts["output"].as_str(), fold.finals()), ("12", vec![COMPLETED]));
    assert_eq!(stored["artifacts"][2]["parts"][0]["data"], json!({"x": 1}), "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_an_ended_task_resumes_after_any_event() {
    let up = start().await;
    let frames = stream(&up.script, "chunk a; sleep 5ms; chunk b; say c; chunk d").await;
    let id = task::id(&frames[0].body["task"]);
    for (at, frame) in frames.iter().enumerate() {
        let number = frame.id.expect("every event has a number");
        assert_eq!(resume(&up.rpc, id, number).await, frames[at + 1..], "after {number}");
    }
    assert_eq!(resume(&up.rpc, id, 0).await, frames[1..], "from the beginning");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_a_running_task_resumes_after_any_event() {
    let up = start().await;
    let script = "chunk a; sleep 100ms; chunk b; sleep 100ms; chunk c; sleep 100ms; chunk d";
    let mut whole = up.script.stream("SendStreamingMessage", message(script)).await.unwrap();
    let first = whole.next().await.unwrap().expect("the task");
    let id = task::id(&first.body["task"]).to_owned();
    let number = first.id.expect("a number");
    let (whole, again, later) =
        tokio::join!(whole.all(), resume(&up.rpc, &id, number), resume(&up.rpc, &id, number),);
    assert_eq!(whole, again);
    assert_eq!(whole, later);
    assert_eq!(Fold::of(&whole).artifacts["output"], "abcd");
}

#[tokio::test(flavor = "multi_thread")]
async fn reconnecting_readers_see_each_event_once_under_load() {
    let up = start().await;
    let script: String = (0..1500).map(|n| format!("chunk \"{n} \"; sleep 1ms\n")).collect();
    let task = up.script.send_immediately(&script).await;
    let id = task::id(&task);
    let readers = (0..16).map(|reader| {
        let rpc = up.rpc.clone();
        let id = id.to_owned();
        tokio::spawn(async move {
            let mut seen: Vec<Frame> = Vec::new();
            let mut last: u64 = 0;
            while !seen.last().is_some_and(is_last) {
                let rpc = rpc.header("last-event-id", last);
                let mut frames = rpc.stream("SubscribeToTask", json!({"id": id})).await.unwrap();
                for _ in 0..10 + reader * 3 {
                    let Some(frame) = frames.next().await.unwrap() else { break };
                    last = frame.id.expect("every event has a number");
                    seen.push(frame);
                }
            }
            seen
        })
    });
    let readers = futures::future::try_join_all(readers).await.unwrap();
    let stored = resume(&up.rpc, id, 0).await;
    for seen in readers {
        let ids = |frames: &[Frame]| frames.iter().map(|f| f.id).collect::<Vec<_>>();
        assert_eq!(ids(&seen), ids(&stored));
        assert_eq!(seen, stored);
    }
}

fn is_last(frame: &Frame) -> bool {
    frame.body["statusUpdate"]["status"]["state"].as_str().is_some_and(is_final)
}

#[tokio::test(flavor = "multi_thread")]
async fn subscription_begins_with_a_snapshot_of_the_task() {
    let up = start().await;
    let task = up.script.send_immediately("chunk a; say here; sleep 400ms; chunk b").await;
    let id = task::id(&task).to_owned();
    let frames = up.rpc.stream("SubscribeToTask", json!({"id": id})).await.unwrap().all().await;
    let snapshot = &frames[0].body["task"];
    assert_eq!(task::id(snapshot), id);
    assert!(!is_final(task::state(snapshot)), "{snapshot}");
    let fold = Fold::of(&frames);
    assert_eq!((fold.artifacts["output"].as_str(), fold.finals()), ("ab", vec![COMPLETED]));
    // The number of the snapshot is that of its last event: resumption yields exactly the rest.
    let number = frames[0].id.expect("a snapshot has a number");
    assert_eq!(resume(&up.rpc, &id, number).await, frames[1..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_subscriptions_are_refused_with_the_remedy() {
    let up = start().await;
    let task = up.script.send("chunk a").await;
    let id = task::id(&task);
    let subscribe = async |rpc: &Rpc| {
        rpc.stream("SubscribeToTask", json!({"id": id}))
            .await
            .err()
            .expect("the subscription is refused")
    };
    let ended = subscribe(&up.rpc).await;
    assert_eq!(ended["code"], -32004, "{ended}");
    for bad in ["99", "-1", "x", ""] {
        let refused = subscribe(&up.rpc.header("last-event-id", bad)).await;
        assert_eq!(refused["code"], -32602, "{bad}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains("Last-Event-ID"), "{refused}");
    }
    let other_agent = up.rpc.agent("echo").header("last-event-id", 1);
    assert_eq!(subscribe(&other_agent).await["code"], -32001, "the task belongs to another agent");
    for method in ["SendMessage", "SendStreamingMessage"] {
        let resumed_send = up.script.header("last-event-id", 1);
        let refused = resumed_send.call(method, message("chunk a")).await.unwrap_err();
        assert_eq!(refused["code"], -32602, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("SubscribeToTask"), "{refused}");
    }
}
