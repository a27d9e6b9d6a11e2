//! Delegation to other agents: results, failures, questions, slots and retries.

use std::time::{Duration, Instant};

use faultline_proto::{
    Failure,
    a2a::{self, TaskState},
    json, reason,
    v1::{self, Interrupt, Origin, interrupt::Kind, report::Body, to_worker},
};
use prost_types::{Struct, Value, value};

use super::{
    context::{failed, start},
    fake_coordinator::{Connection, Harness, Task, soon},
};
use crate::{Content, Context, Error};

pub(super) const CHILD: &str = "0199a1b2-0000-7000-8000-000000000001";

pub(super) fn child(state: TaskState, message: Option<a2a::Message>) -> a2a::Task {
    let status = a2a::TaskStatus { state: state as i32, message, timestamp: None };
    a2a::Task {
        id: CHILD.into(),
        context_id: "context".into(),
        status: Some(status),
        ..a2a::Task::default()
    }
}

/// A completed task with an artifact in two pieces, as if it had been streamed.
pub(super) fn completed(text: &str) -> a2a::Task {
    let (start, end) = text.split_at(1);
    let parts = Content::from(start).and(end).0;
    let artifact = a2a::Artifact { artifact_id: "output".into(), parts, ..Default::default() };
    a2a::Task { artifacts: vec![artifact], ..child(TaskState::Completed, None) }
}

pub(super) fn asking(key: &str) -> a2a::Task {
    let question = Interrupt {
        key: key.into(),
        kind: Kind::Approval as i32,
        prompt: "Sure?".into(),
        agent: "deep".into(),
        ..Interrupt::default()
    };
    let kind = Some(value::Kind::StructValue(json::to_struct(&question)));
    let fields = [("faultline.dev/interrupt".to_owned(), Value { kind })].into();
    let message = a2a::Message { metadata: Some(Struct { fields }), ..Default::default() };
    child(TaskState::InputRequired, Some(message))
}

pub(super) fn record(failure: &Failure, state: TaskState) -> a2a::Task {
    a2a::Task { metadata: Some(failure.to_metadata(state)), ..child(state, None) }
}

async fn delegates(cx: Context) -> Result<(), Error> {
    let made = cx.delegate("other", "please").await?;
    cx.artifact("made", format!("{} {}", made.task_id(), made.text())).await
}

/// Starts the agent above, up to its call.
async fn delegating() -> (Harness, Connection, Task) {
    let (harness, mut conn) = start(delegates).await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await, "the slot is released first");
    (harness, conn, task)
}

/// Grants the slot and reads the reports up to the final one.
pub(super) async fn end(conn: &mut Connection, task: &Task) -> Vec<Body> {
    assert!(!conn.slot_update(task).await, "the slot is requested");
    conn.grant_slot(task).await;
    conn.until_final(task).await
}

#[tokio::test]
async fn delegation_sends_token_and_key_and_returns_the_result() {
    let (mut harness, mut conn, task) = delegating().await;
    let sent = harness.coordinator.sent().await;
    assert_eq!(sent.header("faultline-task"), Some("token-1"));
    assert_eq!(sent.header("faultline-key"), Some("delegate-1"));
    assert_eq!(sent.header("faultline-detached"), None);
    assert!(sent.header("traceparent").unwrap().starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736"));
    assert_eq!(sent.request.tenant, "other");
    assert_eq!(sent.message().parts, Content::from("please").0);
    assert_eq!((sent.message().role(), sent.message().task_id.as_str()), (a2a::Role::User, ""));
    sent.answer(Ok(completed("done")));
    let bodies = end(&mut conn, &task).await;
    let [Body::Artifact(made), Body::Completed(_)] = bodies.as_slice() else {
        panic!("{bodies:?}")
    };
    let expected = Content::from(format!("{CHILD} done")).0;
    assert_eq!(made.artifact.as_ref().unwrap().parts, expected);
}

#[tokio::test]
async fn agent_waits_for_its_slot_across_a_reconnect() {
    let (mut harness, mut conn, task) = delegating().await;
    harness.coordinator.sent().await.answer(Ok(completed("done")));
    assert!(!conn.slot_update(&task).await);
    // The next report belongs to the other task: this one waits.
    let other = conn.assign("echo", "x").await;
    assert_eq!(conn.reports().await[0].task_id, other.id.to_string());

    // After a reconnect the agent still waits and requests the slot again.
    drop(conn);
    let mut conn = harness.coordinator.attached().await;
    let held = conn.hello.held.iter().find(|held| held.task_id == task.id.to_string()).unwrap();
    assert!(held.waits);
    let resume = vec![task.ack(0), other.ack(2)];
    conn.welcome(v1::Welcome { heartbeat_ms: 500, resume, ..v1::Welcome::default() }).await;
    let bodies = end(&mut conn, &task).await;
    assert!(matches!(bodies.last(), Some(Body::Completed(_))), "{bodies:?}");
}

#[tokio::test]
async fn slot_is_requested_after_the_last_of_several_delegations() {
    let (mut harness, mut conn) = start(|cx| async move {
        let (a, b) = tokio::try_join!(
            cx.delegate("other", "a").key("a"),
            cx.delegate("other", "b").key("b").detached(),
        )?;
        cx.reply(format!("{}{}", a.text(), b.text())).await
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    let first = harness.coordinator.sent().await;
    let second = harness.coordinator.sent().await;
    let (a, b) = match first.header("faultline-key") {
        Some("a") => (first, second),
        _ => (second, first),
    };
    assert_eq!(
        (a.header("faultline-detached"), b.header("faultline-detached")),
        (None, Some("true"))
    );
    a.answer(Ok(completed("1")));
    b.answer(Ok(completed("2")));
    let bodies = end(&mut conn, &task).await;
    let Some(Body::Completed(done)) = bodies.last() else { panic!("{bodies:?}") };
    assert_eq!(done.message.as_ref().unwrap().parts, Content::from("12").0);
}

#[tokio::test]
async fn failure_of_the_child_is_wrapped_once() {
    let (mut harness, mut conn, task) = delegating().await;
    let origin = Origin { agent: "deep".into(), ..Origin::default() };
    let theirs = Failure::new(&reason::RATE_LIMITED)
        .with_business_code("40401")
        .with_task("t-2", "c")
        .with_trace("4bf9", "00f0")
        .born_at(origin)
        .wrap("other", CHILD, "context");
    harness.coordinator.sent().await.answer(Ok(record(&theirs, TaskState::Failed)));
    let bodies = end(&mut conn, &task).await;
    let failure = failed(bodies.last());
    assert_eq!((failure.id.as_str(), failure.trace_id.as_str()), (theirs.id.as_str(), "4bf9"));
    assert_eq!(
        (failure.reason.as_str(), failure.business_code.as_str()),
        ("RATE_LIMITED", "40401")
    );
    assert_eq!(failure.public_message, "deep: rate limited (via other)");
    assert_eq!((failure.hop, failure.task_id.as_str()), (2, task.id.to_string().as_str()));
    let hops: Vec<_> = failure.causes.iter().map(|c| (c.agent.as_str(), c.hop)).collect();
    assert_eq!(hops, [("under-test", 2), ("other", 1), ("deep", 0)]);
    let spans: Vec<_> = failure.causes.iter().map(|c| c.span_id.as_str()).collect();
    assert_eq!((spans[0].len(), spans[2]), (16, "00f0"), "each hop has its own: {spans:?}");
}

#[tokio::test]
async fn mesh_fault_in_a_delegation_call_originates_at_the_coordinator() {
    for (row, service) in [
        (&reason::OVERLOADED, "coordinator"),
        (&reason::INTERNAL, "coordinator"),
        (&reason::INVALID_PARAMS, "worker"),
    ] {
        let (mut harness, mut conn, task) = delegating().await;
        harness.coordinator.sent().await.answer(Err(Failure::new(row)));
        let bodies = end(&mut conn, &task).await;
        let failure = failed(bodies.last());
        let origin = failure.origin.as_ref().unwrap();
        assert_eq!(origin.service, service, "{}", row.name);
        assert_eq!(origin.agent.is_empty(), service == "coordinator", "{}", row.name);
        assert_eq!(failure.causes[0].agent, "under-test", "{}", row.name);
    }
}

#[tokio::test]
async fn rejection_and_cancellation_are_failures_of_the_child() {
    let text = |text: &str| Some(super::fake_coordinator::user_message(text));
    for (state, message, expected) in [
        (TaskState::Rejected, text("not today"), ("TASK_REJECTED", "not today")),
        (TaskState::Canceled, None, ("CANCELLED", "the task was canceled")),
        (TaskState::Failed, None, ("TASK_FAILED", "the task failed and did not say why")),
    ] {
        let (mut harness, mut conn, task) = delegating().await;
        harness.coordinator.sent().await.answer(Ok(child(state, message)));
        let bodies = end(&mut conn, &task).await;
        let failure = failed(bodies.last());
        assert_eq!(failure.origin.as_ref().unwrap().agent, "other");
        let root = failure.causes.last().unwrap();
        assert_eq!((root.reason.as_str(), root.public_message.as_str()), expected);
        assert_eq!((root.task_id.as_str(), failure.causes.len()), (CHILD, 2));
    }
}

#[tokio::test]
async fn rejected_delegation_call_is_a_failure_of_the_caller() {
    let (mut harness, mut conn, task) = delegating().await;
    let refused = Failure::new(&reason::DELEGATION_TOO_DEEP).because("17 is too deep");
    harness.coordinator.sent().await.answer(Err(refused));
    let bodies = end(&mut conn, &task).await;
    let failure = failed(bodies.last());
    assert_eq!((failure.reason.as_str(), failure.hop), ("DELEGATION_TOO_DEEP", 0));
    assert_eq!(failure.public_message, "17 is too deep");
    assert_eq!(failure.origin.as_ref().unwrap().agent, "under-test");
}

#[tokio::test]
async fn child_in_an_unknown_state_fails_the_delegation() {
    let (mut harness, mut conn, task) = delegating().await;
    harness.coordinator.sent().await.answer(Ok(child(TaskState::Unspecified, None)));
    let bodies = end(&mut conn, &task).await;
    let failure = failed(bodies.last());
    assert_eq!(failure.reason, "INVALID_AGENT_RESPONSE");
    assert!(failure.causes.last().unwrap().public_message.contains("'other'"), "{failure:?}");
}

#[tokio::test]
async fn rejected_call_with_a_delay_is_retried_once() {
    let (mut harness, mut conn, task) = delegating().await;
    let delay = Duration::from_millis(300);
    let full = || Failure::new(&reason::RATE_LIMITED).with_retry_after(delay);
    let refused = Instant::now();
    harness.coordinator.sent().await.answer(Err(full()));
    let again = harness.coordinator.sent().await;
    assert!(refused.elapsed() >= delay, "not before the delay is over");
    assert_eq!(again.header("faultline-key"), Some("delegate-1"));
    again.answer(Err(full()));
    let bodies = end(&mut conn, &task).await;
    let failure = failed(bodies.last());
    assert_eq!((failure.reason.as_str(), failure.retries_spent), ("RATE_LIMITED", 1));
}

#[tokio::test]
async fn late_answer_is_reported_as_superseded() {
    let (mut harness, mut conn, task) = delegating().await;
    harness.coordinator.sent().await.answer(Ok(asking("ask-1")));
    assert!(matches!(conn.reports().await[0].body, Some(Body::Ask(_))));
    conn.answer(&task, "delegate-1/ask-1", "yes").await;
    // The child has received another answer at the same time.
    harness.coordinator.sent().await.answer(Err(Failure::new(&reason::UNSUPPORTED_OPERATION)));
    harness.coordinator.sent().await.answer(Ok(completed("done")));
    assert!(!conn.slot_update(&task).await);
    conn.grant_slot(&task).await;
    let bodies: Vec<_> = conn.reports().await.into_iter().filter_map(|r| r.body).collect();
    let told = bodies.iter().find_map(|body| match body {
        Body::Status(message) => message.metadata.as_ref(),
        _ => None,
    });
    let told = told.expect("superseded is reported").fields["faultline.dev/superseded"].clone();
    assert!(json::value_to_json(&told)["interruptId"] == "delegate-1/ask-1", "{told:?}");
    assert!(matches!(bodies.last(), Some(Body::Completed(_))), "{bodies:?}");
}

#[tokio::test]
async fn changing_questions_are_polled_with_a_growing_pause() {
    let (mut harness, _wire, _task) = delegating().await;
    let began = Instant::now();
    for _ in 0..4 {
        harness.coordinator.sent().await.answer(Ok(asking("ask-1")));
        harness.coordinator.show(asking("ask-2")).await;
        harness.coordinator.sent().await.answer(Ok(asking("ask-1")));
    }
    harness.coordinator.sent().await;
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
}

#[tokio::test]
async fn interrupted_call_is_repeated_under_the_same_key() {
    let (mut harness, mut conn, task) = delegating().await;
    for broken in [&reason::UNAVAILABLE, &reason::OUTCOME_UNKNOWN, &reason::STORE_UNAVAILABLE] {
        let sent = harness.coordinator.sent().await;
        assert_eq!(sent.header("faultline-key"), Some("delegate-1"));
        sent.answer(Err(Failure::new(broken)));
    }
    let last = harness.coordinator.sent().await;
    assert_eq!(last.header("faultline-key"), Some("delegate-1"));
    last.answer(Ok(completed("done")));
    let bodies = end(&mut conn, &task).await;
    assert!(matches!(bodies.last(), Some(Body::Completed(_))), "{bodies:?}");
}

#[tokio::test]
async fn stop_drops_the_delegation_call() {
    let (mut harness, mut conn, task) = delegating().await;
    let sent = harness.coordinator.sent().await;
    conn.cancel(&task).await;
    soon(sent.dropped()).await;
    let reports = conn.reports().await;
    assert!(matches!(reports[0].body, Some(Body::Stopped(_))), "{reports:?}");
}

#[tokio::test]
async fn agent_that_stops_waiting_needs_a_slot_to_report() {
    let (mut harness, mut conn) = start(|cx| async move {
        tokio::select! {
            _ = cx.delegate("other", "x") => unreachable!("it never ends"),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        cx.artifact("made", "without").await
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    let sent = harness.coordinator.sent().await;
    soon(sent.dropped()).await;
    assert!(!conn.slot_update(&task).await);
    let other = conn.assign("echo", "x").await;
    assert_eq!(conn.reports().await[0].task_id, other.id.to_string());
    conn.grant_slot(&task).await;
    let bodies = conn.until_final(&task).await;
    assert!(matches!(bodies[..], [Body::Artifact(_), Body::Completed(_)]), "{bodies:?}");
}

#[tokio::test]
async fn question_is_relayed_unchanged_and_its_answer_passed_down() {
    let (mut harness, mut conn, task) = delegating().await;
    harness.coordinator.sent().await.answer(Ok(asking("ask-1")));
    let reports = conn.reports().await;
    let Some(Body::Ask(asked)) = &reports[0].body else { panic!("{reports:?}") };
    assert_eq!((asked.key.as_str(), asked.prompt.as_str()), ("delegate-1/ask-1", "Sure?"));
    assert_eq!((asked.kind(), asked.agent.as_str()), (Kind::Approval, "deep"));

    conn.answer(&task, "delegate-1/ask-1", "yes").await;
    let sent = harness.coordinator.sent().await;
    assert_eq!(
        (sent.header("faultline-task"), sent.header("faultline-key")),
        (Some("token-1"), None)
    );
    assert_eq!(sent.message().task_id, CHILD);
    assert_eq!(sent.message().parts, Content::from("yes").0);

    // The outcome is unknown: the child is queried, and the human is not asked again.
    sent.answer(Err(Failure::new(&reason::OUTCOME_UNKNOWN)));
    let sent = harness.coordinator.sent().await;
    assert_eq!(sent.header("faultline-key"), Some("delegate-1"));
    sent.answer(Ok(asking("ask-1")));
    let sent = harness.coordinator.sent().await;
    assert_eq!(sent.message().parts, Content::from("yes").0);
    sent.answer(Ok(completed("done")));
    assert!(!conn.slot_update(&task).await);
    conn.grant_slot(&task).await;
    let reports = conn.reports().await;
    assert!(matches!(reports.last().unwrap().body, Some(Body::Completed(_))), "{reports:?}");
}

#[tokio::test]
async fn question_answered_at_the_child_is_withdrawn() {
    let (mut harness, mut conn, task) = delegating().await;
    harness.coordinator.sent().await.answer(Ok(asking("ask-1")));
    assert!(matches!(conn.reports().await[0].body, Some(Body::Ask(_))));
    harness.coordinator.show(asking("ask-1")).await;
    harness.coordinator.show(child(TaskState::Working, None)).await;
    harness.coordinator.sent().await.answer(Ok(child(TaskState::Working, None)));
    let reports = conn.reports().await;
    let Some(Body::Withdrawn(withdrawn)) = &reports[0].body else { panic!("{reports:?}") };
    assert_eq!(withdrawn.key, "delegate-1/ask-1");
    harness.coordinator.sent().await.answer(Ok(completed("done")));
    assert!(!conn.slot_update(&task).await);
    conn.grant_slot(&task).await;
    let reports = conn.reports().await;
    assert!(matches!(reports.last().unwrap().body, Some(Body::Completed(_))), "{reports:?}");
}

#[tokio::test]
async fn delegation_counter_continues_from_the_checkpoint() {
    let (mut harness, mut conn) = start(|cx| async move {
        if cx.restored().is_none() {
            cx.delegate("other", "1").await?;
            cx.checkpoint("x").await?;
        }
        cx.delegate("other", "2").await?;
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    harness.coordinator.sent().await.answer(Ok(completed("1")));
    assert!(!conn.slot_update(&task).await);
    conn.grant_slot(&task).await;
    let mut saved = None;
    while saved.is_none() {
        match conn.next().await.unwrap() {
            v1::from_worker::Body::Reports(reports) => {
                let Some(Body::Checkpoint(bytes)) = reports.reports[0].body.clone() else {
                    panic!("{reports:?}")
                };
                saved = Some(bytes);
            }
            v1::from_worker::Body::Slot(slot) => assert!(slot.released),
            other => panic!("{other:?}"),
        }
    }
    let first = harness.coordinator.sent().await;
    assert_eq!(first.header("faultline-key"), Some("delegate-2"));

    let task = task.successor();
    let assign = v1::Assign { checkpoint: saved, ..task.assign() };
    conn.send(to_worker::Body::Assign(assign)).await;
    let again = harness.coordinator.sent().await;
    assert_eq!(again.header("faultline-key"), Some("delegate-2"));
    assert_eq!(again.header("faultline-task"), Some("token-2"));
}

#[tokio::test]
async fn key_with_non_ascii_characters_is_rejected() {
    let (_harness, mut conn) = start(|cx| async move {
        cx.delegate("other", "x").key("köy").await?;
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let bodies = conn.until_final(&task).await;
    let failure = failed(bodies.last());
    assert_eq!(failure.reason, "INVALID_ARGUMENT");
    assert!(failure.public_message.contains("visible ASCII"), "{failure:?}");
}
