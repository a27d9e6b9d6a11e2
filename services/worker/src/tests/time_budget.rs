//! Time budget of a task, as its agent reads it.

use faultline_proto::{
    id::TaskId,
    v1::{self, report::Body, to_worker},
};

use super::{
    context::start,
    fake_coordinator::{Task, user_message},
};
use crate::sdk::content::text_parts;

#[tokio::test]
async fn remaining_time_is_updated_by_an_answer() {
    let (_harness, mut conn) = start(|cx| async move {
        let before = cx.remaining().unwrap_or_default();
        cx.ask("well?").await?;
        let after = cx.remaining().unwrap_or_default();
        cx.artifact("left", format!("{} {}", before.as_millis(), after.as_millis())).await
    })
    .await;
    let id = TaskId::new();
    let attempt = 1;
    let agent = "under-test".to_owned();
    let task = Task { id, attempt, agent, text: String::new() };
    let assign = v1::Assign { remaining_ms: Some(60_000), ..task.assign() };
    conn.send(to_worker::Body::Assign(assign)).await;
    assert!(matches!(conn.reports().await[0].body, Some(Body::Ask(_))));
    conn.send(to_worker::Body::Answer(v1::Answer {
        task_id: id.to_string(),
        attempt,
        key: "ask-1".into(),
        message: Some(user_message("yes")),
        remaining_ms: Some(90_000),
        ..v1::Answer::default()
    }))
    .await;
    let reports = conn.reports().await;
    let Some(Body::Artifact(chunk)) = &reports[0].body else { panic!("{reports:?}") };
    let text = text_parts(&chunk.artifact.as_ref().unwrap().parts).collect::<String>();
    let left: Vec<u64> = text.split(' ').map(|ms| ms.parse().unwrap()).collect();
    assert!((30_000..=60_000).contains(&left[0]), "{text}");
    assert!((60_001..=90_000).contains(&left[1]), "the coordinator is authoritative: {text}");
}
