//! Tests of operator queries and of the errors for invalid ones.

use faultline_proto::{
    Failure, json, reason,
    v1::{Checkpointed, InspectRequest, Origin, report},
};

use super::*;
use crate::testing::{Bench, offer, principal};

fn operator() -> Caller {
    Caller { operates: true, ..principal("olga") }
}

/// The field that is wrong.
fn field<T: std::fmt::Debug>(refused: Result<T, Error>) -> String {
    Failure::from(refused.unwrap_err()).violations[0].field.clone()
}

#[test]
fn activity_buckets_are_aligned_and_complete() {
    let at = |ms| Some(timestamp(ms));
    for (from, width, expected) in [
        (at(10_500), 1000, (10_000, 1000, 11)),
        (at(20_999), 1000, (20_000, 1000, 1)),
        (at(-1), 60_000, (-60_000, 60_000, 2)),
        (None, 0, (-3_600_000, 60_000, 61)),
    ] {
        let over = buckets(from.as_ref(), width, 20_999).unwrap();
        assert_eq!((over.from, over.width, over.count), expected);
        assert_eq!(over.at(20_999), Some(over.count - 1), "now is in the last");
        assert_eq!((over.at(over.from), over.at(over.from - 1)), (Some(0), None));
    }
    for (from, width, wrong) in [
        (at(0), 999, "bucketMs"),
        (at(-500_000), 1000, "bucketMs"),
        (at(Millis::MIN / 2), 1000, "bucketMs"),
        (at(21_000), 1000, "from"),
    ] {
        assert_eq!(field(buckets(from.as_ref(), width, 20_999)), wrong);
    }
}

#[tokio::test]
async fn invalid_query_is_rejected_with_its_field() {
    let bench = Bench::start(vec![offer("a")]).await;
    let tasks = async |request: TasksRequest| field(bench.core.tasks(request, &operator()).await);
    let page = |page_size| TasksRequest { page_size, ..TasksRequest::default() };
    assert_eq!(tasks(page(501)).await, "pageSize");
    assert_eq!(tasks(page(-1)).await, "pageSize");
    let token = TasksRequest { page_token: "5.x".into(), ..TasksRequest::default() };
    assert_eq!(tasks(token).await, "pageToken");
    for state in [0, 99] {
        let filter = Some(TaskFilter { states: vec![2, state], ..TaskFilter::default() });
        assert_eq!(tasks(TasksRequest { filter, ..<_>::default() }).await, "filter.states");
    }
    let events = EventsRequest { page_size: 501, task_id: TaskId::new().to_string(), after: 0 };
    assert_eq!(field(bench.core.events(events, &operator()).await), "pageSize");
    for after in [1 << 63, u64::MAX] {
        let events = EventsRequest { after, task_id: TaskId::new().to_string(), page_size: 0 };
        assert_eq!(field(bench.core.events(events, &operator()).await), "after");
    }
}

#[tokio::test]
async fn worker_names_are_hidden_from_tenants() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let assign = bench.root("a").await;
    let failure = |text: &str| {
        let origin = Origin { agent: "a".into(), service: "worker".into(), worker: "w-1".into() };
        Failure::new(&reason::INTERNAL).because(text).born_at(origin).into_record()
    };
    bench.report(&assign, 1, report::Body::Tolerated(failure("one")));
    bench.report(&assign, 2, report::Body::Failed(failure("two")));
    bench.core.flushed().await;
    let task_id = assign.task_id;
    let read = async |caller: &Caller| {
        let request = EventsRequest { task_id: task_id.clone(), ..EventsRequest::default() };
        let events = bench.core.events(request, caller).await.unwrap();
        let request = InspectRequest { task_id: task_id.clone() };
        let inspect = bench.core.inspect(request, caller).await.unwrap();
        format!("{} {}", json::to_string(&events), json::to_string(&inspect))
    };
    let (id, seen) = (bench.worker.to_string(), read(&operator()).await);
    assert_eq!((seen.matches("w-1").count(), seen.matches(&id).count()), (4, 2), "{seen}");
    let seen = read(&principal("ann")).await;
    assert!(!seen.contains("w-1") && !seen.contains(&id), "{seen}");
    assert!(seen.contains(r#""assigned":{"attempt":1}"#), "{seen}");
    assert!(seen.contains(r#""origin":{"agent":"a","service":"worker"}"#), "{seen}");
}

#[tokio::test]
async fn queries_over_all_principals_need_the_operate_scope() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let (ann, ben) = (principal("ann"), principal("ben"));
    let task = bench.root("a").await.task_id;
    let refusals = [
        bench.core.tasks(<_>::default(), &ann).await.err(),
        bench.core.activity(<_>::default(), &ann).await.err(),
        bench.core.failures(<_>::default(), &ann).await.err(),
        bench.core.changes(<_>::default(), &ann).err(),
        bench.core.operator_cancel(<_>::default(), &ann).await.err(),
        bench.core.operator_answer(<_>::default(), &ann).await.err(),
    ];
    for refused in refusals {
        assert_eq!(Failure::from(refused.unwrap()).row(), &reason::INSUFFICIENT_SCOPE);
    }
    bench.core.flushed().await;
    let events = || EventsRequest { task_id: task.clone(), ..EventsRequest::default() };
    assert_eq!(bench.core.events(events(), &ann).await.unwrap().events.len(), 2);
    assert_eq!(bench.core.events(events(), &operator()).await.unwrap().events.len(), 2);
    let none = Failure::from(bench.core.events(events(), &ben).await.unwrap_err());
    assert_eq!(none.row(), &reason::TASK_NOT_FOUND);
}

#[tokio::test]
async fn checkpoint_content_is_not_shown() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let assign = bench.root("a").await;
    bench.report(&assign, 1, report::Body::Checkpoint("secret".into()));
    bench.complete(&assign, 2);
    bench.core.flushed().await;
    let request = EventsRequest { task_id: assign.task_id, after: 2, page_size: 1 };
    let page = bench.core.events(request, &operator()).await.unwrap();
    let event = page.events[0].event.clone().unwrap();
    assert_eq!((page.events[0].seq, page.more, event.time.is_some()), (3, true, true));
    assert_eq!(event.body, Some(event::Body::Checkpointed(Checkpointed::default())));
}
