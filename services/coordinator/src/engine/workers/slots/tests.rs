//! Slots move between those who wait and those they wait for.

use faultline_proto::v1::{self, Assign, Held, Interrupt, report};

use super::*;
use crate::{
    clock::now,
    testing::{Bench, answering, at_once, offer, principal, request, task_of},
};

const AGENTS: [&str; 3] = ["a", "b", "c"];

async fn bench() -> Bench {
    Bench::start(AGENTS.map(offer).into()).await
}

fn slot(bench: &Bench, assign: &Assign, released: bool) {
    let (task_id, attempt) = (assign.task_id.clone(), assign.attempt);
    let slot = Slot { task_id, attempt, released };
    bench.core.change(|state| state.slot(bench.worker, &slot, now()));
}

fn used(bench: &Bench) -> u32 {
    bench.core.lock().registry.workers[&bench.worker].used()
}

async fn told_go_on(bench: &mut Bench) -> String {
    match bench.told().await {
        to_worker::Body::GoOn(go_on) => go_on.task_id,
        other => panic!("go on, not {other:?}"),
    }
}

#[tokio::test]
async fn call_chain_runs_on_one_slot_and_resumed_tasks_come_before_new_ones() {
    let mut bench = bench().await;
    bench.set_slots(1);
    let parent = bench.root("a").await;
    let caller = bench.calling(&parent, "k");
    task_of(bench.send(at_once(request("b", "x")), &caller)).await;
    slot(&bench, &parent, true);
    let below = bench.assigned().await;
    assert_eq!((&below.agent[..], used(&bench)), ("b", 1));
    task_of(bench.send(at_once(request("c", "new")), &principal("ann"))).await;
    slot(&bench, &parent, false);
    slot(&bench, &parent, false);
    bench.complete(&below, 1);
    assert_eq!(told_go_on(&mut bench).await, parent.task_id);
    assert_eq!(used(&bench), 1, "asked for twice and given once");
    bench.complete(&parent, 1);
    assert_eq!(bench.assigned().await.agent, "c");
    assert_eq!(used(&bench), 1);
}

#[tokio::test]
async fn cancelled_task_gets_no_slot() {
    let mut bench = bench().await;
    bench.set_slots(1);
    let parent = bench.root("a").await;
    task_of(bench.send(at_once(request("b", "x")), &bench.calling(&parent, "k"))).await;
    slot(&bench, &parent, true);
    let below = bench.assigned().await;
    slot(&bench, &parent, false);
    bench.cancel(&parent.task_id).await;
    bench.report(&below, 1, report::Body::Stopped(v1::Stopped {}));
    assert_eq!(used(&bench), 0);
}

#[tokio::test]
async fn slot_of_an_attempt_is_moved_only_by_its_worker() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    slot(&bench, &Assign { attempt: 2, ..parent.clone() }, true);
    assert_eq!(used(&bench), 1);
    slot(&bench, &parent, false);
    assert_eq!(told_go_on(&mut bench).await, parent.task_id, "attempt holds its slot already");
    slot(&bench, &parent, true);
    slot(&bench, &parent, true);
    assert_eq!(used(&bench), 0);
    bench.complete(&parent, 1);
    slot(&bench, &parent, false);
    assert_eq!(used(&bench), 0, "of one that ended");
}

#[tokio::test]
async fn answer_takes_no_slot_while_children_are_awaited() {
    let mut bench = bench().await;
    bench.set_slots(1);
    let parent = bench.root("a").await;
    task_of(bench.send(at_once(request("b", "x")), &bench.calling(&parent, "k"))).await;
    slot(&bench, &parent, true);
    let below = bench.assigned().await;
    bench.report(&parent, 1, report::Body::Ask(Interrupt::default()));
    let answer = at_once(answering(request("a", "42"), &parent.task_id));
    task_of(bench.send(answer, &principal("ann"))).await;
    assert!(matches!(bench.told().await, to_worker::Body::Answer(_)), "answer needs no free slot");
    bench.report(&parent, 2, report::Body::Ask(Interrupt::default()));
    bench.report(&parent, 3, report::Body::Started(v1::Started {}));
    assert_eq!(used(&bench), 1, "a question taken back does not end the waiting either");
    slot(&bench, &parent, false);
    bench.complete(&below, 1);
    assert_eq!(told_go_on(&mut bench).await, parent.task_id);
}

#[tokio::test]
async fn reattached_worker_reports_its_released_slots() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let below = bench.child(&parent, "k", "b").await;
    let held = |a: &Assign, waits| Held { task_id: a.task_id.clone(), attempt: 1, waits };
    bench.attach_again(&AGENTS, 1, vec![held(&parent, true), held(&below, false)]);
    assert_eq!(used(&bench), 1);
    slot(&bench, &parent, false);
    bench.complete(&below, 1);
    assert_eq!(told_go_on(&mut bench).await, parent.task_id);
    bench.attach_again(&AGENTS, 1, vec![held(&parent, true)]);
    assert_eq!(used(&bench), 0, "slot grant may be lost with the stream");
    bench.attach_again(&AGENTS, 1, vec![held(&parent, false)]);
    assert_eq!(used(&bench), 1);
}

#[tokio::test]
async fn answer_lost_with_the_stream_is_resent_to_the_waiting_attempt() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    slot(&bench, &parent, true);
    bench.report(&parent, 1, report::Body::Ask(Interrupt::default()));
    let answer = at_once(answering(request("a", "42"), &parent.task_id));
    task_of(bench.send(answer, &principal("ann"))).await;
    let held = Held { task_id: parent.task_id.clone(), attempt: 1, waits: true };
    bench.attach_again(&AGENTS, 1, vec![held]);
    assert!(matches!(bench.told().await, to_worker::Body::Answer(_)));
    assert_eq!(used(&bench), 0);
}
