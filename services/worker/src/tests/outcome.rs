//! Outcomes of delegations as text for a language model.

use std::time::Duration;

use faultline_proto::{
    Failure,
    a2a::{self, TaskState},
    answer,
    reason::{self, Reason},
    v1::{Disposition, report::Body},
};

use super::{
    context::{failed, start},
    delegation::{CHILD, asking, child, completed, end, record},
    fake_coordinator::{Connection, Harness, Task, soon},
};
use crate::{Content, Context, Error, sdk::content::text_of};

/// Replies with the outcome, as a tool would return it to its model.
async fn reply_with_outcome(cx: Context) -> Result<(), Error> {
    let delegation = cx.delegate("other", "please").outcome();
    let outcome = match &*cx.text() {
        "strict" => delegation.strict().await?,
        "timeout" => delegation.timeout(Duration::from_millis(50)).await?,
        _ => delegation.await?,
    };
    cx.reply(format!("{} {outcome}", outcome.task_id)).await
}

async fn telling(how: &str) -> (Harness, Connection, Task) {
    let (harness, mut conn) = start(reply_with_outcome).await;
    let task = conn.assign("under-test", how).await;
    assert!(conn.slot_update(&task).await, "the slot is released first");
    (harness, conn, task)
}

fn reply(bodies: &[Body]) -> String {
    match bodies.last() {
        Some(Body::Completed(done)) => text_of(done.message.as_ref().unwrap()).into_owned(),
        other => panic!("not completed: {other:?}"),
    }
}

async fn told(answer: Result<a2a::Task, Failure>) -> String {
    let (mut harness, mut conn, task) = telling("").await;
    harness.coordinator.sent().await.answer(answer);
    reply(&end(&mut conn, &task).await)
}

fn saying(state: TaskState, text: &str) -> a2a::Task {
    let message = a2a::Message { parts: Content::from(text).0, ..a2a::Message::default() };
    child(state, Some(message))
}

fn broken(reason: &'static Reason) -> a2a::Task {
    record(&Failure::new(reason).because("no"), TaskState::Failed)
}

#[tokio::test]
async fn outcome_text_names_state_and_task() {
    use TaskState::{AuthRequired, Canceled, Completed, Failed, InputRequired, Rejected};
    for (answer, expected) in [
        (Ok(completed("17 degrees")), "[COMPLETED] 17 degrees"),
        (Ok(child(Completed, None)), "[COMPLETED] Task completed"),
        (Ok(saying(Failed, "no such city")), "[FAILED] no such city"),
        (Ok(child(Failed, None)), "[FAILED] Unknown error"),
        (Ok(broken(&reason::INTERNAL)), "[FAILED] no"),
        (Ok(saying(Rejected, "not my job")), "[REJECTED] not my job"),
        (Ok(saying(Canceled, "by hand")), "[CANCELLED] Task was cancelled"),
        (Ok(saying(InputRequired, "Which?")), "[INPUT_REQUIRED:task_id=CHILD] Which?"),
        (Ok(asking("ask-1")), "[INPUT_REQUIRED:task_id=CHILD] Sure?"),
        (Ok(saying(AuthRequired, "Sign in")), "[AUTH_REQUIRED:task_id=CHILD] Sign in"),
    ] {
        let expected = format!("{CHILD} {}", expected.replace("CHILD", CHILD));
        assert_eq!(told(answer).await, expected);
    }
    let refused = told(Err(Failure::new(&reason::AGENT_NOT_FOUND))).await;
    assert_eq!(refused, " [FAILED] agent not found");
}

#[tokio::test]
async fn timeout_is_an_outcome_and_cancels_the_child() {
    let (mut harness, mut conn, task) = telling("timeout").await;
    soon(harness.coordinator.sent().await.dropped()).await;
    let again = harness.coordinator.sent().await;
    assert!(again.request.configuration.as_ref().unwrap().return_immediately);
    again.answer(Ok(child(TaskState::Working, None)));
    assert_eq!(harness.coordinator.cancelled().await, CHILD);
    let said = reply(&end(&mut conn, &task).await);
    assert_eq!(said, format!("{CHILD} [TIMEOUT] Task timed out"));
}

#[tokio::test]
async fn stop_does_not_wait_for_the_child() {
    let (mut harness, mut conn, task) = telling("").await;
    let sent = harness.coordinator.sent().await;
    conn.cancel(&task).await;
    let bodies = conn.until_final(&task).await;
    assert!(matches!(bodies.as_slice(), [Body::Stopped(_)]), "{bodies:?}");
    soon(sent.dropped()).await;
}

#[tokio::test]
async fn answer_to_a_task_is_retried_under_the_same_key() {
    let (mut harness, mut conn) = start(|cx: Context| async move {
        let outcome = cx.delegate("other", "yes").to_task(CHILD).outcome().await?;
        cx.reply(outcome.to_string()).await
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    let sent = harness.coordinator.sent().await;
    let key = Some("delegate-1");
    assert_eq!((sent.message().task_id.as_str(), sent.header("faultline-key")), (CHILD, key));
    assert_eq!(sent.message().parts, Content::from("yes").0);
    // The outcome is unknown: the call is repeated under the same key.
    sent.answer(Err(Failure::new(&reason::OUTCOME_UNKNOWN)));
    let again = harness.coordinator.sent().await;
    assert_eq!(again.header("faultline-key"), key);
    again.answer(Ok(completed("done")));
    assert_eq!(reply(&end(&mut conn, &task).await), "[COMPLETED] done");
}

#[tokio::test]
async fn answer_names_its_question() {
    let (mut harness, mut conn) = start(|cx: Context| async move {
        let asked = cx.delegate("other", "please").outcome().await?;
        cx.delegate("other", "yes").answering(&asked).outcome().await?;
        Ok::<(), Error>(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    harness.coordinator.sent().await.answer(Ok(asking("ask-7")));
    assert!(!conn.slot_update(&task).await, "the slot is requested");
    conn.grant_slot(&task).await;
    let sent = harness.coordinator.sent().await;
    let named = answer::Reply::read(sent.message()).unwrap().interrupt_id;
    assert_eq!((sent.message().task_id.as_str(), named.as_str()), (CHILD, "ask-7"));
}

#[tokio::test]
async fn lenient_run_ends_only_on_an_abort_disposition() {
    let told = |failure: Failure| async move {
        let (mut harness, mut conn, task) = telling("").await;
        harness.coordinator.sent().await.answer(Ok(record(&failure, TaskState::Failed)));
        end(&mut conn, &task).await
    };
    let said = Failure::new(&reason::NOT_FOUND).with_disposition(Disposition::Abort);
    assert_eq!(failed(told(said).await.last()).reason, "NOT_FOUND");
    for reason in [&reason::INTERNAL, &reason::UNAUTHENTICATED, &reason::INVALID_ARGUMENT] {
        let bodies = told(Failure::new(reason)).await;
        assert!(reply(&bodies).contains("[FAILED]"), "{}", reason.name);
    }
}

#[tokio::test]
async fn strict_run_ends_on_permanent_failures() {
    for (reason, ends, model_retry) in [
        (&reason::INVALID_ARGUMENT, true, true),
        (&reason::WORKER_LOST, true, false),
        (&reason::PERMISSION_DENIED, true, false),
        (&reason::UNAUTHENTICATED, true, false),
        (&reason::INTERNAL, true, false),
        (&reason::AGENT_NOT_FOUND, true, false),
        (&reason::FAILED_PRECONDITION, false, false),
        (&reason::RATE_LIMITED, false, false),
    ] {
        let (mut harness, mut conn) = start(|cx: Context| async move {
            match cx.delegate("other", "please").outcome().strict().await {
                Ok(outcome) => cx.reply(outcome.to_string()).await,
                Err(error) if error.is_model_retry() => cx.reply("again").await,
                Err(error) => Err(error),
            }
        })
        .await;
        let task = conn.assign("under-test", "").await;
        assert!(conn.slot_update(&task).await);
        harness.coordinator.sent().await.answer(Ok(broken(reason)));
        let bodies = end(&mut conn, &task).await;
        match (ends, model_retry) {
            (_, true) => assert_eq!(reply(&bodies), "again", "{}", reason.name),
            (true, _) => assert_eq!(failed(bodies.last()).reason, reason.name),
            (false, _) => assert_eq!(reply(&bodies), "[FAILED] no", "{}", reason.name),
        }
    }
}
