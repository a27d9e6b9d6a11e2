//! Much at once, and readers who take their time.

use std::time::Duration;

use faultline_tests::{
    Rpc,
    rpc::message,
    task::{self, COMPLETED, Fold},
    until,
};
use serde_json::json;
use tokio::time::timeout;

use crate::{start, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_500_is_served_to_the_last() {
    // Fewer slots than tasks, so that most of them stand in line.
    let up = start_with(|config| config.worker.slots = 16).await;
    let sends = (0..500).map(|n| {
        let (rpc, script) = (up.rpc.clone(), up.script.clone());
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

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_sleeps_through_thousands_of_events_reads_each_once() {
    let up = start().await;
    // More than every buffer on the way may hold, in a script that is still small enough.
    let chunk = "x".repeat(900);
    let script: String = (0..4000).map(|n| format!("chunk \"{n:04} {chunk}\"\n")).collect();
    let script = format!("say begin; sleep 50ms\n{script}");
    let begun =
        up.script.with_small_buffer().stream("SendStreamingMessage", message(&script)).await;
    let mut sleepy = begun.unwrap();
    let first = sleepy.next().await.unwrap().expect("the task");
    let id = task::id(&first.body["task"]).to_owned();
    let awake = async {
        let rpc = up.rpc.header("last-event-id", first.id.unwrap());
        rpc.stream("SubscribeToTask", json!({"id": id})).await.unwrap().all().await
    };
    let others = async {
        for n in 0..50 {
            let sent = timeout(Duration::from_secs(10), up.rpc.send(&n.to_string())).await;
            assert_eq!(task::state(&sent.expect("others are not held up")), COMPLETED);
        }
    };
    let (awake, ()) = tokio::join!(awake, others);
    until("the task has ended while nobody read", Duration::from_secs(60), async || {
        let task = rpc_task_state(&up.rpc, &id).await;
        (task == COMPLETED).then_some(())
    })
    .await;
    let read = sleepy.all().await;
    let ids: Vec<_> = read.iter().map(|f| f.id.expect("every event has a number")).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "each once and in order");
    assert!(read.len() >= 4000, "{}", read.len());
    assert_eq!(read, awake, "both have read the same");
    let mut fold = Fold::default();
    fold.add(&first);
    read.iter().for_each(|frame| fold.add(frame));
    let stored = up.rpc.task(&id).await;
    assert_eq!(fold.artifacts, task::artifacts(&stored));
    assert_eq!(fold.artifacts["output"].len(), 4000 * (chunk.len() + 5));
}

async fn rpc_task_state(rpc: &Rpc, id: &str) -> String {
    let task = rpc.call("GetTask", json!({"id": id})).await.expect("the task is there");
    task::state(&task).to_owned()
}
