//! Tests of retries and failover, in a coordinator with workers that the test plays.

use faultline_proto::{
    a2a::{self, AgentSkill, GetTaskRequest, TaskState},
    reason::{self, Reason},
    v1::{self, AgentsRequest, Hello, InspectRequest, InspectResponse, health, report},
};
use tokio::sync::mpsc;

use super::*;
use crate::{
    AgentPolicy, Config,
    clock::now,
    testing::{Bench, at_once, keyed, offer, principal, refusal_of, request, soon, task_of},
};

fn failed(failure: Failure) -> report::Body {
    report::Body::Failed(failure.into_record())
}

fn away() -> report::Body {
    failed(Failure::new(&reason::UNAVAILABLE))
}

fn policies(policies: &[(&str, AgentPolicy)]) -> Config {
    let agents = policies.iter().map(|(name, own)| ((*name).to_owned(), own.clone()));
    Config { agents: agents.collect(), ..Config::default() }
}

fn skilled(name: &str, skill: &str) -> AgentOffer {
    let mut offer = offer(name);
    let skill = AgentSkill { id: skill.into(), ..AgentSkill::default() };
    offer.card.get_or_insert_default().skills.push(skill);
    offer
}

impl Bench {
    /// Lets so much time pass for those who wait to be tried again.
    fn pass(&self, secs: u64) {
        let until = Instant::now() + Duration::from_secs(secs);
        self.core.change(|state| state.fire_due_timers(until, now()));
    }

    fn serve_queues(&self) {
        self.core.change(|state| state.serve_queues(now()));
    }

    async fn inspect(&self, id: &str) -> InspectResponse {
        self.core.flushed().await;
        let caller = crate::calls::caller::Caller { operates: true, ..principal("ann") };
        let request = InspectRequest { task_id: id.into() };
        self.core.inspect(request, &caller).await.unwrap()
    }

    async fn task(&self, id: &str) -> a2a::Task {
        self.core.flushed().await;
        let get = GetTaskRequest { id: id.into(), ..GetTaskRequest::default() };
        self.core.get(get, &principal("ann")).await.unwrap()
    }

    async fn state(&self, id: &str) -> TaskState {
        self.task(id).await.status.unwrap().state()
    }

    fn health(&self, agent: &str) -> v1::Health {
        let one = AgentsRequest { name: agent.into(), ..<_>::default() };
        self.core.agents(&one).unwrap().agents[0].health.unwrap()
    }

    /// A task of this agent that fails as often as it is tried.
    async fn fail_whole(&mut self, agent: &str, reason: &'static Reason) {
        let assign = self.root(agent).await;
        self.report(&assign, 1, failed(Failure::new(reason)));
        self.core.flushed().await;
    }

    fn is_idle(&mut self) -> bool {
        use faultline_proto::v1::to_worker::Body;
        while let Ok(message) = self.messages.try_recv() {
            if !matches!(message.body, Some(Body::Welcome(_) | Body::Acks(_))) {
                return false;
            }
        }
        true
    }
}

#[tokio::test]
async fn failed_attempt_is_retried_after_its_pause_and_counted() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let answer = bench.send(request("a", "hi"), &principal("ann"));
    let mut assign = bench.assigned().await;
    for retry in 1..=3 {
        bench.report(&assign, 1, away());
        assert_eq!(bench.state(&assign.task_id).await, TaskState::Working);
        bench.pass(0);
        bench.core.flushed().await;
        assert!(bench.is_idle(), "no retry before the end of the pause");
        bench.pass(60);
        assign = bench.assigned().await;
        assert_eq!(assign.attempt, retry + 1);
    }
    bench.report(&assign, 1, away());
    let task = task_of(answer).await;
    assert_eq!(task.status.unwrap().state(), TaskState::Failed);
    let seen = bench.inspect(&task.id).await;
    let outcomes: Vec<_> = seen.attempts.iter().map(v1::Attempt::outcome).collect();
    use Outcome::{Ended, Failed};
    assert_eq!(outcomes, [Failed, Failed, Failed, Ended]);
    let spent = seen.attempts.iter().map(|a| a.failure.as_ref().map(|f| f.retries_spent));
    assert_eq!(spent.collect::<Vec<_>>(), [Some(0), Some(1), Some(2), None]);
    assert_eq!(seen.failure.unwrap().retries_spent, 3);
    assert_eq!(bench.health("a").consecutive_failures, 1, "tasks count, not attempts");
}

#[tokio::test]
async fn delegated_task_is_retried_once_and_its_caller_is_not() {
    let mut bench = Bench::start(vec![offer("a"), offer("b")]).await;
    let parent = bench.root("a").await;
    let first = bench.child(&parent, "1", "b").await;
    bench.report(&first, 1, away());
    bench.pass(60);
    let second = bench.assigned().await;
    bench.report(&second, 1, away());
    assert_eq!(bench.state(&first.task_id).await, TaskState::Failed);
    let failure = bench.inspect(&first.task_id).await.failure.unwrap();
    assert_eq!(failure.retries_spent, 1);
    let passed_on = Failure::from_record(failure).wrap("a", &parent.task_id, "c");
    bench.report(&parent, 1, failed(passed_on));
    assert_eq!(bench.state(&parent.task_id).await, TaskState::Failed);
    let failure = bench.inspect(&parent.task_id).await.failure.unwrap();
    assert_eq!((failure.retries_spent, failure.hop), (1, 1), "retries of the inner hop");
    assert_eq!(bench.health("b").consecutive_failures, 1);
    assert_eq!(bench.health("a").consecutive_failures, 0, "a passed-on failure does not count");
}

#[tokio::test]
async fn only_an_idempotent_agent_is_rerun_after_an_unknown_outcome() {
    let declared = AgentOffer { idempotent: true, ..offer("a") };
    for (offer, expected) in [(offer("a"), TaskState::Failed), (declared, TaskState::Working)] {
        for caller in [principal("ann"), keyed("ann", "k")] {
            let mut bench = Bench::start(vec![offer.clone()]).await;
            let assign = bench.child_of(&caller, "a").await;
            bench.report(&assign, 1, failed(Failure::new(&reason::UNKNOWN)));
            assert_eq!(bench.state(&assign.task_id).await, expected, "{caller:?}");
        }
    }
    // The key of a child only says which child it is.
    let mut bench = Bench::start(vec![offer("a")]).await;
    let parent = bench.root("a").await;
    let child = bench.child(&parent, "1", "a").await;
    bench.report(&child, 1, failed(Failure::new(&reason::UNKNOWN)));
    assert_eq!(bench.state(&child.task_id).await, TaskState::Failed);
}

#[tokio::test]
async fn unknown_outcome_is_neither_rerun_nor_passed_to_a_stand_in() {
    for row in [&reason::TASK_TIMEOUT, &reason::RECONNECT_EXHAUSTED, &reason::DEADLINE_EXCEEDED] {
        let mut bench = Bench::start_with(standing_in(), four()).await;
        let assign = bench.root("a").await;
        bench.report(&assign, 1, failed(Failure::new(row)));
        assert_eq!(bench.state(&assign.task_id).await, TaskState::Failed, "{}", row.name);
        assert!(bench.is_idle(), "{}: no other attempt", row.name);
        let seen = bench.inspect(&assign.task_id).await;
        assert_eq!(seen.failure.unwrap().retryable, Some(false), "{}", row.name);
        // The time of a task counts only if the agent or the operator has set one.
        let counted = u32::from(row != &reason::TASK_TIMEOUT);
        assert_eq!(bench.health("a").consecutive_failures, counted, "{}", row.name);
    }
}

#[tokio::test]
async fn retry_pause_survives_a_restart() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let assign = bench.root("a").await;
    let limited = Failure::new(&reason::RATE_LIMITED).with_retry_after(Duration::from_secs(20));
    bench.report(&assign, 1, failed(limited));
    let mut bench = bench.restart(vec![offer("a")]).await;
    bench.pass(18);
    bench.core.flushed().await;
    assert!(bench.is_idle(), "the new one waits as long as the old one would have");
    bench.pass(21);
    let again = bench.assigned().await;
    assert_eq!((&again.task_id, again.attempt), (&assign.task_id, 2));
    bench.complete(&again, 1);
    let seen = bench.inspect(&again.task_id).await;
    assert_eq!(seen.attempts[0].failure.as_ref().unwrap().reason, "RATE_LIMITED");
}

#[tokio::test]
async fn task_in_a_retry_pause_can_be_cancelled() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let assign = bench.root("a").await;
    bench.report(&assign, 1, away());
    let task = bench.cancel(&assign.task_id).await;
    assert_eq!(task.status.unwrap().state(), TaskState::Canceled);
    bench.pass(60);
    bench.core.flushed().await;
    assert!(bench.is_idle());
    assert_eq!(bench.health("a").consecutive_failures, 0);
}

#[tokio::test]
async fn retry_pause_does_not_count_as_waiting_for_workers() {
    let config = Config { reattach_grace_ms: 0, wait_for_worker_ms: 1, ..Config::default() };
    let mut bench = Bench::start_with(config, vec![offer("a")]).await;
    let assign = bench.root("a").await;
    bench.report(&assign, 1, away());
    bench.core.change(|state| state.registry.detach(bench.worker));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let core = &bench.core;
    core.change(|state| state.give_up_waiting(&core.config, now()));
    assert_eq!(bench.state(&assign.task_id).await, TaskState::Working);
}

#[tokio::test]
async fn retry_prefers_another_worker() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let (other, (outbox, mut messages)) = (WorkerId::new(), mpsc::channel(64));
    let assign = bench.root("a").await;
    let hello = Hello { agents: vec![offer("a")], slots: 1, ..Hello::default() };
    let core = &bench.core;
    core.change(|state| state.attach(other, hello, outbox, core.welcome(), now()));
    let turn = || bench.core.change(|state| state.registry.choose("a", None, None));
    assert_eq!(
        [turn(), turn()],
        [Some(bench.worker), Some(other)],
        "rotation puts this worker next"
    );
    bench.report(&assign, 1, away());
    bench.pass(60);
    bench.core.flushed().await;
    let mut given = Vec::new();
    while let Ok(message) = messages.try_recv() {
        given.extend(message.body);
    }
    let is_given = |body: &v1::to_worker::Body| matches!(body, v1::to_worker::Body::Assign(_));
    assert!(given.iter().any(is_given), "{given:?}");
    assert!(bench.is_idle());
}

#[tokio::test]
async fn three_failed_tasks_in_a_row_open_the_circuit_and_the_fourth_is_rejected() {
    let config = Config { retries: 0, breaker_open_ms: 30_000, ..Config::default() };
    let mut bench = Bench::start_with(config, vec![offer("a"), offer("b")]).await;
    for _ in 0..3 {
        bench.fail_whole("a", &reason::UNAVAILABLE).await;
    }
    let health = bench.health("a");
    assert_eq!((health.healthy, health.consecutive_failures), (false, 3));
    assert_eq!(health.circuit(), health::Circuit::Open);
    assert!(health.open_until.is_some() && health.last_failure.is_some());
    let refused = refusal_of(bench.send(request("a", "hi"), &principal("ann"))).await;
    assert_eq!((refused.reason.as_str(), refused.may_retry()), ("CIRCUIT_OPEN", true));
    let left = refused.retry_after().unwrap();
    assert!(left > Duration::from_secs(25) && left <= Duration::from_secs(30), "{left:?}");
    assert!(refused.public_message.contains("'a'"), "{}", refused.public_message);
    assert!(bench.is_idle());
    // A caller that is an agent is told the same, and that it was not its own doing.
    let parent = bench.root("b").await;
    let refused = refusal_of(bench.send(request("a", "x"), &bench.calling(&parent, "1"))).await;
    assert_eq!((refused.reason.as_str(), refused.origin_agent()), ("CIRCUIT_OPEN", "a"));
}

#[tokio::test]
async fn business_failures_and_cancels_leave_the_circuit_alone() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    for _ in 0..4 {
        bench.fail_whole("a", &reason::INVALID_ARGUMENT).await;
        let assign = bench.root("a").await;
        bench.cancel(&assign.task_id).await;
        bench.told().await;
    }
    let health = bench.health("a");
    assert_eq!((health.healthy, health.consecutive_failures), (true, 0));
}

#[tokio::test]
async fn half_open_circuit_lets_one_probe_through_and_follows_its_outcome() {
    let config = Config { retries: 0, breaker_open_ms: 50, ..Config::default() };
    let mut bench = Bench::start_with(config, vec![offer("a")]).await;
    for _ in 0..3 {
        bench.fail_whole("a", &reason::UNAVAILABLE).await;
    }
    for (succeeds, circuit) in [(false, health::Circuit::Open), (true, health::Circuit::Closed)] {
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(bench.health("a").circuit(), health::Circuit::HalfOpen);
        let probe = bench.root("a").await;
        let refused = refusal_of(bench.send(request("a", "hi"), &principal("ann"))).await;
        assert_eq!(refused.reason, "CIRCUIT_OPEN", "only one");
        if succeeds {
            bench.complete(&probe, 1)
        } else {
            bench.report(&probe, 1, away())
        }
        assert_eq!(bench.health("a").circuit(), circuit);
    }
    assert_eq!(bench.health("a").consecutive_failures, 0);
    bench.fail_whole("a", &reason::UNAVAILABLE).await;
    assert!(bench.health("a").healthy, "one failure does not open it");
}

#[tokio::test]
async fn successful_probe_from_the_queue_closes_the_circuit_for_the_rest() {
    let config = Config { retries: 0, breaker_open_ms: 50, ..Config::default() };
    let mut bench = Bench::start_with(config, vec![offer("a"), offer("b")]).await;
    // All slots are taken by another agent while tasks of this one queue up and it fails.
    bench.set_slots(4);
    let mut failing = Vec::new();
    for _ in 0..3 {
        failing.push(bench.root("a").await);
    }
    let holder = bench.root("b").await;
    for _ in 0..3 {
        task_of(bench.send(at_once(request("a", "later")), &principal("ann"))).await;
    }
    bench.set_slots(1);
    failing.iter().for_each(|assign| bench.report(assign, 1, away()));
    bench.set_slots(4);
    bench.serve_queues();
    bench.core.flushed().await;
    assert!(bench.is_idle(), "open circuit lets no task through");
    tokio::time::sleep(Duration::from_millis(60)).await;
    bench.serve_queues();
    let probe = bench.assigned().await;
    bench.core.flushed().await;
    assert!(bench.is_idle(), "one probe is let through");
    bench.complete(&probe, 1);
    bench.assigned().await;
    bench.assigned().await;
    bench.complete(&holder, 1);
}

#[tokio::test]
async fn slot_bound_of_an_agent_leaves_slots_to_others() {
    let own = AgentPolicy { slots_max: Some(2), ..AgentPolicy::default() };
    let config = policies(&[("hung", own)]);
    let mut bench = Bench::start_with(config, vec![offer("hung"), offer("fine")]).await;
    bench.set_slots(3);
    let first = bench.root("hung").await;
    bench.root("hung").await;
    for _ in 0..5 {
        task_of(bench.send(at_once(request("hung", "hi")), &principal("ann"))).await;
    }
    assert!(bench.is_idle());
    for _ in 0..3 {
        let assign = bench.root("fine").await;
        assert_eq!(assign.agent, "fine");
        bench.complete(&assign, 1);
    }
    bench.complete(&first, 1);
    assert_eq!(bench.assigned().await.agent, "hung", "one has ended, so one may start");
    bench.core.flushed().await;
    assert!(bench.is_idle());
}

#[tokio::test]
async fn full_queue_rejects_with_a_retry_delay() {
    let own = AgentPolicy { queue_max: Some(2), ..AgentPolicy::default() };
    let mut bench = Bench::start_with(policies(&[("a", own)]), vec![offer("a")]).await;
    bench.set_slots(1);
    bench.root("a").await;
    for _ in 0..2 {
        task_of(bench.send(at_once(request("a", "hi")), &principal("ann"))).await;
    }
    let refused = refusal_of(bench.send(request("a", "hi"), &principal("ann"))).await;
    assert_eq!((refused.reason.as_str(), refused.may_retry()), ("RATE_LIMITED", true));
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn queued_principals_take_turns() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    bench.set_slots(1);
    let mut running = bench.root("a").await;
    let mut owners = std::collections::HashMap::new();
    for (name, tasks) in [("many", 50), ("few", 2)] {
        for _ in 0..tasks {
            let sent = bench.send(at_once(request("a", name)), &principal(name));
            owners.insert(task_of(sent).await.id, name);
        }
    }
    let mut order = Vec::new();
    for _ in 0..5 {
        bench.complete(&running, 1);
        running = bench.assigned().await;
        order.push(owners[&running.task_id]);
    }
    assert_eq!(order, ["many", "few", "many", "few", "many"]);
}

fn standing_in() -> Config {
    let failover = vec!["stranger".to_owned(), "b".to_owned(), "c".to_owned()];
    let own = AgentPolicy { failover, ..AgentPolicy::default() };
    Config { retries: 0, breaker_failures: 1, ..policies(&[("a", own)]) }
}

fn four() -> Vec<AgentOffer> {
    let others = [skilled("b", "sum"), skilled("c", "sum"), skilled("stranger", "sing")];
    std::iter::once(skilled("a", "sum")).chain(others).collect()
}

#[tokio::test]
async fn stand_in_starts_over_and_is_named() {
    let mut bench = Bench::start_with(standing_in(), four()).await;
    let first = bench.root("a").await;
    bench.report(&first, 1, report::Body::Checkpoint(bytes::Bytes::from_static(b"a's own")));
    bench.report(&first, 2, away());
    let second = bench.assigned().await;
    assert_eq!((second.agent.as_str(), second.checkpoint.clone()), ("b", None));
    assert_eq!((second.attempt, &second.task_id), (2, &first.task_id));
    let child = bench.calling(&second, "1").calling.unwrap();
    assert_eq!(child.key, "b/1", "a's children are not its own");
    bench.report(&second, 1, away());
    let third = bench.assigned().await;
    assert_eq!(third.agent, "c", "no agent gets the task twice");
    bench.report(&third, 1, away());
    assert_eq!(bench.state(&first.task_id).await, TaskState::Failed);
    let seen = bench.inspect(&first.task_id).await;
    let agents: Vec<_> = seen.attempts.iter().map(|a| a.agent.as_str()).collect();
    assert_eq!((seen.agent.as_str(), agents), ("a", vec!["", "b", "c"]));
    assert_eq!(seen.failure.unwrap().origin.unwrap().agent, "c");
}

#[tokio::test]
async fn stand_in_serves_an_open_circuit_without_an_error_to_the_caller() {
    let mut bench = Bench::start_with(standing_in(), four()).await;
    let first = bench.root("a").await;
    bench.report(&first, 1, away());
    let second = bench.assigned().await;
    bench.complete(&second, 1);
    assert!(bench.health("a").healthy, "failover to b does not count as an end");
    // A failure that nobody can take over opens it.
    for name in ["b", "c"] {
        bench.core.change(|state| {
            state.note(name, TaskId::new(), HealthSignal::CannotServe, now());
        });
    }
    bench.fail_whole("a", &reason::UNAVAILABLE).await;
    assert!(!bench.health("a").healthy);
    let refused = refusal_of(bench.send(request("a", "hi"), &principal("ann"))).await;
    assert_eq!(refused.reason, "CIRCUIT_OPEN", "no stand-in is left");
    bench.core.change(|state| state.note("c", TaskId::new(), HealthSignal::Serves, now()));
    let answer = bench.send(request("a", "hi"), &principal("ann"));
    let assign = bench.assigned().await;
    assert_eq!(assign.agent, "c");
    bench.complete(&assign, 1);
    assert_eq!(task_of(answer).await.status.unwrap().state(), TaskState::Completed);
}

#[tokio::test]
async fn queued_task_of_an_agent_without_workers_goes_to_a_stand_in() {
    let config = Config { reattach_grace_ms: 0, ..standing_in() };
    let bench = Bench::start_with(config, four()).await;
    let mut bench = bench.restart(vec![skilled("b", "sum")]).await;
    let answer = bench.send(request("a", "hi"), &principal("ann"));
    let assign = bench.assigned().await;
    assert_eq!(assign.agent, "b");
    bench.complete(&assign, 1);
    assert!(soon(answer).await.unwrap().is_ok());
}

#[tokio::test]
async fn agent_without_a_common_skill_does_not_stand_in() {
    let failover = vec!["stranger".to_owned()];
    let own = AgentPolicy { failover, ..AgentPolicy::default() };
    let config = Config { retries: 0, ..policies(&[("a", own)]) };
    let mut bench = Bench::start_with(config, four()).await;
    let assign = bench.root("a").await;
    bench.report(&assign, 1, away());
    assert_eq!(bench.state(&assign.task_id).await, TaskState::Failed);
}

#[tokio::test]
async fn queued_task_moves_when_a_stand_in_attaches() {
    let config = Config { reattach_grace_ms: 0, ..standing_in() };
    let bench = Bench::start_with(config, four()).await;
    bench.set_slots(0);
    let sent = task_of(bench.send(at_once(request("a", "hi")), &principal("ann"))).await;
    let mut bench = bench.restart(vec![skilled("b", "sum")]).await;
    bench.core.flushed().await;
    assert!(bench.is_idle());
    bench.serve_queues();
    let assign = bench.assigned().await;
    assert_eq!((assign.agent.as_str(), assign.task_id), ("b", sent.id));
    let agents = bench.core.agents(&AgentsRequest::default()).unwrap().agents;
    assert!(agents.iter().all(|agent| agent.queued == 0));
}

#[tokio::test]
async fn exhausted_retry_budget_prevents_retries() {
    for (retry_budget, state) in [(2, TaskState::Failed), (3, TaskState::Working)] {
        let config = Config { retry_budget, ..Config::default() };
        let mut bench = Bench::start_with(config, vec![offer("a")]).await;
        let assign = bench.root("a").await;
        bench.report(&assign, 1, away());
        assert_eq!(bench.state(&assign.task_id).await, state);
    }
}

#[tokio::test]
async fn lost_worker_leads_to_failover() {
    let config = Config { max_attempts: 1, ..standing_in() };
    let mut bench = Bench::start_with(config, four()).await;
    let first = bench.root("a").await;
    let (other, (outbox, mut messages)) = (WorkerId::new(), mpsc::channel(64));
    let hello = Hello { agents: vec![skilled("b", "sum")], slots: 1, ..Hello::default() };
    let core = &bench.core;
    core.change(|state| state.attach(other, hello, outbox, core.welcome(), now()));
    core.change(|state| {
        state.registry.detach(bench.worker);
        state.lose_worker(bench.worker, now());
    });
    let seen = bench.inspect(&first.task_id).await;
    assert_eq!(seen.attempts[0].failure.as_ref().unwrap().reason, "WORKER_LOST");
    assert_eq!((seen.attempts[1].agent.as_str(), seen.attempts.len()), ("b", 2));
    drop(messages.try_recv());
}
