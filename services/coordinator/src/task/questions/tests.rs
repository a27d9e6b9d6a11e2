//! Tests of several questions of one task: the one that is shown, the answers, and the time
//! that waiting costs.

use std::time::Duration;

use faultline_proto::{
    a2a::{self, TaskState},
    answer, json, reason,
    v1::{self, Answer, AnswerAction, Assign, Held, interrupt::Kind, report, to_worker},
};
use tokio::time::Instant;

use super::*;
use crate::{
    clock::now,
    task::timestamp,
    testing::{Bench, answering, at_once, offer, principal, refusal_of, request, soon, task_of},
};

fn question(key: &str) -> Interrupt {
    Interrupt { key: key.into(), prompt: format!("{key}?"), ..Interrupt::default() }
}

fn port() -> Interrupt {
    let schema = r#"{"schema": {"type": "object", "required": ["port"], "properties": {
        "port": {"type": "integer", "minimum": 1, "maximum": 65535}
    }}}"#;
    let schema = json::from_str::<Interrupt>(schema).unwrap().schema;
    Interrupt { schema, ..question("port") }
}

async fn bench() -> Bench {
    Bench::start(vec![offer("a"), offer("b")]).await
}

/// Asks these, one report each.
fn ask(bench: &Bench, assign: &Assign, first: u32, questions: Vec<Interrupt>) {
    for (number, question) in (first..).zip(questions) {
        bench.report(assign, number, report::Body::Ask(question));
    }
}

fn withdraw(bench: &Bench, assign: &Assign, number: u32, key: &str) {
    bench.report(assign, number, report::Body::Withdrawn(v1::Withdrawn { key: key.into() }));
}

/// An answer of ann's to this question of the task.
fn reply(task_id: &str, key: &str, text: &str) -> a2a::SendMessageRequest {
    act(task_id, key, text, AnswerAction::Accept)
}

fn act(task_id: &str, key: &str, text: &str, action: AnswerAction) -> a2a::SendMessageRequest {
    let mut request = answering(request("a", text), task_id);
    request.message.as_mut().unwrap().metadata = Some(answer::record(key, action));
    request
}

async fn stored(bench: &Bench, id: &str) -> Task {
    bench.core.flushed().await;
    let id = id.parse().unwrap();
    bench.core.store.task(id, crate::store::Scope::default()).await.unwrap().unwrap().task
}

fn open(task: &Task) -> Vec<&str> {
    task.pending.iter().map(|question| question.key.as_str()).collect()
}

fn shown(task: &a2a::Task) -> (TaskState, String) {
    let status = task.status.clone().unwrap();
    let id = status.message.as_ref().map(|m| m.message_id.clone()).unwrap_or_default();
    (status.state(), id.strip_prefix(&format!("{}-", task.id)).unwrap_or(&id).to_owned())
}

async fn told(bench: &mut Bench) -> Answer {
    match bench.told().await {
        to_worker::Body::Answer(answer) => answer,
        other => panic!("an answer, not {other:?}"),
    }
}

fn used(bench: &Bench) -> u32 {
    bench.core.lock().registry.workers[&bench.worker].used()
}

fn waiting(bench: &Bench) -> u32 {
    bench.core.lock().registry.agents["a"].waiting
}

#[tokio::test]
async fn oldest_question_is_shown_and_any_may_be_answered() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    let id = assign.task_id.clone();
    let auth = Interrupt { kind: Kind::AuthUrl as i32, ..question("login") };
    ask(&bench, &assign, 1, vec![question("name"), auth, port()]);
    let task = stored(&bench, &id).await;
    assert_eq!(open(&task), ["name", "login", "port"]);
    let task = task.into_a2a(None);
    assert_eq!(shown(&task), (TaskState::InputRequired, "name".into()));
    let listed = &task.metadata.as_ref().unwrap().fields["faultline.dev/interrupts"];
    let listed = json::value_to_json(listed);
    let keys: Vec<_> = listed.as_array().unwrap().iter().map(|i| i["key"].clone()).collect();
    assert_eq!(keys, ["name", "login", "port"]);
    let answered = task_of(bench.send(reply(&id, "port", "8080"), &principal("ann"))).await;
    assert_eq!(shown(&answered), (TaskState::InputRequired, "name".into()), "it asks on");
    assert_eq!((told(&mut bench).await.key.as_str(), waiting(&bench)), ("port", 1));
    let answered = task_of(bench.send(answering(request("a", "Ada"), &id), &principal("ann")));
    assert_eq!(shown(&answered.await), (TaskState::AuthRequired, "login".into()));
    assert_eq!(told(&mut bench).await.key, "name");
    let answered = at_once(reply(&id, "login", "done"));
    let answered = task_of(bench.send(answered, &principal("ann"))).await;
    assert_eq!(shown(&answered), (TaskState::Working, String::new()));
    assert!(answered.metadata.is_none(), "nothing is listed any more");
    assert_eq!((told(&mut bench).await.key.as_str(), waiting(&bench)), ("login", 0));
    let said: Vec<_> = answered.history.iter().map(|m| m.message_id.clone()).collect();
    assert_eq!(said.len(), 7, "one message, three questions, three answers: {said:?}");
}

#[tokio::test]
async fn a_stream_shows_the_next_question_after_each_answer() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    let id: faultline_proto::id::TaskId = assign.task_id.parse().unwrap();
    ask(&bench, &assign, 1, vec![question("one"), question("two")]);
    task_of(bench.send(reply(&assign.task_id, "one", "1"), &principal("ann"))).await;
    withdraw(&bench, &assign, 3, "two");
    let task = stored(&bench, &assign.task_id).await;
    let events = bench.core.store.events(id, 0, 100).await.unwrap();
    let frames = events.into_iter().filter_map(|stored| {
        let event = prost::Message::decode(stored.body).unwrap();
        task.ids().frame(&event)
    });
    let states = frames.filter_map(|frame| match frame.payload {
        Some(a2a::stream_response::Payload::StatusUpdate(update)) => {
            let several = update.metadata.is_some();
            let status = update.status.unwrap();
            let id = status.message.as_ref().map(|m| m.message_id.rsplit('-').next().unwrap());
            Some((status.state(), id.unwrap_or_default().to_owned(), several))
        }
        _ => None,
    });
    let expected = [
        (TaskState::Working, "", false),
        (TaskState::InputRequired, "one", false),
        (TaskState::InputRequired, "one", true),
        (TaskState::Working, "", false),
        (TaskState::InputRequired, "two", false),
        (TaskState::Working, "", false),
    ];
    let expected = expected.map(|(state, key, several)| (state, key.to_owned(), several));
    assert_eq!(states.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused_by_field_and_the_question_stays() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    let id = &assign.task_id;
    ask(&bench, &assign, 1, vec![port(), question("why")]);
    let refused = refusal_of(bench.send(reply(id, "port", "70000"), &principal("ann"))).await;
    assert_eq!(refused.row(), &reason::INVALID_PARAMS);
    assert_eq!(refused.public_message, "answer.port: must be at most 65535");
    let violations: Vec<_> = refused.violations.iter().map(|v| v.field.as_str()).collect();
    assert_eq!(violations, ["answer.port"]);
    let refused = refusal_of(bench.send(reply(id, "who", "x"), &principal("ann"))).await;
    let text = "message.metadata.faultline.dev/answer.interruptId: the task does not ask 'who'; \
                open are 'port', 'why'";
    assert_eq!((refused.row(), &refused.public_message[..]), (&reason::INVALID_PARAMS, text));
    let task = stored(&bench, id).await;
    assert_eq!((open(&task), task.answers.len()), (vec!["port", "why"], 0));
    task_of(bench.send(reply(id, "port", "443"), &principal("ann"))).await;
    let late = refusal_of(bench.send(reply(id, "port", "80"), &principal("ann"))).await;
    assert_eq!(late.row(), &reason::UNSUPPORTED_OPERATION, "the first answer counts: {late}");
    let no = act(id, "why", "", AnswerAction::Decline);
    task_of(bench.send(at_once(no), &principal("ann"))).await;
    let told = [told(&mut bench).await, told(&mut bench).await];
    let told = told.map(|answer| (answer.key.clone(), answer.action()));
    let expected = [("port", AnswerAction::Accept), ("why", AnswerAction::Decline)];
    assert_eq!(told, expected.map(|(key, action)| (key.to_owned(), action)));
}

#[tokio::test]
async fn withdrawal_removes_one_question_only() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    ask(&bench, &assign, 1, vec![question("one"), question("two")]);
    withdraw(&bench, &assign, 3, "one");
    let task = stored(&bench, &assign.task_id).await;
    assert_eq!((open(&task), task.state), (vec!["two"], TaskState::InputRequired));
    assert_eq!(used(&bench), 0);
    let late = refusal_of(bench.send(reply(&assign.task_id, "one", "1"), &principal("ann"))).await;
    assert_eq!(late.row(), &reason::INVALID_PARAMS);
    withdraw(&bench, &assign, 4, "two");
    let task = stored(&bench, &assign.task_id).await;
    assert_eq!((open(&task).len(), task.state), (0, TaskState::Working));
    assert_eq!((used(&bench), waiting(&bench)), (1, 0), "it computes again");
    ask(&bench, &assign, 5, vec![question("one")]);
    let task = stored(&bench, &assign.task_id).await;
    assert_eq!(open(&task), ["one"]);
    assert_eq!(task.history.len(), 3, "said once, though asked twice");
}

#[tokio::test]
async fn output_beside_an_open_question_is_visible() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    ask(&bench, &assign, 1, vec![question("one")]);
    let said = a2a::Message { message_id: "m".into(), ..a2a::Message::default() };
    bench.report(&assign, 2, report::Body::Status(said));
    bench.report(&assign, 3, report::Body::Checkpoint("here".into()));
    let task = stored(&bench, &assign.task_id).await;
    assert_eq!((open(&task), task.state), (vec!["one"], TaskState::InputRequired));
    assert_eq!(task.checkpoint.as_deref(), Some(&b"here"[..]));
    assert_eq!((used(&bench), waiting(&bench)), (0, 1));
}

#[tokio::test]
async fn an_attempt_that_asks_holds_no_slot_until_the_last_answer() {
    let mut bench = bench().await;
    bench.set_slots(1);
    let assign = bench.root("a").await;
    let id = assign.task_id.clone();
    ask(&bench, &assign, 1, vec![question("one"), question("two")]);
    let other = bench.root("b").await;
    task_of(bench.send(reply(&id, "one", "1"), &principal("ann"))).await;
    assert_eq!(told(&mut bench).await.key, "one", "told at once: the agent waits anyway");
    // Its other branch waits for an agent meanwhile, and wants to go on.
    let slot = |released| v1::Slot { task_id: id.clone(), attempt: 1, released };
    for released in [true, false] {
        bench.core.change(|state| state.slot(bench.worker, &slot(released), now()));
    }
    assert!(matches!(bench.told().await, to_worker::Body::GoOn(_)));
    assert_eq!(used(&bench), 1, "that of the other task");
    task_of(bench.send(at_once(reply(&id, "two", "2")), &principal("ann"))).await;
    bench.complete(&other, 1);
    assert_eq!((told(&mut bench).await.key.as_str(), used(&bench)), ("two", 1));
}

#[tokio::test]
async fn a_worker_that_comes_back_is_told_every_answer_it_missed() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    let id = &assign.task_id;
    ask(&bench, &assign, 1, vec![question("one"), question("two"), question("three")]);
    bench.core.flushed().await;
    bench.core.change(|state| state.registry.detach(bench.worker));
    task_of(bench.send(reply(id, "one", "1"), &principal("ann"))).await;
    task_of(bench.send(reply(id, "three", "3"), &principal("ann"))).await;
    let held = Held { task_id: id.clone(), attempt: 1, waits: false };
    bench.attach_again(&["a", "b"], 1, vec![held.clone()]);
    assert_eq!([told(&mut bench).await.key, told(&mut bench).await.key], ["one", "three"]);
    bench.core.change(|state| state.registry.detach(bench.worker));
    task_of(bench.send(at_once(reply(id, "two", "2")), &principal("ann"))).await;
    bench.attach_again(&["a", "b"], 1, vec![held]);
    let again =
        [told(&mut bench).await.key, told(&mut bench).await.key, told(&mut bench).await.key];
    assert_eq!((again, used(&bench)), (["one", "three", "two"].map(String::from), 1));
}

#[tokio::test]
async fn an_answer_moves_a_task_whose_worker_is_lost_and_the_other_question_stays() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    let id = &assign.task_id;
    ask(&bench, &assign, 1, vec![question("one"), question("two")]);
    let mut bench = bench.restart(vec![offer("a")]).await;
    let task = stored(&bench, id).await;
    assert_eq!(open(&task), ["one", "two"], "over a restart of everything");
    let lost = task.worker.parse().unwrap();
    let core = std::sync::Arc::clone(&bench.core);
    core.change(|state| state.lose_worker(lost, now()));
    task_of(bench.send(reply(id, "two", "2"), &principal("ann"))).await;
    let again = bench.assigned().await;
    assert_eq!((again.attempt, again.answers[0].key.as_str()), (2, "two"));
    assert_eq!(used(&bench), 1, "it computes until it asks");
    let task = stored(&bench, id).await;
    assert_eq!((open(&task), task.state), (vec!["one"], TaskState::InputRequired));
    ask(&bench, &again, 1, vec![question("one")]);
    assert_eq!(used(&bench), 0);
    let task = stored(&bench, id).await;
    assert_eq!((open(&task), task.history.len()), (vec!["one"], 4), "asked once");
    task_of(bench.send(at_once(reply(id, "one", "1")), &principal("ann"))).await;
    assert_eq!(told(&mut bench).await.key, "one");
}

#[tokio::test]
async fn question_expires_by_the_coordinator_clock_after_a_restart() {
    let bench = bench().await;
    let mut bench = bench;
    let assign = bench.root("a").await;
    let id = assign.task_id.clone();
    let soon_over = Interrupt { expires_at: Some(timestamp(now() + 60_000)), ..question("one") };
    ask(&bench, &assign, 1, vec![soon_over, question("two")]);
    let mut bench = bench.restart(Vec::new()).await;
    bench.core.change(|state| state.fire_due_timers(Instant::now(), now()));
    assert_eq!(open(&stored(&bench, &id).await), ["one", "two"], "not yet");
    let later = Instant::now() + Duration::from_secs(61);
    bench.core.change(|state| state.fire_due_timers(later, now() + 61_000));
    let task = stored(&bench, &id).await;
    assert_eq!((open(&task), task.state), (vec!["two"], TaskState::InputRequired));
    assert_eq!((task.answers[0].action(), &task.answers[0].message), (AnswerAction::Expire, &None));
    let late = refusal_of(bench.send(reply(&id, "one", "1"), &principal("ann"))).await;
    assert_eq!(late.row(), &reason::UNSUPPORTED_OPERATION);
    bench.worker = task.worker.parse().unwrap();
    bench.attach_again(&["a"], 1, vec![Held { task_id: id, attempt: 1, waits: false }]);
    assert_eq!(told(&mut bench).await.action(), AnswerAction::Expire);
}

#[tokio::test]
async fn too_many_questions_end_the_task_and_cancel_closes_all() {
    let mut bench = bench().await;
    let assign = bench.root("a").await;
    let many = (0..limits::OPEN_QUESTIONS_MAX).map(|n| question(&format!("q{n}"))).collect();
    ask(&bench, &assign, 1, many);
    let task = stored(&bench, &assign.task_id).await;
    assert_eq!(open(&task).len(), limits::OPEN_QUESTIONS_MAX);
    let next = limits::OPEN_QUESTIONS_MAX as u32 + 1;
    ask(&bench, &assign, next, vec![question("last")]);
    let task = stored(&bench, &assign.task_id).await;
    let failure = task.failure.as_ref().unwrap();
    assert_eq!((failure.row(), open(&task).len()), (&reason::INVALID_AGENT_RESPONSE, 0));
    assert!(matches!(bench.told().await, to_worker::Body::Cancel(_)));
    let other = bench.root("a").await;
    ask(&bench, &other, 1, vec![question("one"), question("two")]);
    let cancelled = soon(bench.cancel(&other.task_id)).await;
    assert_eq!((shown(&cancelled).0, cancelled.metadata.is_some()), (TaskState::Canceled, true));
    assert_eq!(open(&stored(&bench, &other.task_id).await).len(), 0);
    assert_eq!(waiting(&bench), 0);
}
