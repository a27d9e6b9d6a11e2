//! Idempotency: one key starts one task, for any number and timing of repeats.

use crate::store::key_retention;
use faultline_proto::{
    Failure,
    a2a::{GetTaskRequest, TaskState, stream_response},
    reason,
    v1::{AgentOffer, Interrupt, Submitted, report},
};

use super::*;
use crate::{
    store::{Extras, Row, Write, encode},
    task::{Task, frame::text_message},
    testing::{
        Bench, answering, at_once, frame_of, keyed, offer, principal, refusal_of, request, soon,
        task_of,
    },
};

fn state_of(task: &a2a::Task) -> TaskState {
    task.status.as_ref().unwrap().state()
}

fn ask() -> report::Body {
    report::Body::Ask(Interrupt { key: "q".into(), ..Interrupt::default() })
}

#[tokio::test]
async fn concurrent_sends_with_one_key_start_one_task() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let caller = keyed("ann", "k");
    let answers: Vec<_> = (0..20).map(|_| bench.send(request("a", "hi"), &caller)).collect();
    let assign = bench.assigned().await;
    bench.complete(&assign, 1);
    for answer in answers {
        let task = task_of(answer).await;
        assert_eq!((task.id.as_str(), state_of(&task)), (&*assign.task_id, TaskState::Completed));
    }
    assert_eq!(bench.count().await, 1);
    let task = task_of(bench.send(request("a", "hi"), &caller)).await;
    assert_eq!(task.id, assign.task_id, "long after, too");
}

#[tokio::test]
async fn idempotency_key_is_scoped_to_its_principal_and_agent() {
    let mut bench = Bench::start(vec![offer("a"), offer("b")]).await;
    let mut tasks = Vec::new();
    for (whose, agent) in [("ann", "a"), ("ann", "b"), ("ben", "a")] {
        let answer = bench.send(at_once(request(agent, "hi")), &keyed(whose, "k"));
        tasks.push(task_of(answer).await.id);
        bench.assigned().await;
    }
    tasks.sort();
    tasks.dedup();
    assert_eq!(tasks.len(), 3);
}

#[tokio::test]
async fn same_key_with_another_message_is_refused() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let caller = keyed("ann", "key-7");
    let first = task_of(bench.send(at_once(request("a", "hi")), &caller)).await;
    bench.assigned().await;
    let failure = refusal_of(bench.send(at_once(request("a", "ho")), &caller)).await;
    assert_eq!(failure.reason, "ALREADY_EXISTS");
    assert!(failure.public_message.contains("key-7"), "{}", failure.public_message);
    let again = task_of(bench.send(at_once(request("a", "hi")), &caller)).await;
    assert_eq!((again.id, bench.count().await), (first.id, 1));
}

#[tokio::test]
async fn replay_waits_as_it_requests() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let (caller, blocking) = (keyed("ann", "k"), request("a", "hi"));
    let first = bench.send(blocking.clone(), &caller);
    let assign = bench.assigned().await;
    let mut second = bench.send(blocking.clone(), &caller);
    bench.report(&assign, 1, report::Body::Status(text_message("busy".into())));
    assert!(second.try_recv().is_err(), "the task has not ended");
    bench.report(&assign, 2, ask());
    assert_eq!(state_of(&task_of(first).await), TaskState::InputRequired);
    assert_eq!(state_of(&task_of(second).await), TaskState::InputRequired);
    let third = task_of(bench.send(blocking, &caller)).await;
    assert_eq!(state_of(&third), TaskState::InputRequired, "nothing to wait for");
}

#[tokio::test]
async fn repeated_answer_is_applied_once() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let first = bench.send(request("a", "hi"), &principal("ann"));
    let assign = bench.assigned().await;
    bench.report(&assign, 1, ask());
    let task = task_of(first).await;
    let (caller, yes) = (keyed("ann", "k"), answering(request("a", "yes"), &task.id));
    let answers: Vec<_> = (0..5).map(|_| bench.send(yes.clone(), &caller)).collect();
    bench.told().await;
    bench.complete(&assign, 2);
    for answer in answers {
        let task = task_of(answer).await;
        assert_eq!((state_of(&task), task.history.len()), (TaskState::Completed, 3));
    }
    let again = task_of(bench.send(yes.clone(), &caller)).await;
    assert_eq!(state_of(&again), TaskState::Completed, "replay returns the ended task");
    let failure = refusal_of(bench.send(yes, &principal("ann"))).await;
    assert_eq!(failure.reason, "UNSUPPORTED_OPERATION", "without the key it is a new message");
}

#[tokio::test]
async fn replay_returns_the_same_bare_message() {
    let mut talker = offer("a");
    talker.may_answer_with_message = true;
    let mut bench = Bench::start(vec![talker]).await;
    let (caller, blocking) = (keyed("ann", "k"), request("a", "hi"));
    let first = bench.send(blocking.clone(), &caller);
    let assign = bench.assigned().await;
    let second = bench.send(blocking.clone(), &caller);
    soon(async {
        // The second send is registered once it waits beside the first.
        let id = assign.task_id.parse().unwrap();
        while bench.core.lock().tasks.get(&id).unwrap().waiters.len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    bench.report(&assign, 1, report::Body::Message(text_message("hello".into())));
    // While the step is on its way to the store, and after its commit.
    let third = bench.send(blocking.clone(), &caller);
    let said = soon(first).await.unwrap().unwrap();
    assert!(matches!(&said.payload, Some(Payload::Message(m)) if m.parts.len() == 1), "{said:?}");
    assert_eq!(soon(second).await.unwrap().unwrap(), said);
    assert_eq!(soon(third).await.unwrap().unwrap(), said);
    assert_eq!(soon(bench.send(blocking.clone(), &caller)).await.unwrap().unwrap(), said);
    let mut stream = soon(bench.core.stream(blocking, &caller)).await.unwrap();
    let frame = frame_of(&mut stream).await.unwrap().response.unwrap();
    assert!(matches!(frame.payload, Some(stream_response::Payload::Message(_))), "{frame:?}");
    assert_eq!(bench.count().await, 0);
}

#[tokio::test]
async fn repeated_stream_shows_the_task_and_its_later_events() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let (caller, hi) = (keyed("ann", "k"), request("a", "hi"));
    let mut first = soon(bench.core.stream(hi.clone(), &caller)).await.unwrap();
    let assign = bench.assigned().await;
    let mut second = soon(bench.core.stream(hi.clone(), &caller)).await.unwrap();
    for stream in [&mut first, &mut second] {
        let frame = frame_of(stream).await.unwrap().response.unwrap();
        let Some(stream_response::Payload::Task(task)) = frame.payload else { panic!("{frame:?}") };
        assert_eq!(task.id, assign.task_id);
    }
    bench.complete(&assign, 1);
    let mut last = None;
    while let Some(frame) = frame_of(&mut second).await {
        last = frame.response;
    }
    let last = last.and_then(|response| response.payload);
    assert!(matches!(last, Some(stream_response::Payload::StatusUpdate(_))), "{last:?}");
    let mut third = soon(bench.core.stream(hi, &caller)).await.unwrap();
    let frame = frame_of(&mut third).await.unwrap().response.unwrap();
    let Some(stream_response::Payload::Task(task)) = frame.payload else { panic!("{frame:?}") };
    assert_eq!(state_of(&task), TaskState::Completed);
    assert_eq!(frame_of(&mut third).await, None, "stream ends");
    assert_eq!(bench.count().await, 1);
}

#[tokio::test]
async fn repeated_stream_shows_the_requested_history() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let (caller, mut hi) = (keyed("ann", "k"), request("a", "hi"));
    hi.configuration.get_or_insert_default().history_length = Some(0);
    let mut first = soon(bench.core.stream(hi.clone(), &caller)).await.unwrap();
    let assign = bench.assigned().await;
    let mut second = soon(bench.core.stream(hi.clone(), &caller)).await.unwrap();
    bench.complete(&assign, 1);
    let mut after = soon(bench.core.stream(hi, &caller)).await.unwrap();
    for stream in [&mut first, &mut second, &mut after] {
        let frame = frame_of(stream).await.unwrap().response.unwrap();
        let Some(stream_response::Payload::Task(task)) = frame.payload else { panic!("{frame:?}") };
        assert_eq!(task.history, []);
    }
}

#[tokio::test]
async fn refused_send_leaves_its_key_free() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let caller = keyed("ann", "k");
    let mut wrong = request("a", "hi");
    wrong.message.as_mut().unwrap().context_id = "c".repeat(300);
    let failure = refusal_of(bench.send(wrong, &caller)).await;
    assert_eq!(failure.reason, "INVALID_PARAMS");
    let right = bench.send(at_once(request("a", "hi")), &caller);
    assert_eq!(task_of(right).await.id, bench.assigned().await.task_id);
}

#[tokio::test]
async fn too_long_idempotency_key_is_refused() {
    let bench = Bench::start(vec![offer("a")]).await;
    let failure = refusal_of(bench.send(request("a", "hi"), &keyed("ann", &"k".repeat(257)))).await;
    assert_eq!(failure.violations[0].field, "Idempotency-Key");
}

#[tokio::test]
async fn idempotency_key_survives_a_restart() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let (caller, hi) = (keyed("ann", "k"), at_once(request("a", "hi")));
    let first = task_of(bench.send(hi.clone(), &caller)).await.id;
    bench.assigned().await;
    let bench = bench.restart(Vec::new()).await;
    assert_eq!(task_of(bench.send(hi, &caller)).await.id, first);
}

#[tokio::test]
async fn expired_key_is_free_and_erased() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let (caller, hi) = (keyed("ann", "k"), at_once(request("a", "hi")));
    let (message, principal) = (Some(text_message("long ago".into())), "ann".to_owned());
    let submitted = Submitted { message, principal, ..Submitted::default() };
    let (task, event) = Task::submit(TaskId::new(), "a", "c".into(), submitted, 0);
    let name = KeyName { principal: "ann".into(), agent: "a".into(), key: "k".into() };
    let (created, digest) = (now() - key_retention() - 1, [7; 32]);
    let old = KeyRow { name, task_id: task.id, digest, reply: None, created };
    let insert = |key: KeyRow| Write::Insert {
        row: Row::from(&task),
        events: vec![encode(1, &event)],
        with: Some(Box::new(Extras { key: Some(key), ..Extras::default() })),
    };
    bench.write(insert(old.clone())).await;
    assert!(!bench.core.forget_keys().await, "there was one to forget");
    soon(async { while !bench.core.forget_keys().await {} }).await;
    assert_eq!(bench.core.store.oldest_key().await.unwrap(), None);
    bench.write(Write::Erase { id: task.id, from: 1, key: None }).await;
    bench.write(insert(old)).await;
    let new = task_of(bench.send(hi, &caller)).await.id;
    assert_eq!(new, bench.assigned().await.task_id, "a send as if there were no key");
}

/// Older builds stored `idempotent` with every task that was sent with a key.
#[tokio::test]
async fn stored_task_with_the_old_flag_follows_the_current_offer() {
    let declared = AgentOffer { idempotent: true, ..offer("a") };
    for (offer, expected) in [(offer("a"), TaskState::Failed), (declared, TaskState::Working)] {
        let bench = Bench::start(vec![offer.clone()]).await;
        let (message, principal) = (Some(text_message("pay".into())), "ann".to_owned());
        let submitted = Submitted { message, principal, idempotent: true, ..Submitted::default() };
        let (task, event) = Task::submit(TaskId::new(), "a", "c".into(), submitted, now());
        let (row, events) = (Row::from(&task), vec![encode(1, &event)]);
        bench.write(Write::Insert { row, events, with: None }).await;
        let mut bench = bench.restart(vec![offer]).await;
        let assign = bench.assigned().await;
        assert_eq!(assign.task_id, task.id.to_string());
        let failure = Failure::new(&reason::UNKNOWN).into_record();
        bench.report(&assign, 1, report::Body::Failed(failure));
        bench.core.flushed().await;
        let get = GetTaskRequest { id: assign.task_id, ..GetTaskRequest::default() };
        let task = bench.core.get(get, &keyed("ann", "")).await.unwrap();
        assert_eq!(state_of(&task), expected);
    }
}
