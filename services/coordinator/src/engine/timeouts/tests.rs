//! Time as tasks feel it: what runs out, what waits for free, and what follows when callers leave.

use std::ops::Deref;

use faultline_proto::{
    a2a::{SubscribeToTaskRequest, TaskState},
    v1::{AgentOffer, Assign, Cancel, Interrupt, report, to_worker},
};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{
    AgentPolicy, Config,
    testing::{Bench, answering, at_once, offer, principal, refusal_of, request, soon, task_of},
};

const AGENTS: [&str; 2] = ["a", "b"];

/// A bench where time passes.
struct Timed {
    bench: Bench,
    _keeper: AbortOnDropHandle<()>,
}

impl Deref for Timed {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

impl Timed {
    async fn start(config: Config) -> Self {
        Self::of(Bench::start_with(config, AGENTS.map(offer).into()).await)
    }

    fn of(bench: Bench) -> Self {
        let keeper = tokio::spawn(Arc::clone(&bench.core).run_timers());
        Self { bench, _keeper: AbortOnDropHandle::new(keeper) }
    }

    async fn cancel_told(&mut self) -> Cancel {
        match self.bench.told().await {
            to_worker::Body::Cancel(cancel) => cancel,
            other => panic!("a cancel, not {other:?}"),
        }
    }

    async fn stored(&self, id: &str) -> Task {
        self.core.flushed().await;
        let id = id.parse().unwrap();
        self.core.store.task(id, Default::default()).await.unwrap().unwrap().task
    }

    async fn ended(&self, id: &str) -> Task {
        soon(async {
            loop {
                let task = self.stored(id).await;
                if task.is_final() {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn within(time: Duration) -> Caller {
    Caller { task_timeout: Some(time), ..principal("ann") }
}

fn leaving(call: u64, grace: Duration) -> Caller {
    Caller { call: Some((1, call)), cancel_after: Some(grace), ..principal("ann") }
}

fn ask() -> report::Body {
    report::Body::Ask(Interrupt { key: "k".into(), ..Interrupt::default() })
}

#[tokio::test]
async fn task_that_exceeds_its_time_budget_fails_and_its_agent_is_cancelled() {
    let mut timed = Timed::start(Config::default()).await;
    let sent = timed.send(request("a", "go"), &within(ms(100)));
    let assign = timed.bench.assigned().await;
    assert!(assign.remaining_ms.is_some_and(|left| left > 0 && left <= 100), "{assign:?}");
    let task = task_of(sent).await;
    assert_eq!(task.status.unwrap().state(), TaskState::Failed);
    let failure = timed.stored(&task.id).await.failure.unwrap();
    assert_eq!(failure.row(), &reason::TASK_TIMEOUT);
    assert_eq!(failure.public_message, "agent 'a' did not finish within 100ms");
    assert_eq!((failure.origin_agent(), failure.retryable), ("a", Some(false)));
    assert_eq!(failure.retry_after(), Some(RETRY_AFTER));
    let cancel = timed.cancel_told().await;
    assert_eq!((cancel.initiator.as_str(), &cancel.task_id), ("deadline", &task.id));
    assert_eq!(timed.core.lock().timers.at(Timer::Deadline(task.id.parse().unwrap())), None);
}

#[tokio::test]
async fn short_timeout_of_a_caller_does_not_open_the_circuit() {
    let own = AgentPolicy { timeout_ms: Some(30), ..AgentPolicy::default() };
    let config = Config { agents: [("b".to_owned(), own)].into(), ..Config::default() };
    let timed = Timed::start(config).await;
    let failures = |agent| timed.core.lock().registry.agents[agent].breaker.failures();
    for (agent, hasty, counted) in [("a", 20, 0), ("b", 10, 0), ("b", 60_000, 3)] {
        for _ in 0..3 {
            let task = task_of(timed.send(request(agent, "go"), &within(ms(hasty)))).await;
            assert_eq!(task.status.unwrap().state(), TaskState::Failed);
        }
        assert_eq!(failures(agent), counted, "{agent} within {hasty} ms");
    }
    let refused = refusal_of(timed.send(request("b", "go"), &principal("ann"))).await;
    assert_eq!(refused.reason, "CIRCUIT_OPEN", "its own time ran out");
}

#[tokio::test]
async fn task_that_ends_in_time_leaves_no_timer() {
    let mut timed = Timed::start(Config::default()).await;
    let sent = timed.send(request("a", "go"), &within(ms(60_000)));
    let assign = timed.bench.assigned().await;
    timed.complete(&assign, 1);
    assert_eq!(task_of(sent).await.status.unwrap().state(), TaskState::Completed);
    assert_eq!(timed.core.lock().timers.next(), None);
}

#[tokio::test]
async fn open_question_stops_the_time_budget() {
    let mut timed = Timed::start(Config::default()).await;
    let sent = timed.send(request("a", "go"), &within(ms(400)));
    let assign = timed.bench.assigned().await;
    timed.report(&assign, 1, ask());
    let task = task_of(sent).await;
    assert_eq!(task.status.unwrap().state(), TaskState::InputRequired);
    tokio::time::sleep(ms(800)).await;
    assert_eq!(timed.stored(&task.id).await.state, TaskState::InputRequired);
    let sent = timed.send(answering(request("a", "yes"), &task.id), &principal("ann"));
    let left = match timed.bench.told().await {
        to_worker::Body::Answer(answer) => answer.remaining_ms.unwrap(),
        other => panic!("an answer, not {other:?}"),
    };
    assert!(left > 0 && left <= 400, "{left}");
    // From now on it costs again.
    assert_eq!(task_of(sent).await.status.unwrap().state(), TaskState::Failed);
}

#[tokio::test]
async fn queued_task_exceeds_its_time_budget() {
    let timed = Timed::start(Config::default()).await;
    timed.set_slots(0);
    let task = task_of(timed.send(request("a", "go"), &within(ms(50)))).await;
    assert_eq!(task.status.unwrap().state(), TaskState::Failed);
    assert!(timed.core.lock().registry.agents["a"].queue.is_empty());
}

#[tokio::test]
async fn time_budget_continues_after_a_restart() {
    let mut timed = Timed::start(Config::default()).await;
    let id = task_of(timed.send(at_once(request("a", "go")), &within(ms(500)))).await.id;
    timed.bench.assigned().await;
    let Timed { bench, _keeper } = timed;
    drop(_keeper);
    let timed = Timed::of(bench.restart(AGENTS.map(offer).into()).await);
    let left = timed.stored(&id).await.remaining_ms(now()).unwrap();
    assert!(left < 500, "{left}");
    let task = timed.ended(&id).await;
    assert_eq!(task.failure.unwrap().row(), &reason::TASK_TIMEOUT);
}

async fn limit_of(timed: &Timed, assign: &Assign) -> Option<Duration> {
    timed.stored(&assign.task_id).await.budget.limit()
}

#[tokio::test]
async fn smallest_time_limit_counts_and_operators_override_agents() {
    let mut config = Config { timeout_ms_max: Some(9000), ..Config::default() };
    let policy = |timeout_ms| AgentPolicy { timeout_ms: Some(timeout_ms), ..Default::default() };
    config.agents.insert("set".into(), policy(5000));
    config.agents.insert("free".into(), policy(0));
    let timeout_ms = 3000;
    let offers = ["own", "set", "free"].map(|a| AgentOffer { timeout_ms, ..offer(a) });
    let offers = offers.into_iter().chain([offer("a")]).collect();
    let mut timed = Timed::of(Bench::start_with(config, offers).await);
    for (agent, asked, limit) in [
        ("a", None, None),
        ("a", Some(7000), Some(7000)),
        ("a", Some(70_000), Some(9000)),
        ("own", None, Some(3000)),
        ("own", Some(7000), Some(3000)),
        ("own", Some(700), Some(700)),
        ("set", None, Some(5000)),
        ("free", None, None),
    ] {
        let caller = Caller { task_timeout: asked.map(ms), ..principal("ann") };
        let assign = timed.bench.child_of(&caller, agent).await;
        assert_eq!(limit_of(&timed, &assign).await, limit.map(ms), "{agent} {asked:?}");
    }
}

#[tokio::test]
async fn child_gets_the_rest_of_the_parent_budget_less_a_reserve() {
    let mut timed = Timed::start(Config::default()).await;
    let parent = timed.bench.child_of(&within(ms(60_000)), "a").await;
    let child = timed.bench.child(&parent, "k", "b").await;
    let limit = limit_of(&timed, &child).await.unwrap();
    assert!(limit <= ms(59_500) && limit > ms(50_000), "{limit:?}");
    let grandchild = timed.bench.child(&child, "k", "a").await;
    assert!(limit_of(&timed, &grandchild).await.unwrap() <= limit - ms(500));
    let detached = timed.calling_detached(&parent, "d");
    let detached = timed.bench.child_of(&detached, "b").await;
    assert_eq!(
        limit_of(&timed, &detached).await,
        None,
        "detached child has no bound from its parent"
    );
}

#[tokio::test]
async fn call_with_too_little_budget_left_is_refused_and_starts_nothing() {
    let mut bench = Bench::start(AGENTS.map(offer).into()).await;
    let parent = bench.child_of(&within(ms(65)), "a").await;
    let calling = bench.calling(&parent, "k");
    let refused = refusal_of(bench.send(request("b", "go"), &calling)).await;
    assert_eq!(refused.row(), &reason::DEADLINE_BUDGET_EXHAUSTED);
    assert!(refused.public_message.contains("agent 'a' has "), "{refused}");
    assert_eq!(bench.count().await, 1);
}

#[tokio::test]
async fn children_end_with_a_parent_that_exceeds_its_budget() {
    let mut timed = Timed::start(Config::default()).await;
    let parent = timed.bench.child_of(&within(ms(300)), "a").await;
    let detached = timed.calling_detached(&parent, "d");
    let detached = timed.bench.child_of(&detached, "b").await;
    let child = timed.bench.child(&parent, "k", "b").await;
    timed.bench.told().await;
    let (parent, child) = (timed.ended(&parent.task_id).await, timed.ended(&child.task_id).await);
    assert_eq!((parent.state, child.state), (TaskState::Failed, TaskState::Failed));
    assert_eq!(child.failure.unwrap().origin_agent(), "b", "the inner one runs out first");
    assert_eq!(timed.stored(&detached.task_id).await.state, TaskState::Working);
}

#[tokio::test]
async fn task_is_cancelled_on_disconnect_if_requested() {
    let mut timed = Timed::start(Config::default()).await;
    let detached = Caller { cancel_after: None, ..leaving(1, ms(0)) };
    for caller in [leaving(2, ms(0)), leaving(3, ms(30)), detached] {
        let _sent = timed.send(request("a", "go"), &caller);
        let assign = timed.bench.assigned().await;
        drop(timed.core.touch(|state| state.forget_call(caller.call.unwrap())));
        if caller.cancel_after.is_none() {
            let due = Timer::Abandoned(assign.task_id.parse().unwrap());
            assert_eq!(timed.core.lock().timers.at(due), None);
            assert_eq!(timed.stored(&assign.task_id).await.state, TaskState::Working);
            continue;
        }
        assert_eq!(timed.cancel_told().await.initiator, "disconnect");
        let task = timed.ended(&assign.task_id).await;
        assert_eq!(task.state, TaskState::Canceled);
        let failure = task.failure.unwrap();
        assert_eq!(failure.public_message, "cancelled because its caller went away");
        assert_eq!(failure.error_type, "cancelled");
    }
}

#[tokio::test]
async fn disconnect_before_the_task_is_known_cancels_the_task() {
    let mut timed = Timed::start(Config::default()).await;
    let caller = Caller { idempotency_key: "k".into(), ..leaving(1, ms(0)) };
    let _sent = timed.send(request("a", "go"), &caller);
    drop(timed.core.touch(|state| state.forget_call((1, 1))));
    let assign = timed.bench.assigned().await;
    assert_eq!(timed.cancel_told().await.initiator, "disconnect");
    assert_eq!(timed.ended(&assign.task_id).await.state, TaskState::Canceled);
    let refused = timed.send(answering(request("a", "x"), "nobody"), &leaving(2, ms(0)));
    assert_eq!(refusal_of(refused).await.row(), &reason::TASK_NOT_FOUND);
    assert!(timed.core.lock().early_disconnects.is_empty());
}

#[tokio::test]
async fn dropped_stream_cancels_its_task_and_an_ended_stream_does_not() {
    let mut timed = Timed::start(Config::default()).await;
    let caller = leaving(1, ms(0));
    let stream = timed.core.stream(request("a", "go"), &caller).await.unwrap();
    let assign = timed.bench.assigned().await;
    drop(stream);
    assert_eq!(timed.cancel_told().await.initiator, "disconnect");
    assert_eq!(timed.ended(&assign.task_id).await.state, TaskState::Canceled);
    let mut stream = timed.core.stream(request("a", "go"), &caller).await.unwrap();
    let assign = timed.bench.assigned().await;
    timed.report(&assign, 1, ask());
    while soon(stream.next()).await.unwrap().is_some() {}
    drop(stream);
    let due = Timer::Abandoned(assign.task_id.parse().unwrap());
    assert_eq!(timed.core.lock().timers.at(due), None, "a question is an answer");
}

#[tokio::test]
async fn reconnect_within_the_grace_keeps_the_task() {
    let mut timed = Timed::start(Config::default()).await;
    let caller = leaving(1, ms(50));
    let _sent = timed.send(request("a", "go"), &caller);
    let assign = timed.bench.assigned().await;
    timed.core.flushed().await;
    drop(timed.core.touch(|state| state.forget_call((1, 1))));
    let id = assign.task_id.clone();
    let subscribe = SubscribeToTaskRequest { id, ..SubscribeToTaskRequest::default() };
    let stream = timed.core.subscribe(&subscribe, None, &principal("ann")).await.unwrap();
    let due = Timer::Abandoned(assign.task_id.parse().unwrap());
    soon(async {
        while timed.core.lock().timers.at(due).is_some() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(timed.stored(&assign.task_id).await.state, TaskState::Working);
    drop(stream);
}

#[tokio::test]
async fn agent_that_does_not_stop_is_an_orphan_until_it_stops() {
    let mut bench = Bench::start(AGENTS.map(offer).into()).await;
    let assign = bench.root("a").await;
    let id: TaskId = assign.task_id.parse().unwrap();
    bench.cancel(&assign.task_id).await;
    let (worker, attempt) = (bench.worker, assign.attempt);
    let due = Timer::StopDeadline(worker, id, attempt);
    assert!(bench.core.lock().timers.at(due).is_some());
    let orphans = || bench.core.workers().workers[0].orphans;
    assert_eq!(orphans(), 0);
    bench.core.change(|state| state.note_orphan(worker, id, attempt));
    assert_eq!(orphans(), 1);
    bench.complete(&assign, 1);
    assert_eq!(orphans(), 0);
    bench.core.flushed().await;
    let stored = bench.core.store.task(id, Default::default()).await.unwrap().unwrap();
    assert_eq!((stored.task.state, stored.late), (TaskState::Canceled, 1));
    // One that has stopped in time is none.
    bench.told().await;
    let assign = bench.root("a").await;
    bench.cancel(&assign.task_id).await;
    bench.report(&assign, 1, report::Body::Stopped(faultline_proto::v1::Stopped {}));
    let id = assign.task_id.parse().unwrap();
    bench.core.change(|state| state.note_orphan(worker, id, assign.attempt));
    assert_eq!(bench.core.workers().workers[0].orphans, 0);
}
