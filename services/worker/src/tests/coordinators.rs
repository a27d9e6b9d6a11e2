//! A worker with several coordinators: failover, rebalance and drain, and coordinators that are not
//! running.

use std::time::{Duration, Instant};

use faultline_proto::v1::{self, from_worker, report::Body, to_worker};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    context::offer,
    delegation::completed,
    fake_coordinator::{Connection, FakeCoordinator, Task, soon, start_worker_at},
};
use crate::{Context, Error, Offer, ServiceError};

/// Two coordinators: the one that the worker chose first, and the other.
struct Pair {
    first: FakeCoordinator,
    second: FakeCoordinator,
    worker: JoinHandle<Result<(), ServiceError>>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

async fn start(offers: Vec<Offer>) -> (Pair, Connection) {
    let mut one = FakeCoordinator::start().await;
    let mut other = FakeCoordinator::start().await;
    let coordinators = format!("{},{}", one.address, other.address);
    let (_drain, worker) = start_worker_at(coordinators, offers, |_| {}).await;
    tokio::select! {
        conn = one.welcomed() => (Pair { first: one, second: other, worker }, conn),
        conn = other.welcomed() => (Pair { first: other, second: one, worker }, conn),
    }
}

fn resuming(task: &Task) -> v1::Welcome {
    let resume = vec![task.ack(0)];
    v1::Welcome { heartbeat_ms: 500, resume, ..v1::Welcome::default() }
}

#[tokio::test]
async fn worker_moves_at_once_to_another_coordinator_after_a_break() {
    let (mut pair, mut conn) = start(vec![]).await;
    let task = conn.assign("script", "ask ready?; chunk done").await;
    assert!(matches!(conn.reports().await.last().unwrap().body, Some(Body::Ask(_))));
    let worker_id = conn.hello.worker_id.clone();
    let broke = Instant::now();
    drop(conn);
    let mut conn = pair.second.attached().await;
    assert!(broke.elapsed() < Duration::from_millis(50), "no pause: {:?}", broke.elapsed());
    assert_eq!((&conn.hello.worker_id, &conn.hello.held[..]), (&worker_id, &[task.held()][..]));
    conn.welcome(resuming(&task)).await;
    let again = conn.reports().await;
    assert_eq!(again[0].number, 1, "unacknowledged reports are sent again");
    conn.ack(&task, again.len() as u32).await;
    conn.answer(&task, "ask-1", "yes").await;
    let last = conn.reports().await.pop().unwrap();
    assert!(matches!(last.body, Some(Body::Completed(_))));

    // Both were tried, so the first one is next.
    drop(conn);
    pair.first.attached().await;
}

#[tokio::test]
async fn worker_moves_when_its_coordinator_drains_it() {
    let (mut pair, mut conn) = start(vec![]).await;
    let task = conn.assign("script", "ask ready?; chunk done").await;
    assert!(matches!(conn.reports().await.last().unwrap().body, Some(Body::Ask(_))));
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    let mut next = pair.second.attached().await;
    assert_eq!(next.hello.held, [task.held()], "the worker keeps its tasks");
    assert!(
        matches!(conn.next().await, Some(from_worker::Body::Drain(_))),
        "the worker refuses new work"
    );
    assert_eq!(conn.next().await, None, "and hands nothing back");
    next.welcome(resuming(&task)).await;
    let again = next.reports().await;
    next.ack(&task, again.len() as u32).await;
    next.answer(&task, "ask-1", "yes").await;
    let last = next.reports().await.pop().unwrap();
    assert!(matches!(last.body, Some(Body::Completed(_))));
}

#[tokio::test]
async fn assignment_before_the_flush_barrier_moves_with_the_worker() {
    let (mut pair, mut conn) = start(vec![]).await;
    conn.fall_silent();
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    assert!(matches!(conn.next().await, Some(from_worker::Body::Drain(_))));
    let task = conn.assign("script", "ask ready?").await;
    conn.send(to_worker::Body::Heartbeat(v1::Heartbeat {})).await;
    conn.send(to_worker::Body::Heartbeat(v1::Heartbeat {})).await;
    let next = pair.second.attached().await;
    assert_eq!(next.hello.held, [task.held()]);
}

#[tokio::test]
async fn worker_moves_without_an_answer_to_the_flush_barrier() {
    let (mut pair, conn) = start(vec![]).await;
    conn.fall_silent();
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    pair.second.attached().await;
}

#[tokio::test]
async fn worker_stays_if_there_is_no_other_coordinator() {
    let mut coordinator = FakeCoordinator::start().await;
    let (_drain, worker) = start_worker_at(coordinator.address.clone(), vec![], |_| {}).await;
    let mut conn = coordinator.welcomed().await;
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    let task = conn.assign("echo", "x").await;
    assert_eq!(conn.reports().await[0].task_id, task.id.to_string());
    drop(conn);
    coordinator.attached().await;
    worker.abort();
}

#[tokio::test]
async fn unreachable_coordinator_is_skipped() {
    let mut coordinator = FakeCoordinator::start().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for coordinators in
        [format!("{unused},{}", coordinator.address), format!("{},{unused}", coordinator.address)]
    {
        let (_drain, worker) = start_worker_at(coordinators, vec![], |_| {}).await;
        for _ in 0..5 {
            drop(coordinator.welcomed().await);
        }
        worker.abort();
        let _ = worker.await;
    }
}

#[tokio::test]
async fn delegation_is_repeated_at_the_next_coordinator() {
    let delegates = |cx: Context| async move {
        let made = cx.delegate("other", "please").await?;
        cx.artifact("made", made.text()).await?;
        Ok::<_, Error>(())
    };
    let (mut pair, mut conn) = start(vec![offer(delegates)]).await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    let sent = pair.first.sent().await;
    let key = sent.header("faultline-key").unwrap().to_owned();

    // The call moves with the worker before the old coordinator ends it.
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    let mut next = pair.second.attached().await;
    assert!(next.hello.held[0].waits);
    next.welcome(resuming(&task)).await;
    soon(sent.dropped()).await;
    let again = soon(pair.second.sent()).await;
    assert_eq!(again.header("faultline-key"), Some(key.as_str()), "the same child is found");
    again.answer(Ok(completed("well")));
    let mut slots = 0;
    loop {
        match next.next().await {
            Some(from_worker::Body::Slot(slot)) if !slot.released => {
                next.grant_slot(&task).await;
                slots += 1;
            }
            Some(from_worker::Body::Slot(_)) => {}
            Some(from_worker::Body::Reports(reports)) => {
                let last = reports.reports.last().unwrap();
                next.ack(&task, last.number).await;
                if matches!(last.body, Some(Body::Completed(_))) {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(slots, 1);
}
