//! The life of attempts and connections: what is sent when, again, or never.

use std::{sync::Arc, time::Duration};

use faultline_proto::{
    Failure, reason,
    v1::{self, from_worker, report::Body},
};
use tokio::sync::Semaphore;

use super::fake_coordinator::{FakeCoordinator, Harness, soon, start_worker};
use crate::{Agent, Context, Error, Offer, ServiceError};

#[tokio::test]
async fn an_echo_costs_one_message_each_way() {
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

    // Held until acknowledged, and not any longer.
    drop(conn);
    let conn = harness.coordinator.attached().await;
    assert_eq!(conn.hello.held, [task.held()]);
    let resume = vec![task.ack(2)];
    conn.welcome(v1::Welcome { resume, ..v1::Welcome::default() }).await;
    drop(conn);
    assert_eq!(harness.coordinator.attached().await.hello.held, []);
}

/// Says one status for every permit.
struct Counting(Arc<Semaphore>);

impl Agent for Counting {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        for n in 1.. {
            self.0.acquire().await?.forget();
            cx.status(format!("status {n}")).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_broken_connection_resends_exactly_what_was_not_acknowledged() {
    let permits = Arc::new(Semaphore::new(0));
    let offer = Offer::new("counting", Counting(Arc::clone(&permits)));
    let (mut harness, mut conn) = Harness::start(vec![offer]).await;
    let task = conn.assign("counting", "").await;
    let mut before = Vec::new();
    for _ in 0..3 {
        permits.add_permits(1);
        before.extend(conn.reports().await);
    }
    conn.ack(&task, 1).await;
    let worker_id = conn.hello.worker_id.clone();

    // While there is no connection, the agent works on.
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

/// Tells when it was begun and when it was dropped.
struct Watched(Arc<Semaphore>, Arc<Semaphore>);

impl Agent for Watched {
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
async fn what_the_coordinator_wants_forgotten_is_dropped_without_a_word() {
    let begun = Arc::new(Semaphore::new(0));
    let dropped = Arc::new(Semaphore::new(0));
    let offer = Offer::new("watched", Watched(Arc::clone(&begun), Arc::clone(&dropped)));
    let (mut harness, conn) = Harness::start(vec![offer]).await;
    let task = conn.assign("watched", "").await;
    soon(begun.acquire()).await.unwrap().forget();

    drop(conn);
    let mut conn = harness.coordinator.attached().await;
    let forget = vec![task.held()];
    conn.welcome(v1::Welcome { heartbeat_ms: 500, forget, ..v1::Welcome::default() }).await;
    soon(dropped.acquire()).await.unwrap().forget();

    // Nothing is held and nothing was said: the next word is about the next task.
    let next = conn.assign("echo", "x").await;
    assert_eq!(conn.reports().await[0].task_id, next.id.to_string());
    drop(conn);
    assert_eq!(harness.coordinator.attached().await.hello.held, [next.held()]);
}

#[tokio::test]
async fn an_agent_far_ahead_of_its_acknowledgements_has_to_wait() {
    let permits = Arc::new(Semaphore::new(200));
    let offer = Offer::new("counting", Counting(Arc::clone(&permits)));
    let (_harness, mut conn) = Harness::start(vec![offer]).await;
    let task = conn.assign("counting", "").await;
    assert_eq!(conn.reports().await.len(), 64);
    conn.ack(&task, 10).await;
    let more = conn.reports().await;
    assert_eq!((more[0].number, more.len()), (65, 10));
}

#[tokio::test]
async fn a_coordinator_that_falls_silent_is_left() {
    let mut coordinator = FakeCoordinator::start().await;
    let (_drain, _running) = start_worker(&coordinator, vec![], |_| {}).await;
    let conn = coordinator.attached().await;
    conn.fall_silent();
    conn.welcome(v1::Welcome { heartbeat_ms: 20, ..v1::Welcome::default() }).await;
    let again = coordinator.attached().await;
    assert_eq!(again.hello.worker_id, conn.hello.worker_id);
}

#[tokio::test]
async fn a_hello_that_can_never_be_right_ends_the_worker() {
    let failure = Failure::new(&reason::INVALID_ARGUMENT).because("no such thing");
    let coordinator = FakeCoordinator::refusing_attach(failure).await;
    let (_drain, running) = start_worker(&coordinator, vec![], |_| {}).await;
    let ended = soon(running).await.unwrap();
    assert!(matches!(ended, Err(ServiceError::Refused(f)) if f.public_message == "no such thing"));
}

#[tokio::test]
async fn a_draining_worker_finishes_what_it_can() {
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
async fn a_draining_worker_hands_back_the_rest() {
    let short = Duration::from_millis(100);
    let (mut harness, mut conn) = Harness::start_with(vec![], |s| s.drain_timeout = short).await;
    let hanging = conn.assign("script", "say x; hang").await;
    assert_eq!(conn.reports().await.len(), 2);
    conn.ack(&hanging, 2).await;

    harness.drain.start();
    assert!(matches!(conn.next().await, Some(from_worker::Body::Drain(_))));
    let reports = conn.reports().await;
    assert!(matches!(reports[0].body, Some(Body::Released(_))), "{reports:?}");

    // What comes too late is handed back before it begins.
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
async fn an_idle_worker_without_a_coordinator_still_leaves() {
    let coordinator = FakeCoordinator::start().await;
    let address = coordinator.address.clone();
    drop(coordinator);
    let config = crate::Config {
        coordinator: address,
        agents: vec!["echo".into()],
        ..crate::Config::default()
    };
    let service = config.bind().await.unwrap();
    assert!(service.drain_timeout > Duration::from_secs(5), "it must not take that long");
    let drain = faultline_chassis::Drain::new();
    drain.start();
    let left = tokio::time::timeout(Duration::from_secs(5), service.run(drain)).await;
    assert!(left.unwrap().is_ok());
}
