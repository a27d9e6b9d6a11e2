//! Life cycle of attempts and connections: acknowledgement, reconnect, flow control and drain.

use std::{sync::Arc, time::Duration};

use faultline_proto::{
    Failure, reason,
    v1::{self, from_worker, report::Body},
};
use tokio::sync::Semaphore;

use super::fake_coordinator::{FakeCoordinator, Harness, soon, start_worker};
use crate::{Agent, Context, Error, Offer, ServiceError};

#[tokio::test]
async fn echo_costs_one_message_each_way() {
    let (mut harness, mut conn) = Harness::start(vec![]).await;
    assert_eq!(conn.hello.name, "test-worker");
    assert_eq!(conn.hello.slots, 64);
    let names: Vec<_> = conn.hello.agents.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["echo", "script"]);

    let task = conn.assign("echo", "hello").await;
    let reports = conn.reports().await;
    assert_eq!(reports.iter().map(|r| r.number).collect::<Vec<_>>(), [1, 2]);
    assert!(reports.iter().all(|r| r.task_id == task.id.to_string() && r.attempt == 1));
    let [Some(Body::Artifact(chunk)), Some(Body::Completed(completed))] =
        [reports[0].body.clone(), reports[1].body.clone()]
    else {
        panic!("{reports:?}")
    };
    assert_eq!(chunk.artifact.unwrap().parts, crate::Content::from("hello").0);
    assert!(!chunk.append && chunk.last_chunk && completed.message.is_none());

    // An attempt is held until its final report is acknowledged.
    drop(conn);
    let conn = harness.coordinator.attached().await;
    assert_eq!(conn.hello.held, [task.held()]);
    let resume = vec![task.ack(2)];
    conn.welcome(v1::Welcome { resume, ..v1::Welcome::default() }).await;
    drop(conn);
    assert_eq!(harness.coordinator.attached().await.hello.held, []);
}

/// Reports one status for each permit.
struct StatusAgent(Arc<Semaphore>);

impl Agent for StatusAgent {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        for n in 1.. {
            self.0.acquire().await?.forget();
            cx.status(format!("status {n}")).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn reconnect_resends_exactly_the_unacknowledged_reports() {
    let permits = Arc::new(Semaphore::new(0));
    let offer = Offer::new("counting", StatusAgent(Arc::clone(&permits)));
    let (mut harness, mut conn) = Harness::start(vec![offer]).await;
    let task = conn.assign("counting", "").await;
    let mut before = Vec::new();
    for _ in 0..3 {
        permits.add_permits(1);
        before.extend(conn.reports().await);
    }
    conn.ack(&task, 1).await;
    let worker_id = conn.hello.worker_id.clone();

    // Without a connection the agent continues.
    drop(conn);
    permits.add_permits(2);
    let mut conn = harness.coordinator.attached().await;
    assert_eq!(conn.hello.worker_id, worker_id);
    assert_eq!(conn.hello.held, [task.held()]);
    let resume = vec![task.ack(1)];
    conn.welcome(v1::Welcome { heartbeat_ms: 500, resume, ..v1::Welcome::default() }).await;
    let mut again = conn.reports().await;
    while again.len() < 4 {
        again.extend(conn.reports().await);
    }
    assert_eq!(again[..2], before[1..]);
    assert_eq!(again.iter().map(|r| r.number).collect::<Vec<_>>(), [2, 3, 4, 5]);

    permits.add_permits(1);
    assert_eq!(conn.reports().await[0].number, 6);
}

/// Signals its start and its drop.
struct DropAgent(Arc<Semaphore>, Arc<Semaphore>);

impl Agent for DropAgent {
    async fn run(&self, _: &Context) -> Result<(), Error> {
        struct OnDrop(Arc<Semaphore>);

        impl Drop for OnDrop {
            fn drop(&mut self) {
                self.0.add_permits(1);
            }
        }

        let _on_drop = OnDrop(Arc::clone(&self.1));
        self.0.add_permits(1);
        std::future::pending().await
    }
}

#[tokio::test]
async fn attempt_that_is_not_resumed_is_dropped_without_a_report() {
    let begun = Arc::new(Semaphore::new(0));
    let dropped = Arc::new(Semaphore::new(0));
    let offer = Offer::new("watched", DropAgent(Arc::clone(&begun), Arc::clone(&dropped)));
    let (mut harness, conn) = Harness::start(vec![offer]).await;
    let task = conn.assign("watched", "").await;
    soon(begun.acquire()).await.unwrap().forget();

    drop(conn);
    let mut conn = harness.coordinator.attached().await;
    let forget = vec![task.held()];
    conn.welcome(v1::Welcome { heartbeat_ms: 500, forget, ..v1::Welcome::default() }).await;
    soon(dropped.acquire()).await.unwrap().forget();

    // Nothing is held and nothing was sent: the next report belongs to the next task.
    let next = conn.assign("echo", "x").await;
    assert_eq!(conn.reports().await[0].task_id, next.id.to_string());
    drop(conn);
    assert_eq!(harness.coordinator.attached().await.hello.held, [next.held()]);
}

#[tokio::test]
async fn agent_waits_when_too_many_reports_are_unacknowledged() {
    let permits = Arc::new(Semaphore::new(200));
    let offer = Offer::new("counting", StatusAgent(Arc::clone(&permits)));
    let (_harness, mut conn) = Harness::start(vec![offer]).await;
    let task = conn.assign("counting", "").await;
    assert_eq!(conn.reports().await.len(), 64);
    conn.ack(&task, 10).await;
    let more = conn.reports().await;
    assert_eq!((more[0].number, more.len()), (65, 10));
}

#[tokio::test]
async fn worker_reconnects_after_missed_heartbeats() {
    let mut coordinator = FakeCoordinator::start().await;
    let (_drain, _running) = start_worker(&coordinator, vec![], |_| {}).await;
    let conn = coordinator.attached().await;
    conn.fall_silent();
    conn.welcome(v1::Welcome { heartbeat_ms: 20, ..v1::Welcome::default() }).await;
    let again = coordinator.attached().await;
    assert_eq!(again.hello.worker_id, conn.hello.worker_id);
}

#[tokio::test]
async fn permanently_rejected_hello_ends_the_worker() {
    let failure = Failure::new(&reason::INVALID_ARGUMENT).because("no such thing");
    let coordinator = FakeCoordinator::refusing_attach(failure).await;
    let (_drain, running) = start_worker(&coordinator, vec![], |_| {}).await;
    let ended = soon(running).await.unwrap();
    assert!(matches!(ended, Err(ServiceError::Refused(f)) if f.public_message == "no such thing"));
}

#[tokio::test]
async fn draining_worker_finishes_its_tasks() {
    let (mut harness, mut conn) = Harness::start(vec![]).await;
    let task = conn.assign("script", "ask ready?; chunk done").await;
    assert!(matches!(conn.reports().await.last().unwrap().body, Some(Body::Ask(_))));
    conn.ack(&task, 2).await;

    harness.drain.start();
    assert!(matches!(conn.next().await, Some(from_worker::Body::Drain(_))));
    conn.answer(&task, "ask-1", "yes").await;
    let last = conn.reports().await.pop().unwrap();
    assert!(matches!(last.body, Some(Body::Completed(_))));
    conn.ack(&task, last.number).await;
    assert_eq!(conn.next().await, None, "the worker closes the connection");
    drop(conn);
    assert!(harness.ended().await.is_ok());
}

#[tokio::test]
async fn draining_worker_hands_back_tasks_after_the_limit() {
    let short = Duration::from_millis(100);
    let (mut harness, mut conn) = Harness::start_with(vec![], |s| s.drain_timeout = short).await;
    let hanging = conn.assign("script", "say x; hang").await;
    assert_eq!(conn.reports().await.len(), 2);
    conn.ack(&hanging, 2).await;

    harness.drain.start();
    assert!(matches!(conn.next().await, Some(from_worker::Body::Drain(_))));
    let reports = conn.reports().await;
    assert!(matches!(reports[0].body, Some(Body::Released(_))), "{reports:?}");

    // A late assignment is handed back before its agent starts.
    let late = conn.assign("script", "say y").await;
    let reports = conn.reports().await;
    assert!(matches!(reports[0].body, Some(Body::Released(_))), "{reports:?}");
    conn.ack(&late, 1).await;
    conn.ack(&hanging, 3).await;
    assert_eq!(conn.next().await, None);
    drop(conn);
    assert!(harness.ended().await.is_ok());
}

#[tokio::test]
async fn idle_worker_without_a_coordinator_drains_at_once() {
    let coordinator = FakeCoordinator::start().await;
    let address = coordinator.address.clone();
    drop(coordinator);
    let config = crate::Config {
        coordinator: address,
        agents: vec!["echo".into()],
        ..crate::Config::default()
    };
    let service = config.bind().await.unwrap();
    assert!(service.drain_timeout > Duration::from_secs(5), "the test would not notice the limit");
    let drain = faultline_chassis::Drain::new();
    drain.start();
    let left = tokio::time::timeout(Duration::from_secs(5), service.run(drain)).await;
    assert!(left.unwrap().is_ok());
}
