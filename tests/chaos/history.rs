//! Checks the records of the clients of `kills` against the store: every acknowledged task has
//! ended once, with the expected output, and streams have no gap and no duplicate.

use std::time::Duration;

use faultline_tests::{
    Frame, Rpc,
    task::{self, CANCELED, COMPLETED, Fold, INPUT_REQUIRED, is_final},
    until,
};
use serde_json::json;

use crate::clients::{Kind, Record};

/// Time limit for all tasks to end.
const SETTLE: Duration = Duration::from_secs(60);

/// Counts that are printed, and that show whether faults had an effect.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) tasks: usize,
    pub(crate) lost_attempts: usize,
    pub(crate) resumed_streams: usize,
    pub(crate) events: usize,
    pub(crate) canceled: usize,
}

pub(crate) async fn check(rpc: &Rpc, records: &[Record]) -> Summary {
    settle(rpc).await;
    let mut summary = Summary::default();
    for record in records {
        check_record(rpc, record, &mut summary).await;
    }
    summary
}

/// Waits until no task is running, known to a client or not. A task may wait for an answer forever
/// if its client never received its id.
async fn settle(rpc: &Rpc) {
    for state in ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"] {
        until(&format!("no task is in {state}"), SETTLE, async || {
            let listed = rpc.call("ListTasks", json!({"status": state})).await;
            let listed = listed.expect("tasks can be listed");
            (listed["totalSize"].as_u64().unwrap_or(0) == 0).then_some(())
        })
        .await;
    }
}

async fn check_record(rpc: &Rpc, record: &Record, summary: &mut Summary) {
    let stored = rpc.task(&record.task_id).await;
    let state = task::state(&stored);
    assert!(is_final(state), "{state} is not final: {record:?}");
    for seen in &record.finals {
        assert_eq!(seen, state, "a task has two ends: {record:?}");
    }
    match state {
        COMPLETED => {
            let texts = task::artifacts(&stored);
            let text = texts.get("output").map(String::as_str);
            assert_eq!(text, Some(record.expected.as_str()), "{record:?}");
            assert_eq!(texts.len(), 1, "{record:?}");
        }
        CANCELED => assert_eq!(record.kind, Kind::Canceling, "{record:?}"),
        _ => panic!("unexpected {state}: {stored} {record:?}"),
    }
    if !record.frames.is_empty() {
        check_frames(rpc, record, &stored).await;
    }
    let inspected = rpc.inspect(&record.task_id).await;
    let attempts = inspected["attempts"].as_array().expect("it ran");
    let outcomes: Vec<_> = attempts.iter().map(|a| a["outcome"].as_str()).collect();
    let lost = outcomes.iter().filter(|o| **o == Some("OUTCOME_WORKER_LOST")).count();
    let numbers: Vec<_> = attempts.iter().map(|a| a["number"].as_u64()).collect();
    let counted: Vec<_> = (1..=attempts.len() as u64).map(Some).collect();
    assert_eq!(numbers, counted, "attempts are not numbered from 1: {inspected}");
    assert!(
        !outcomes.contains(&Some("OUTCOME_RUNNING")),
        "an attempt outlives its task: {inspected}"
    );
    if state == COMPLETED {
        assert_eq!(outcomes.last(), Some(&Some("OUTCOME_ENDED")), "{inspected}");
    }
    summary.tasks += 1;
    summary.lost_attempts += lost;
    summary.resumed_streams += usize::from(record.resumed > 0);
    summary.events += record.frames.len();
    summary.canceled += usize::from(state == CANCELED);
}

/// Over all its connections a subscriber has received every event once and in order, and the fold
/// of the events is the stored task.
async fn check_frames(rpc: &Rpc, record: &Record, stored: &serde_json::Value) {
    let ids: Vec<u64> = record.frames.iter().map(|f| f.id.expect("a task's event")).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "out of order or doubled: {ids:?} of {record:?}");
    assert!(record.frames[0].body.get("task").is_some(), "the task comes first: {record:?}");
    let replayed = replay(rpc, &record.task_id, ids[0]).await;
    assert_eq!(record.frames[1..], replayed, "seen and stored events differ: {record:?}");
    let fold = Fold::of(&record.frames);
    assert_eq!(fold.artifacts, task::artifacts(stored), "{record:?}");
    assert_eq!(fold.finals(), [task::state(stored)], "{record:?}");
    assert!(!fold.states.contains(&INPUT_REQUIRED.to_owned()), "{record:?}");
}

async fn replay(rpc: &Rpc, task_id: &str, after: u64) -> Vec<Frame> {
    let rpc = rpc.header("last-event-id", after);
    let frames = rpc.stream("SubscribeToTask", json!({"id": task_id})).await;
    frames.expect("an ended task can be read again").all().await
}
