//! Tests of the change feed: each change arrives once and in time, and a slow watcher delays no
//! other.

use crate::engine::change_feed::Changes;
use crate::engine::change_feed::Feed;
use faultline_proto::v1::Event;
use faultline_proto::v1::event::Body;
use faultline_proto::{
    a2a::{Message, TaskState},
    v1::{TaskFilter, TaskSummary, report},
};

use super::*;
use crate::testing::{Bench, at_once, offer, principal, request, soon, task_of};

fn operator() -> Caller {
    Caller { operates: true, ..principal("olga") }
}

async fn watch(bench: &Bench, filter: TaskFilter) -> Watching {
    let request = WatchRequest { filter: Some(filter) };
    let mut watching = bench.core.changes(request, &operator()).unwrap();
    assert_eq!(soon(watching.next()).await, Some(WatchResponse::default()), "it begins empty");
    watching
}

fn only(told: Option<WatchResponse>) -> TaskSummary {
    let mut told = told.unwrap();
    assert_eq!((told.tasks.len(), told.missed, told.gone.len()), (1, false, 0), "{told:?}");
    told.tasks.remove(0)
}

#[tokio::test]
async fn repeated_changes_of_a_task_are_one_row() {
    let mut bench = Bench::start(vec![offer("a"), offer("b")]).await;
    let agent = "b".to_owned();
    let mut some = watch(&bench, TaskFilter { agent, ..TaskFilter::default() }).await;
    let mut all = watch(&bench, TaskFilter::default()).await;
    let started = Instant::now();
    let assign = bench.root("a").await;
    bench.complete(&assign, 1);
    let told = only(soon(all.next()).await);
    assert_eq!((told.state(), told.task_id), (TaskState::Completed, assign.task_id));
    let other = bench.root("b").await;
    assert_eq!(only(soon(all.next()).await).task_id, other.task_id);
    assert!(started.elapsed() >= limits::WATCH_INTERVAL, "not more than so often");
    assert_eq!(only(soon(some.next()).await).task_id, other.task_id, "the only one of its agent");
}

#[tokio::test]
async fn task_that_leaves_the_filter_is_listed_as_gone() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let states = |state: TaskState| TaskFilter { states: vec![state as i32], ..<_>::default() };
    let mut working = watch(&bench, states(TaskState::Working)).await;
    let mut failed = watch(&bench, states(TaskState::Failed)).await;
    let assign = bench.root("a").await;
    assert_eq!(only(soon(working.next()).await).task_id, assign.task_id);
    bench.complete(&assign, 1);
    let told = soon(working.next()).await.unwrap();
    assert_eq!((told.tasks.len(), told.gone), (0, vec![assign.task_id]));
    let doomed = bench.root("a").await;
    let failure = faultline_proto::Failure::new(&faultline_proto::reason::INVALID_ARGUMENT);
    bench.report(&doomed, 1, report::Body::Failed(failure.into_record()));
    let told = only(soon(failed.next()).await);
    assert_eq!((told.task_id, told.reason.as_str()), (doomed.task_id, "INVALID_ARGUMENT"));
    assert_eq!(told.origin, "a");
}

#[tokio::test]
async fn erased_task_is_listed_as_gone() {
    let mut talker = offer("a");
    talker.may_answer_with_message = true;
    let mut bench = Bench::start(vec![talker]).await;
    let mut all = watch(&bench, TaskFilter::default()).await;
    let answer = bench.send(request("a", "hi"), &principal("ann"));
    let assign = bench.assigned().await;
    assert_eq!(only(soon(all.next()).await).task_id, assign.task_id);
    bench.report(&assign, 1, report::Body::Message(Message::default()));
    soon(answer).await.unwrap().unwrap();
    assert_eq!(soon(all.next()).await.unwrap().gone, [assign.task_id]);
}

#[tokio::test]
async fn slow_watcher_gets_missed_and_continues() {
    let bench = Bench::start(vec![offer("a")]).await;
    let mut slow = watch(&bench, TaskFilter::default()).await;
    let told = |missed| Changes { rows: Vec::new(), gone: vec![TaskId::new()], missed };
    for _ in 0..=limits::WATCH_BATCHES_MAX {
        assert!(bench.core.changed.send(Arc::new(told(false))).is_ok(), "nobody waits for it");
    }
    let missed = WatchResponse { missed: true, ..WatchResponse::default() };
    assert_eq!(soon(slow.next()).await, Some(missed.clone()));
    let (one, two) = (told(false), told(false));
    let expected: Vec<_> = one.gone.iter().chain(&two.gone).map(TaskId::to_string).collect();
    bench.core.changed.send(Arc::new(one)).ok();
    bench.core.changed.send(Arc::new(two)).ok();
    assert_eq!(soon(slow.next()).await.unwrap().gone, expected, "the rest comes in one");
    bench.core.changed.send(Arc::new(told(true))).ok();
    assert_eq!(soon(slow.next()).await, Some(missed));
}

#[tokio::test]
async fn feed_without_watchers_keeps_nothing() {
    let bench = Bench::start(vec![offer("a")]).await;
    task_of(bench.send(at_once(request("a", "hi")), &principal("ann"))).await;
    assert!(bench.core.lock().feed.changed.is_empty());
    let watching = watch(&bench, TaskFilter::default()).await;
    assert!(bench.core.lock().feed.watched);
    drop(watching);
    let at_rest = async {
        while bench.core.lock().feed.watched {
            tokio::task::yield_now().await;
        }
    };
    soon(at_rest).await;
}

#[test]
fn artifact_events_are_no_change_of_the_row() {
    let mut feed = Feed { watched: true, ..Feed::default() };
    let event = |body| Event { body: Some(body), ..Event::default() };
    let chunk = || event(Body::Artifact(Default::default()));
    feed.note_step(TaskId::new(), &[chunk(), event(Body::Checkpointed(Default::default()))]);
    feed.note_step(TaskId::new(), &[]);
    assert!(feed.changed.is_empty());
    feed.note_step(TaskId::new(), &[chunk(), event(Body::Ended(Default::default()))]);
    assert_eq!(feed.changed.len(), 1);
}

#[test]
fn change_feed_is_bounded() {
    let mut feed = Feed { watched: true, ..Feed::default() };
    let ids: Vec<_> = (0..=limits::WATCH_TASKS_MAX).map(|_| TaskId::new()).collect();
    ids[1..].iter().for_each(|id| feed.note(*id));
    feed.note(ids[1]);
    assert!(!feed.missed, "one that is there already is no news");
    feed.note(ids[0]);
    let (changed, missed) = feed.take();
    assert_eq!((changed.len(), missed), (limits::WATCH_TASKS_MAX, true));
    assert!(!feed.missed && feed.changed.is_empty());
    feed.lose();
    assert!(feed.missed, "who watches when the store fails has missed something");
}
