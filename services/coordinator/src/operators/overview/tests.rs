//! Tests of the view of one task: its delegations, and the reason for which it was not retried.

use std::time::Duration;

use faultline_proto::{
    a2a::TaskState,
    reason,
    v1::{Interrupt, NotRetried, report},
};

use super::*;
use crate::{
    AgentPolicy, Config,
    testing::{Bench, offer, principal},
};

async fn inspect(bench: &Bench, id: &str, caller: &Caller) -> InspectResponse {
    bench.core.flushed().await;
    let request = InspectRequest { task_id: id.to_owned() };
    bench.core.inspect(request, caller).await.unwrap()
}

#[tokio::test]
async fn inspect_shows_children_and_end_time() {
    let mut bench = Bench::start(["a", "b", "c"].map(offer).into()).await;
    let ann = principal("ann");
    let root = bench.root("a").await;
    let first = bench.child(&root, "one", "b").await;
    let apart = bench.calling_detached(&root, "two");
    let second = bench.child_of(&apart, "c").await;
    let below = bench.child(&first, "one", "c").await;
    bench.complete(&below, 1);
    bench.complete(&first, 1);
    let shown = inspect(&bench, &root.task_id, &ann).await;
    let (working, completed) = (TaskState::Working, TaskState::Completed);
    let child = |id: &str, agent: &str, key: &str, detached, state: TaskState| v1::Child {
        task_id: id.to_owned(),
        agent: agent.to_owned(),
        key: key.to_owned(),
        detached,
        state: state as i32,
    };
    let expected = [
        child(&first.task_id, "b", "one", false, completed),
        child(&second.task_id, "c", "two", true, working),
    ];
    assert_eq!((shown.children.as_slice(), shown.ended), (&expected[..], None));
    let shown = inspect(&bench, &first.task_id, &ann).await;
    assert_eq!(shown.children, [child(&below.task_id, "c", "one", false, completed)]);
    assert_eq!(shown.ended, shown.task.unwrap().status.unwrap().timestamp);
    assert_eq!(shown.parent.unwrap().task_id, root.task_id);
    assert!(inspect(&bench, &second.task_id, &ann).await.children.is_empty());
}

#[tokio::test]
async fn inspect_omits_children_outside_the_scope() {
    let mut bench = Bench::start(["a", "b", "c"].map(offer).into()).await;
    let root = bench.root("a").await;
    bench.child(&root, "one", "b").await;
    let seen = bench.child(&root, "two", "c").await;
    let agents = vec!["a".to_owned(), "c".to_owned()];
    let some = Caller { agents, ..principal("ann") };
    let shown = inspect(&bench, &root.task_id, &some).await;
    let ids: Vec<_> = shown.children.iter().map(|child| &child.task_id).collect();
    assert_eq!(ids, [&seen.task_id]);
    let operator = Caller { operates: true, ..principal("olga") };
    assert_eq!(inspect(&bench, &root.task_id, &operator).await.children.len(), 2);
}

#[tokio::test]
async fn inspect_shows_the_reason_for_no_further_retry() {
    let policy = |retries, retry_budget| AgentPolicy { retries, retry_budget, ..<_>::default() };
    let own = [("once", policy(Some(0), None)), ("poor", policy(None, Some(1)))];
    let agents = own.into_iter().map(|(name, policy)| (name.to_owned(), policy)).collect();
    let config = Config { agents, ..Config::default() };
    let offers = ["a", "once", "poor"].map(offer);
    let mut bench = Bench::start_with(config, offers.clone().into()).await;
    let olga = Caller { operates: true, ..principal("olga") };
    let hurried = Caller { task_timeout: Some(Duration::from_millis(500)), ..principal("ann") };
    let new = |reason| Failure::new(reason);
    let hour = Duration::from_secs(3601);
    let mut ended = Vec::new();
    for (agent, caller, failure, why) in [
        ("a", principal("ann"), new(&reason::INVALID_ARGUMENT), NotRetried::Reason),
        (
            "a",
            principal("ann"),
            new(&reason::RATE_LIMITED).with_retry_after(hour),
            NotRetried::Pause,
        ),
        ("once", principal("ann"), new(&reason::UNAVAILABLE), NotRetried::Spent),
        ("poor", principal("ann"), new(&reason::UNAVAILABLE), NotRetried::Budget),
        ("a", hurried, new(&reason::UNAVAILABLE), NotRetried::Deadline),
        ("a", principal("ann"), new(&reason::INTERNAL).wrap("b", "t", "c"), NotRetried::Below),
    ] {
        let assign = bench.child_of(&caller, agent).await;
        bench.report(&assign, 1, report::Body::Failed(failure.into_record()));
        ended.push((assign.task_id, why));
    }
    let assign = bench.root("a").await;
    let asked = Interrupt { key: "q".into(), ..Interrupt::default() };
    bench.report(&assign, 1, report::Body::Ask(asked));
    let gone = new(&reason::UNAVAILABLE).into_record();
    bench.report(&assign, 2, report::Body::Failed(gone));
    ended.push((assign.task_id, NotRetried::Asking));
    let done = bench.root("a").await;
    bench.complete(&done, 1);
    ended.push((done.task_id, NotRetried::Unspecified));
    // It is stored, not found out again.
    let bench = bench.restart(offers.into()).await;
    for (task, why) in ended {
        assert_eq!(inspect(&bench, &task, &olga).await.not_retried(), why);
    }
}
