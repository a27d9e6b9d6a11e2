//! Load: bursts of tasks, and backpressure from slow readers of a stream.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use faultline_tests::{
    Frame, Rpc,
    rpc::message,
    task::{self, COMPLETED, Fold},
    until,
    wait::SOON,
};
use serde_json::json;
use tokio::time::timeout;

use crate::{start, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn burst_of_500_tasks_completes() {
    // Fewer slots than tasks, so that most tasks wait in the queue.
    let up = start_with(|config| config.worker.slots = 16).await;
    let sends = (0..500).map(|n| {
        let rpc = up.rpc.clone();
        let script = up.script.clone();
        tokio::spawn(async move {
            let text = format!("task {n}");
            match n % 2 {
                0 => (task_text(&rpc.send(&text).await, "echo"), text),
                _ => {
                    let task = script.send(&format!("sleep 1ms; chunk \"{text}\"")).await;
                    (task_text(&task, "output"), text)
                }
            }
        })
    });
    for (answered, sent) in futures::future::try_join_all(sends).await.unwrap() {
        assert_eq!(answered, sent);
    }
    let listed = up.rpc.call("ListTasks", json!({"status": COMPLETED})).await.unwrap();
    assert_eq!(listed["totalSize"], 500, "{listed}");
}

fn task_text(task: &serde_json::Value, artifact: &str) -> String {
    assert_eq!(task::state(task), COMPLETED, "{task}");
    task::artifacts(task).remove(artifact).unwrap_or_default()
}

const EVENTS: u64 = 4000;

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_see_each_event_once_and_delay_no_other_caller() {
    let up = start().await;
    // Larger than every buffer on the path, in a script within the size limit.
    let chunk = "x".repeat(900);
    let script: String = (0..EVENTS).map(|n| format!("chunk \"{n:04} {chunk}\"\n")).collect();
    let script = format!("say begin; sleep 50ms\n{script}");
    let params = message(&script);
    let begun = up.script.with_small_buffer().stream("SendStreamingMessage", params).await;
    let mut stalled = begun.unwrap();
    let first = stalled.next().await.unwrap().expect("the task");
    let id = task::id(&first.body["task"]).to_owned();
    let subscribe = async |rpc: Rpc| {
        let rpc = rpc.header("last-event-id", first.id.expect("a number"));
        rpc.stream("SubscribeToTask", json!({"id": id})).await.unwrap()
    };
    // Number of the last event that the fast reader has seen.
    let seen = AtomicU64::new(0);
    let fast = async {
        let mut frames = subscribe(up.rpc.clone()).await;
        let mut read = Vec::new();
        while let Some(frame) = frames.next().await.unwrap() {
            seen.store(frame.id.expect("a number"), Relaxed);
            read.push(frame);
        }
        seen.store(u64::MAX, Relaxed);
        read
    };
    let lagging = async {
        let mut frames = subscribe(up.rpc.with_small_buffer()).await;
        let mut read = Vec::new();
        while let Some(frame) = frames.next().await.unwrap() {
            read.push(frame);
            // Alternates between a lag beyond the buffer and reading faster than events arrive.
            if read.len() % 400 == 0 {
                let far = read.len() as u64 + 800;
                until("the reader is far behind", SOON, async || {
                    (seen.load(Relaxed) >= far).then_some(())
                })
                .await;
            }
        }
        read
    };
    let others = async {
        for n in 0..50 {
            let sent = timeout(Duration::from_secs(10), up.rpc.send(&n.to_string())).await;
            assert_eq!(task::state(&sent.expect("other calls are not delayed")), COMPLETED);
        }
    };
    let (fast, lagging, ()) = tokio::join!(fast, lagging, others);
    // The stalled reader continues after the end of the task.
    let mut rest = Vec::new();
    while let Some(frame) = stalled.next().await.unwrap() {
        rest.push(frame);
    }
    let ids: Vec<_> = fast.iter().map(|f| f.id.expect("every event has a number")).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "each once and in order");
    assert!(ids.len() as u64 > EVENTS, "{}", ids.len());
    assert_same(&fast, &lagging, "lagging");
    assert_same(&fast, &rest, "stalled");
    let fold = Fold::of(std::iter::once(&first).chain(&rest));
    let stored = up.rpc.task(&id).await;
    assert_eq!(fold.artifacts, task::artifacts(&stored));
    assert_eq!(fold.artifacts["output"].len() as u64, EVENTS * (chunk.len() as u64 + 5));
}

/// Compares without printing thousands of events.
fn assert_same(all: &[Frame], read: &[Frame], name: &str) {
    let differs = all.iter().zip(read).position(|(a, b)| a != b);
    assert_eq!((all.len(), None), (read.len(), differs), "the {name} reader has read the same");
}
