//! Fan-out: results, failures and cancellation of branches.

use std::collections::BTreeMap;

use faultline_proto::{
    Failure,
    a2a::{self, TaskState},
    reason,
    reason::Reason,
    v1::{Origin, Severity, report::Body, to_worker},
};

use crate::tests::{
    context::{failed, start},
    delegation::{child, completed, end, record},
    endpoint::SentMessage,
    fake_coordinator::{Connection, Harness, Task, soon},
};
use crate::{Content, Context, Error, Fanout};

/// Starts an agent that fans out to a, b and c, up to its calls.
async fn fanning(how: fn(Fanout<'_>) -> Fanout<'_>) -> (Harness, Connection, Task) {
    let (harness, mut conn) = start(move |cx: Context| async move {
        let fanned = how(cx.fanout("please").to("a").to("b").to("c")).await?;
        let texts: Vec<_> =
            fanned.results.iter().map(|b| format!("{}={}", b.agent, b.made.text())).collect();
        let failures: Vec<_> =
            fanned.failures.iter().map(|(agent, f)| format!("{agent}:{}", f.reason)).collect();
        assert_eq!(fanned.degraded, !failures.is_empty());
        cx.artifact("made", [texts, failures].concat().join(" ")).await
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await, "the slot is released first");
    (harness, conn, task)
}

/// The calls of all branches, by agent.
async fn branches(harness: &mut Harness) -> BTreeMap<String, SentMessage> {
    let mut sent = BTreeMap::new();
    for _ in 0..3 {
        let branch = harness.coordinator.sent().await;
        sent.insert(branch.request.tenant.clone(), branch);
    }
    sent
}

fn broken(agent: &str, reason: &'static Reason) -> a2a::Task {
    let origin = Origin { agent: agent.into(), ..Origin::default() };
    record(&Failure::new(reason).because("no").born_at(origin), TaskState::Failed)
}

fn running(id: &str) -> a2a::Task {
    a2a::Task { id: id.into(), ..child(TaskState::Working, None) }
}

/// The artifact of the agent, and the reasons that it tolerated before.
fn made(bodies: &[Body]) -> (String, Vec<&str>) {
    let mut tolerated = Vec::new();
    for body in bodies {
        match body {
            Body::Tolerated(failure) => {
                assert_eq!(failure.severity(), Severity::Recoverable);
                tolerated.push(failure.reason.as_str());
            }
            Body::Artifact(chunk) => {
                let parts = &chunk.artifact.as_ref().unwrap().parts;
                return (crate::sdk::content::text_parts(parts).collect(), tolerated);
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("nothing was made: {bodies:?}")
}

#[tokio::test]
async fn branches_have_stable_keys_and_results_keep_their_order() {
    let (mut harness, mut conn, task) = fanning(|f| f.all()).await;
    let mut sent = branches(&mut harness).await;
    for (agent, at) in [("a", 0), ("b", 1), ("c", 2)] {
        let branch = &sent[agent];
        assert_eq!(branch.header("faultline-key").unwrap(), format!("fanout-1/{at}"));
        assert_eq!(branch.header("faultline-task"), Some("token-1"));
        assert_eq!(branch.message().parts, Content::from("please").0);
    }
    // The results are in the order of the branches, not of their ends.
    for (agent, text) in [("c", "33"), ("a", "11"), ("b", "22")] {
        sent.remove(agent).unwrap().answer(Ok(completed(text)));
    }
    let bodies = end(&mut conn, &task).await;
    assert_eq!(made(&bodies), ("a=11 b=22 c=33".to_owned(), vec![]));
}

#[tokio::test]
async fn failed_branch_is_tolerated_with_enough_results() {
    let (mut harness, mut conn, task) = fanning(|f| f.at_least(2)).await;
    let mut sent = branches(&mut harness).await;
    sent.remove("b").unwrap().answer(Ok(broken("b", &reason::RATE_LIMITED)));
    // By the end of another task the failure has arrived too.
    let other = conn.assign("echo", "x").await;
    conn.until_final(&other).await;
    sent.remove("c").unwrap().answer(Ok(completed("33")));
    sent.remove("a").unwrap().answer(Ok(completed("11")));
    let bodies = end(&mut conn, &task).await;
    let expected = ("a=11 c=33 b:RATE_LIMITED".to_owned(), vec!["RATE_LIMITED"]);
    assert_eq!(made(&bodies), expected);
}

#[tokio::test]
async fn first_result_cancels_the_other_branches() {
    let (mut harness, mut conn, task) = fanning(|f| f.first()).await;
    let mut sent = branches(&mut harness).await;
    sent.remove("b").unwrap().answer(Ok(completed("22")));
    for loser in sent.into_values() {
        soon(loser.dropped()).await;
    }
    // The remaining tasks are found by their keys, without waiting for their ends.
    for _ in 0..2 {
        let again = harness.coordinator.sent().await;
        let agent = again.request.tenant.clone();
        let key = again.header("faultline-key").unwrap();
        assert_eq!(key, if agent == "a" { "fanout-1/0" } else { "fanout-1/2" });
        assert!(again.request.configuration.as_ref().unwrap().return_immediately);
        again.answer(Ok(running(&format!("task-{agent}"))));
    }
    let mut cancelled =
        [harness.coordinator.cancelled().await, harness.coordinator.cancelled().await];
    cancelled.sort();
    assert_eq!(cancelled, ["task-a", "task-c"]);
    let bodies = end(&mut conn, &task).await;
    assert_eq!(made(&bodies), ("b=22".to_owned(), vec![]), "a cancelled branch is no failure");
}

#[tokio::test]
async fn too_few_results_fail_and_name_each_branch() {
    let (mut harness, mut conn, task) = fanning(|f| f.at_least(2)).await;
    let mut sent = branches(&mut harness).await;
    sent.remove("a").unwrap().answer(Ok(completed("11")));
    sent.remove("b").unwrap().answer(Ok(broken("b", &reason::RATE_LIMITED)));
    sent.remove("c").unwrap().answer(Err(Failure::new(&reason::AGENT_NOT_FOUND)));
    let bodies = end(&mut conn, &task).await;
    let failure = failed(bodies.last());
    assert_eq!(failure.reason, "MIN_RESULTS_NOT_MET");
    assert_eq!(failure.public_message, "Only 1/3 agents responded. Minimum required: 2");
    assert_eq!((failure.code, failure.retryable), (14, Some(false)), "codes differ; one may not");
    assert_eq!(failure.origin.as_ref().unwrap().agent, "under-test");
    let aggregate = failure.aggregate.as_ref().unwrap();
    assert_eq!((aggregate.required, aggregate.succeeded, aggregate.asked), (2, 1, 3));
    let reasons: Vec<_> =
        aggregate.branches.iter().map(|b| (b.agent.as_str(), b.reason.as_str())).collect();
    assert_eq!(reasons, [("b", "RATE_LIMITED"), ("c", "AGENT_NOT_FOUND")]);
    assert_eq!(bodies.len(), 1, "nothing was tolerated: {bodies:?}");
}

#[tokio::test]
async fn failed_branch_keeps_the_results_of_the_others() {
    let (mut harness, mut conn) = start(|cx: Context| async move {
        let few = cx.fanout("please").to("a").to("b").to("c").await.unwrap_err();
        let made: Vec<_> = few.results.iter().map(|b| (&*b.agent, b.made.text())).collect();
        assert_eq!(made, [("a", "11".to_owned()), ("c", "33".to_owned())]);
        assert_eq!(few.failures[0].0, "b");
        Err::<(), Error>(few.into())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await, "the slot is released first");
    let mut sent = branches(&mut harness).await;
    sent.remove("b").unwrap().answer(Ok(broken("b", &reason::RATE_LIMITED)));
    // By the end of another task the failure has arrived too.
    let other = conn.assign("echo", "x").await;
    conn.until_final(&other).await;
    sent.remove("a").unwrap().answer(Ok(completed("11")));
    sent.remove("c").unwrap().answer(Ok(completed("33")));
    let bodies = end(&mut conn, &task).await;
    let failure = failed(bodies.last());
    assert_eq!(failure.public_message, "Only 2/3 agents responded. Minimum required: 3");
    assert_eq!((failure.code, failure.retryable), (8, Some(true)), "as all that failed");
}

#[tokio::test]
async fn branch_with_an_unknown_outcome_makes_the_fan_out_not_retryable() {
    for (row, retryable) in [
        (&reason::UNAVAILABLE, true),
        (&reason::TASK_TIMEOUT, false),
        (&reason::RECONNECT_EXHAUSTED, false),
    ] {
        let (mut harness, mut conn) = start(|cx: Context| async move {
            let few = cx.fanout("please").to("a").to("b").to("c").await.unwrap_err();
            Err::<(), Error>(few.into())
        })
        .await;
        let task = conn.assign("under-test", "").await;
        assert!(conn.slot_update(&task).await, "the slot is released first");
        let mut sent = branches(&mut harness).await;
        sent.remove("a").unwrap().answer(Ok(broken("a", &reason::RATE_LIMITED)));
        sent.remove("b").unwrap().answer(Ok(broken("b", row)));
        sent.remove("c").unwrap().answer(Ok(completed("33")));
        let bodies = end(&mut conn, &task).await;
        let failure = failed(bodies.last());
        assert_eq!(failure.retryable, Some(retryable), "{}", row.name);
    }
}

#[tokio::test]
async fn stop_drops_all_branches_at_once() {
    let (mut harness, mut conn, task) = fanning(|f| f.all()).await;
    let sent = branches(&mut harness).await;
    conn.cancel(&task).await;
    for branch in sent.into_values() {
        soon(branch.dropped()).await;
    }
    let bodies = conn.until_final(&task).await;
    assert!(matches!(bodies.as_slice(), [Body::Stopped(_)]), "{bodies:?}");
}

#[tokio::test]
async fn next_attempt_joins_the_same_branches() {
    let (mut harness, mut conn, task) = fanning(|f| f.all()).await;
    let first = branches(&mut harness).await;
    conn.cancel(&task).await;
    conn.until_final(&task).await;
    drop(first);

    let task = task.successor();
    conn.send(to_worker::Body::Assign(task.assign())).await;
    assert!(conn.slot_update(&task).await);
    for (at, (_, branch)) in branches(&mut harness).await.into_iter().enumerate() {
        assert_eq!(branch.header("faultline-key").unwrap(), format!("fanout-1/{at}"));
        assert_eq!(branch.header("faultline-task"), Some("token-2"));
        branch.answer(Ok(completed("11")));
    }
    let bodies = end(&mut conn, &task).await;
    assert_eq!(made(&bodies).0, "a=11 b=11 c=11");
}

#[tokio::test]
async fn branch_cancelled_by_an_earlier_attempt_is_no_failure() {
    let (mut harness, mut conn, task) = fanning(|f| f.first()).await;
    let mut sent = branches(&mut harness).await;
    for loser in ["a", "c"] {
        let cancelled = Failure::new(&reason::CANCELLED).with_cancellation("parent", "");
        let cancelled = record(&cancelled, TaskState::Canceled);
        sent.remove(loser).unwrap().answer(Ok(cancelled));
    }
    let other = conn.assign("echo", "x").await;
    conn.until_final(&other).await;
    sent.remove("b").unwrap().answer(Ok(completed("22")));
    // Both tasks have ended, so they are only looked up.
    for _ in 0..2 {
        harness.coordinator.sent().await.answer(Ok(child(TaskState::Canceled, None)));
    }
    let bodies = end(&mut conn, &task).await;
    assert_eq!(made(&bodies), ("b=22".to_owned(), vec![]), "nothing was tolerated");
}

#[tokio::test]
async fn invalid_fanout_is_rejected_before_anything_is_sent() {
    type How = fn(&Context) -> Fanout<'_>;
    let cases: [(How, &str); 3] = [
        (|cx| cx.fanout("x"), "at least one agent"),
        (|cx| cx.fanout("x").to("a").at_least(2), "1 agents cannot have 2 results"),
        (|cx| (0..65).fold(cx.fanout("x"), |f, _| f.to("a")), "at most 64 agents, not 65"),
    ];
    for (how, says) in cases {
        let (_harness, mut conn) = start(move |cx: Context| async move {
            how(&cx).await?;
            Ok::<(), Error>(())
        })
        .await;
        let task = conn.assign("under-test", "").await;
        let bodies = conn.until_final(&task).await;
        let failure = failed(bodies.last());
        assert_eq!(failure.reason, "INVALID_ARGUMENT");
        assert!(failure.public_message.contains(says), "{failure:?}");
    }
}
