//! Answers while the store is silent. The writer is held and the sweep is called directly, so no
//! test waits for a clock.

use std::{sync::Arc, time::Duration};

use faultline_proto::{
    advice::{Reader, advise},
    v1::{AgentOffer, report},
};

use super::*;
use crate::testing::{Bench, at_once, keyed, offer, principal, refusal_of, request, task_of};

#[tokio::test]
async fn waiting_send_gets_its_stored_task_and_never_an_unconfirmed_end() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let first = bench.send(request("a", "hi"), &principal("ann"));
    let second = bench.send(request("a", "hi"), &principal("ann"));
    let (one, two) = (bench.assigned().await, bench.assigned().await);
    bench.hold_writes().await;
    bench.complete(&one, 1);
    bench.core.answer_without_store(&mut []);
    for (answer, assign) in [(first, one), (second, two)] {
        let task = task_of(answer).await;
        let state = task.status.as_ref().unwrap().state();
        assert_eq!((task.id, state), (assign.task_id, TaskState::Working));
        assert!(task.artifacts.is_empty(), "unconfirmed artifacts are not shown");
    }
}

#[tokio::test]
async fn unstored_send_fails_with_an_unknown_outcome() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    bench.hold_writes().await;
    let (ann, bob) = (principal("ann"), keyed("bob", "k"));
    let bare = [request("a", "hi"), at_once(request("a", "hi"))];
    let bare: Vec<_> = bare.into_iter().map(|request| bench.send(request, &ann)).collect();
    let with_key = bench.send(at_once(request("a", "hi")), &bob);
    // A send with a key reads the store before it is queued.
    while bench.core.lock().tasks.ids().count() < 3 {
        tokio::task::yield_now().await;
    }
    bench.core.answer_without_store(&mut []);
    for answer in bare {
        let failure = refusal_of(answer).await;
        assert_eq!((&*failure.reason, failure.retryable), ("STORE_UNAVAILABLE", Some(false)));
        assert!(failure.public_message.contains("look for the task"), "{failure}");
    }
    let failure = refusal_of(with_key).await;
    assert_eq!((&*failure.reason, failure.retryable), ("STORE_UNAVAILABLE", Some(true)));
    assert!(failure.public_message.contains("the same Idempotency-Key"), "{failure}");
    let advice = advise(&failure, Reader::Caller).text;
    assert!(advice.contains("send again with the same Idempotency-Key"), "{advice}");
    // Nothing more is taken in, and it says that nothing was done.
    let failure = refusal_of(bench.send(request("a", "hi"), &ann)).await;
    assert_eq!((&*failure.reason, failure.retryable), ("STORE_UNAVAILABLE", None));
    assert!(failure.public_message.contains("this call changed nothing"), "{failure}");
    // It was queued all the same, and its key finds it.
    bench.core.store_is_back();
    bench.write_on();
    let task = task_of(bench.send(at_once(request("a", "hi")), &bob)).await;
    assert_eq!(bench.count().await, 3, "{task:?}");
}

#[tokio::test]
async fn unstored_stream_fails_with_an_unknown_outcome() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    bench.hold_writes().await;
    let callers = [(principal("ann"), false), (keyed("bob", "k"), true)];
    let streams = callers.map(|(caller, has_key)| {
        let core = Arc::clone(&bench.core);
        let begin = async move { core.stream(request("a", "hi"), &caller).await.err() };
        (tokio::spawn(begin), has_key)
    });
    while bench.core.lock().tasks.ids().count() < streams.len() {
        tokio::task::yield_now().await;
    }
    bench.core.answer_without_store(&mut []);
    for (stream, has_key) in streams {
        let failure = Failure::from(stream.await.unwrap().expect("send is not stored"));
        assert_eq!(failure.row(), &reason::STORE_UNAVAILABLE);
        assert_eq!(failure.retryable, Some(has_key), "{failure}");
        assert!(failure.public_message.contains("it is unknown whether"), "{failure}");
    }
}

#[tokio::test]
async fn attempt_that_waits_for_a_child_gets_no_early_answer() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let parent = bench.root("a").await;
    let calling = bench.calling(&parent, "1");
    let answer = bench.send(request("a", "hi"), &calling);
    let child = bench.assigned().await;
    bench.hold_writes().await;
    bench.core.answer_without_store(&mut []);
    bench.core.store_is_back();
    bench.write_on();
    bench.report(&child, 1, report::Body::Completed(faultline_proto::v1::Completed::default()));
    let task = task_of(answer).await;
    assert_eq!(task.status.unwrap().state(), TaskState::Completed);
}

#[tokio::test]
async fn first_report_waiter_gets_its_stored_task_while_the_report_is_not_stored() {
    let messages = AgentOffer { may_answer_with_message: true, ..offer("a") };
    let mut bench = Bench::start(vec![messages]).await;
    let answer = bench.send(at_once(request("a", "hi")), &principal("ann"));
    let assign = bench.assigned().await;
    bench.hold_writes().await;
    bench.complete(&assign, 1);
    bench.core.answer_without_store(&mut []);
    let task = task_of(answer).await;
    let state = task.status.as_ref().unwrap().state();
    assert_eq!((task.id, state), (assign.task_id, TaskState::Working));
}

#[tokio::test]
async fn store_that_answers_after_its_silence_is_used_again() {
    let bench = Bench::start(vec![offer("a")]).await;
    let silent = async {
        while !bench.core.lock().is_away {
            tokio::task::yield_now().await;
        }
    };
    let mut fast = interval(Duration::from_millis(1));
    bench.core.await_store(&mut fast, silent, &mut []).await;
    assert!(!bench.core.lock().is_away, "the store answered");
}
