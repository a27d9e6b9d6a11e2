//! A worker that has several coordinators to attach to, of which some break, leave, or are not
//! there.

use std::time::{Duration, Instant};

use faultline_proto::v1::{self, from_worker, report::Body, to_worker};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    context::offer,
    delegation::completed,
    fake_coordinator::{Connection, FakeCoordinator, Task, soon, start_worker_at},
};
use crate::{Context, Error, Offer, ServiceError};

/// The first of two that the worker chose, and the other.
struct Pair {
    here: FakeCoordinator,
    there: FakeCoordinator,
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
        conn = one.welcomed() => (Pair { here: one, there: other, worker }, conn),
        conn = other.welcomed() => (Pair { here: other, there: one, worker }, conn),
    }
}

fn resuming(task: &Task) -> v1::Welcome {
    let resume = vec![task.ack(0)];
    v1::Welcome { heartbeat_ms: 500, resume, ..v1::Welcome::default() }
}

#[tokio::test]
async fn a_worker_whose_coordinator_breaks_goes_to_another_with_its_work_at_once() {
    let (mut pair, mut conn) = start(vec![]).await;
    let task = conn.assign("script", "ask ready?; chunk done").await;
    assert!(matches!(conn.reports().await.last().unwrap().body, Some(Body::Ask(_))));
    let worker_id = conn.hello.worker_id.clone();
    let broke = Instant::now();
    drop(conn);
    let mut conn = pair.there.attached().await;
    assert!(broke.elapsed() < Duration::from_millis(50), "it paused: {:?}", broke.elapsed());
    assert_eq!((&conn.hello.worker_id, &conn.hello.held[..]), (&worker_id, &[task.held()][..]));
    conn.welcome(resuming(&task)).await;
    let again = conn.reports().await;
    assert_eq!(again[0].number, 1, "nothing was acknowledged, so all is said again");
    conn.ack(&task, again.len() as u32).await;
    conn.answer(&task, "ask-1", "yes").await;
    let last = conn.reports().await.pop().unwrap();
    assert!(matches!(last.body, Some(Body::Completed(_))));

    // There is no other one left untried then than the first.
    drop(conn);
    pair.here.attached().await;
}

#[tokio::test]
async fn a_worker_goes_elsewhere_when_its_coordinator_sends_it_there() {
    let (mut pair, mut conn) = start(vec![]).await;
    let task = conn.assign("script", "ask ready?; chunk done").await;
    assert!(matches!(conn.reports().await.last().unwrap().body, Some(Body::Ask(_))));
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    let mut next = pair.there.attached().await;
    assert_eq!(next.hello.held, [task.held()], "it keeps its work");
    assert!(matches!(conn.next().await, Some(from_worker::Body::Drain(_))), "nothing more, please");
    assert_eq!(conn.next().await, None, "and it does not hand its work back");
    next.welcome(resuming(&task)).await;
    let again = next.reports().await;
    next.ack(&task, again.len() as u32).await;
    next.answer(&task, "ask-1", "yes").await;
    let last = next.reports().await.pop().unwrap();
    assert!(matches!(last.body, Some(Body::Completed(_))));
}

#[tokio::test]
async fn what_a_coordinator_gave_before_a_worker_parts_goes_along() {
    let (mut pair, mut conn) = start(vec![]).await;
    conn.fall_silent();
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    assert!(matches!(conn.next().await, Some(from_worker::Body::Drain(_))));
    let task = conn.assign("script", "ask ready?").await;
    conn.send(to_worker::Body::Heartbeat(v1::Heartbeat {})).await;
    conn.send(to_worker::Body::Heartbeat(v1::Heartbeat {})).await;
    let next = pair.there.attached().await;
    assert_eq!(next.hello.held, [task.held()]);
}

#[tokio::test]
async fn a_coordinator_that_no_longer_answers_is_left_all_the_same() {
    let (mut pair, conn) = start(vec![]).await;
    conn.fall_silent();
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    pair.there.attached().await;
}

#[tokio::test]
async fn without_another_a_worker_stays_to_the_end() {
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
async fn a_coordinator_that_is_not_there_is_passed_over() {
    let mut coordinator = FakeCoordinator::start().await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for coordinators in
        [format!("{nobody},{}", coordinator.address), format!("{},{nobody}", coordinator.address)]
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
async fn a_delegation_follows_its_worker_to_another_coordinator() {
    let delegates = |cx: Context| async move {
        let made = cx.delegate("other", "please").await?;
        cx.artifact("made", made.text()).await?;
        Ok::<_, Error>(())
    };
    let (mut pair, mut conn) = start(vec![offer(delegates)]).await;
    let task = conn.assign("under-test", "").await;
    assert!(conn.slot_update(&task).await);
    let sent = pair.here.sent().await;
    let key = sent.header("faultline-key").unwrap().to_owned();

    // The call moves with the worker, although nobody ends it here.
    conn.send(to_worker::Body::Drain(v1::Drain {})).await;
    let mut next = pair.there.attached().await;
    assert!(next.hello.held[0].waits);
    next.welcome(resuming(&task)).await;
    soon(sent.dropped()).await;
    let again = soon(pair.there.sent()).await;
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
