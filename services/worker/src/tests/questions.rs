//! Questions to humans: several at once, refusals, expiry, invalid schemas, and the relay of
//! questions of a child.

use std::time::Duration;

use faultline_chassis::limits;
use faultline_proto::{
    Failure, a2a, answer, json,
    v1::{self, AnswerAction, Interrupt, report::Body, to_worker},
};
use futures::StreamExt;
use prost_types::{ListValue, Struct, Value, value};
use serde_json::json;

use super::{
    context::{failed, start},
    delegation::{CHILD, asking, completed},
    fake_coordinator::{Connection, Harness, Task, soon, user_message},
};
use crate::{Action, Answer, Content, Question, reason};

async fn answer(
    conn: &Connection,
    task: &Task,
    key: &str,
    message: a2a::Message,
    action: AnswerAction,
) {
    let task_id = task.id.to_string();
    let attempt = task.attempt;
    let key = key.to_owned();
    let message = Some(message);
    let action = action as i32;
    let answer = v1::Answer { task_id, attempt, key, message, action, ..v1::Answer::default() };
    conn.send(to_worker::Body::Answer(answer)).await;
}

/// The next reports in short form.
async fn next_reports(conn: &mut Connection) -> Vec<String> {
    let reports = conn.reports().await.into_iter().map(|report| match report.body.unwrap() {
        Body::Ask(question) => format!("ask {}", question.key),
        Body::Withdrawn(question) => format!("withdraw {}", question.key),
        Body::Artifact(chunk) => format!("artifact {}", chunk.artifact.unwrap().artifact_id),
        Body::Completed(_) => "completed".to_owned(),
        other => format!("{other:?}"),
    });
    reports.collect()
}

#[tokio::test]
async fn questions_may_be_open_at_once_and_answered_in_any_order() {
    let (_harness, mut conn) = start(|cx| async move {
        let first = async {
            let answer = cx.ask(Question::input("Name?").key("name")).await?;
            cx.artifact(answer.text(), "x").await
        };
        let second = async {
            let answer = cx.ask(Question::input("Town?").key("town")).await?;
            cx.artifact(answer.text(), "x").await
        };
        tokio::try_join!(first, second).map(drop)
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert_eq!(next_reports(&mut conn).await, ["ask name", "ask town"]);
    conn.answer(&task, "town", "Bern").await;
    assert_eq!(
        next_reports(&mut conn).await,
        ["artifact Bern"],
        "reported beside the open question"
    );
    conn.answer(&task, "name", "Ada").await;
    assert_eq!(next_reports(&mut conn).await, ["artifact Ada", "completed"]);
}

#[tokio::test]
async fn dropped_question_is_withdrawn_and_no_other() {
    let (_harness, mut conn) = start(|cx| async move {
        let kept = cx.ask(Question::input("Kept?").key("kept"));
        let dropped = async {
            let asking = cx.ask(Question::input("Dropped?").key("dropped"));
            let _ = tokio::time::timeout(Duration::from_millis(20), asking).await;
            Ok(())
        };
        tokio::try_join!(kept, dropped).map(drop)
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert_eq!(next_reports(&mut conn).await, ["ask kept", "ask dropped"]);
    assert_eq!(next_reports(&mut conn).await, ["withdraw dropped"]);
    conn.answer(&task, "kept", "yes").await;
    assert_eq!(next_reports(&mut conn).await, ["completed"]);
}

#[tokio::test]
async fn question_key_is_asked_once_for_several_waiters() {
    let (_harness, mut conn) = start(|cx| async move {
        let ask = || cx.ask(Question::input("Well?").key("k"));
        let brief = tokio::time::timeout(Duration::from_millis(20), ask());
        let (brief, a, b) = tokio::join!(brief, ask(), ask());
        assert!(brief.is_err());
        assert_eq!(a?.text(), b?.text());
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert_eq!(next_reports(&mut conn).await, ["ask k"]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    conn.answer(&task, "k", "yes").await;
    assert_eq!(next_reports(&mut conn).await, ["completed"], "not withdrawn while a future waits");
}

#[tokio::test]
async fn answer_actions_and_fields_reach_the_agent() {
    let (_harness, mut conn) = start(|cx| async move {
        let port = json!({"type": "object", "properties": {
            "port": {"type": "integer", "maximum": 65535},
            "tls": {"type": "boolean", "default": true},
        }});
        let first = cx.ask(Question::input("Where?").schema(port)).await?;
        assert!(first.is_accepted());
        assert_eq!(first.value(), json!({"port": 8080, "tls": true}));
        assert_eq!((first.field::<u16>("port"), first.field("tls")), (Some(8080), Some(true)));
        assert_eq!(first.field::<String>("port"), None);
        let second = cx.ask(Question::approval("Sure?")).await?;
        assert_eq!((second.action(), second.approved()), (Action::Declined, false));
        let third = cx.ask("Really?").await?;
        assert_eq!((third.action(), third.value()), (Action::Dismissed, json!(null)));
        let fourth = cx.ask(Question::approval("Then?")).await?;
        assert_eq!((fourth.approved(), fourth.text().as_ref()), (true, "yes"));
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert_eq!(next_reports(&mut conn).await, ["ask ask-1"]);
    let fields = a2a::Message { parts: Content::from(json!({"port": 8080})).0, ..user_message("") };
    answer(&conn, &task, "ask-1", fields, AnswerAction::Accept).await;
    assert_eq!(next_reports(&mut conn).await, ["ask ask-2"]);
    let no = a2a::Message {
        metadata: Some(answer::record("ask-2", AnswerAction::Decline)),
        ..user_message("no")
    };
    answer(&conn, &task, "ask-2", no, AnswerAction::Decline).await;
    assert_eq!(next_reports(&mut conn).await, ["ask ask-3"]);
    answer(&conn, &task, "ask-3", a2a::Message::default(), AnswerAction::Dismiss).await;
    assert_eq!(next_reports(&mut conn).await, ["ask ask-4"]);
    conn.answer(&task, "ask-4", "yes").await;
    assert_eq!(next_reports(&mut conn).await, ["completed"]);
}

#[tokio::test]
async fn approval_is_read_from_the_boolean_field_or_from_plain_text() {
    let (_harness, mut conn) = start(|cx| async move {
        let confirm = json!({"type": "object", "properties": {
            "confirm": {"type": "boolean"},
            "note": {"type": "string"},
        }});
        for expected in [true, false] {
            let question = Question::approval("Deploy?").schema(confirm.clone());
            assert_eq!(cx.ask(question).await?.approved(), expected);
        }
        let two = json!({"type": "object", "properties": {
            "a": {"type": "boolean"},
            "b": {"type": "boolean"},
        }});
        let unclear = cx.ask(Question::approval("Which?").schema(two)).await?;
        assert!(!unclear.approved(), "two booleans, none of them named approved");
        for expected in [true, false, false] {
            assert_eq!(cx.ask("Deploy?").await?.approved(), expected);
        }
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let fields = [json!({"confirm": true}), json!({"confirm": false}), json!({"a": true})];
    for (at, fields) in (1..).zip(fields) {
        assert_eq!(next_reports(&mut conn).await, [format!("ask ask-{at}")]);
        let message = a2a::Message { parts: Content::from(fields).0, ..user_message("") };
        answer(&conn, &task, &format!("ask-{at}"), message, AnswerAction::Accept).await;
    }
    for (at, words) in (4..).zip([" YES", "no", "yes, if you must"]) {
        assert_eq!(next_reports(&mut conn).await, [format!("ask ask-{at}")]);
        conn.answer(&task, &format!("ask-{at}"), words).await;
    }
    assert_eq!(next_reports(&mut conn).await, ["completed"]);
}

#[tokio::test]
async fn expired_question_is_an_error_that_may_be_caught() {
    let (_harness, mut conn) = start(|cx| async move {
        let question = Question::input("Now?").expires_in(Duration::from_secs(60));
        let error = cx.ask(question).await.expect_err("the question expires");
        assert_eq!(error.failure().unwrap().reason, "INPUT_TIMEOUT");
        cx.ask("Later?").await.map(drop)
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let reports = conn.reports().await;
    let Some(Body::Ask(asked)) = &reports[0].body else { panic!("{reports:?}") };
    let from = asked.requested_at.unwrap();
    let to = asked.expires_at.unwrap();
    assert_eq!(to.seconds - from.seconds, 60);
    answer(&conn, &task, "ask-1", a2a::Message::default(), AnswerAction::Expire).await;
    assert_eq!(next_reports(&mut conn).await, ["ask ask-2"]);
    answer(&conn, &task, "ask-2", a2a::Message::default(), AnswerAction::Expire).await;
    let reports = conn.reports().await;
    assert_eq!(failed(reports[0].body.as_ref()).reason, "INPUT_TIMEOUT");
}

#[tokio::test]
async fn invalid_question_is_not_asked() {
    let (_harness, mut conn) = start(|cx| async move {
        let deep = json!({"type": "object", "properties": {"a": {"type": "object"}}});
        for (schema, field) in [(deep, "schema.properties.a.type"), (json!([1]), "schema")] {
            let error = cx.ask(Question::input("?").schema(schema)).await.expect_err(field);
            let failure = error.failure().unwrap();
            assert_eq!(failure.reason, "INVALID_ARGUMENT");
            assert_eq!(failure.violations[0].field, field);
        }
        let ask = |n: usize| cx.ask(Question::input("?").key(n.to_string()));
        let mut open: futures::stream::FuturesUnordered<_> =
            (0..=limits::OPEN_QUESTIONS_MAX).map(ask).collect();
        open.next().await.expect("one of them fails").map(drop)
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let mut asked = 0;
    let mut withdrawn = 0;
    let bodies = conn.until_final(&task).await;
    for body in &bodies {
        asked += usize::from(matches!(body, Body::Ask(_)));
        withdrawn += usize::from(matches!(body, Body::Withdrawn(_)));
    }
    let most = limits::OPEN_QUESTIONS_MAX;
    assert_eq!((asked, withdrawn), (most, most), "and all are withdrawn");
    assert_eq!(failed(bodies.last()).reason, "RESOURCE_EXHAUSTED");
}

/// A child with these open questions.
fn asking_all(keys: &[&str]) -> a2a::Task {
    let record = |key: &&str| {
        let question = Interrupt { key: (*key).into(), ..Interrupt::default() };
        Value { kind: Some(value::Kind::StructValue(json::to_struct(&question))) }
    };
    let list = ListValue { values: keys.iter().map(record).collect() };
    let value = Value { kind: Some(value::Kind::ListValue(list)) };
    let fields = [("faultline.dev/interrupts".to_owned(), value)].into();
    a2a::Task { metadata: Some(Struct { fields }), ..asking(keys[0]) }
}

fn answered(message: &a2a::Message) -> (String, AnswerAction) {
    let reply = answer::Reply::read(message).unwrap();
    (reply.interrupt_id, reply.action)
}

#[tokio::test]
async fn questions_of_a_child_are_relayed_and_answered_one_by_one() {
    let (mut harness, mut conn) =
        start(|cx| async move { cx.delegate("other", "please").key("c").await.map(drop) }).await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    harness.coordinator.sent().await.answer(Ok(asking_all(&["x", "y", "z"])));
    assert_eq!(next_reports(&mut conn).await, ["ask c/x", "ask c/y", "ask c/z"]);
    answer(&conn, &task, "c/y", user_message("no"), AnswerAction::Decline).await;
    let sent = harness.coordinator.sent().await;
    assert_eq!(answered(sent.message()), ("y".to_owned(), AnswerAction::Decline));
    assert_eq!(sent.message().task_id, CHILD);
    // Meanwhile `x` was answered elsewhere, and the child asks a new question.
    sent.answer(Ok(asking_all(&["z", "new"])));
    assert_eq!(next_reports(&mut conn).await, ["withdraw c/x", "ask c/new"]);
    conn.answer(&task, "c/new", "1").await;
    let sent = harness.coordinator.sent().await;
    assert_eq!(answered(sent.message()), ("new".to_owned(), AnswerAction::Accept));
    sent.answer(Ok(completed("done")));
    assert!(!conn.slot_update(&task).await);
    assert_eq!(next_reports(&mut conn).await, ["withdraw c/z"]);
    conn.grant_slot(&task).await;
    assert_eq!(next_reports(&mut conn).await, ["completed"]);
}

async fn delegating_with_hook() -> (Harness, Connection, Task) {
    let (harness, mut conn) = start(|cx| async move {
        let made = cx.delegate("other", "please").key("c").answer_with(async |question| {
            (question.key != "human").then(|| Answer::new(json!({"for": question.key})))
        });
        made.await.map(drop)
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    (harness, conn, task)
}

#[tokio::test]
async fn hook_answers_some_questions_and_the_rest_is_relayed() {
    let (mut harness, mut conn, task) = delegating_with_hook().await;
    harness.coordinator.sent().await.answer(Ok(asking_all(&["own", "human"])));
    let sent = harness.coordinator.sent().await;
    assert_eq!(answered(sent.message()), ("own".to_owned(), AnswerAction::Accept));
    assert_eq!(sent.message().parts, Content::from(json!({"for": "own"})).0);
    sent.answer(Ok(asking("human")));
    assert_eq!(next_reports(&mut conn).await, ["ask c/human"], "and no other");
    conn.answer(&task, "c/human", "yes").await;
    let sent = harness.coordinator.sent().await;
    assert_eq!(answered(sent.message()).0, "human");
    sent.answer(Ok(completed("done")));
}

#[tokio::test]
async fn question_is_relayed_after_an_invalid_answer_of_the_hook() {
    let (mut harness, mut conn, _task) = delegating_with_hook().await;
    harness.coordinator.sent().await.answer(Ok(asking("own")));
    let refused = Failure::new(&reason::INVALID_PARAMS).because("answer.port: is required");
    harness.coordinator.sent().await.answer(Err(refused));
    let again = harness.coordinator.sent().await;
    assert_eq!(again.header("faultline-key"), Some("c"), "the state of the child is queried");
    again.answer(Ok(asking("own")));
    assert_eq!(next_reports(&mut conn).await, ["ask c/own"]);
}

#[tokio::test]
async fn started_child_is_awaited_later() {
    let (mut harness, mut conn) = start(|cx| async move {
        let child = cx.delegate("other", "please").start().await?;
        cx.artifact(child.id(), "is its name").await?;
        child.answer("k", Answer::declined()).await?;
        cx.reply(child.wait().await?.text()).await
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let sent = harness.coordinator.sent().await;
    assert!(sent.request.configuration.as_ref().unwrap().return_immediately);
    assert_eq!(sent.header("faultline-key"), Some("delegate-1"));
    sent.answer(Ok(asking("k")));
    assert_eq!(
        next_reports(&mut conn).await,
        [format!("artifact {CHILD}")],
        "the slot is still held"
    );
    let sent = harness.coordinator.sent().await;
    assert_eq!(answered(sent.message()), ("k".to_owned(), AnswerAction::Decline));
    sent.answer(Ok(asking("k")));
    assert!(conn.slot_update(&task).await, "the slot is released");
    let sent = harness.coordinator.sent().await;
    assert_eq!(sent.header("faultline-key"), Some("delegate-1"));
    sent.answer(Ok(completed("done")));
    assert!(!conn.slot_update(&task).await);
    conn.grant_slot(&task).await;
    let reports = soon(conn.reports()).await;
    let Some(Body::Completed(done)) = &reports[0].body else { panic!("{reports:?}") };
    assert_eq!(done.message.as_ref().unwrap().parts, Content::from("done").0);
}
