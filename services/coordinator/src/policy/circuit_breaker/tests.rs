//! Tests of the circuit breaker through its states, with a manual clock.

use faultline_proto::v1::{Attempt, Origin};

use super::*;

const RULES: BreakerRules = BreakerRules { failures: 3, open: Duration::from_secs(30) };

struct Clocked {
    breaker: Breaker,
    now: Instant,
}

impl Clocked {
    fn new() -> Self {
        Self { breaker: Breaker::default(), now: Instant::now() }
    }

    fn pass(&mut self, secs: u64) {
        self.now += Duration::from_secs(secs);
    }

    fn record(&mut self, task: TaskId, signal: HealthSignal) -> bool {
        self.breaker.record(task, signal, &RULES, self.now)
    }

    fn fail(&mut self, times: usize) {
        for _ in 0..times {
            self.record(TaskId::new(), HealthSignal::CannotServe);
        }
    }

    fn lets_through(&self, task: TaskId) -> bool {
        self.breaker.lets_through(Some(task), &RULES, self.now)
    }

    fn circuit(&self) -> Circuit {
        self.breaker.circuit(self.now)
    }
}

#[test]
fn three_failures_in_a_row_open_it_for_thirty_seconds() {
    let mut at = Clocked::new();
    at.fail(2);
    assert_eq!((at.circuit(), at.lets_through(TaskId::new())), (Circuit::Closed, true));
    assert!(at.record(TaskId::new(), HealthSignal::CannotServe));
    assert_eq!(at.circuit(), Circuit::Open(Duration::from_secs(30)));
    at.pass(29);
    assert_eq!(at.circuit(), Circuit::Open(Duration::from_secs(1)));
    assert!(!at.lets_through(TaskId::new()));
    at.pass(1);
    assert_eq!((at.circuit(), at.lets_through(TaskId::new())), (Circuit::HalfOpen, true));
}

#[test]
fn a_success_in_between_starts_the_count_again() {
    let mut at = Clocked::new();
    at.fail(2);
    assert!(!at.record(TaskId::new(), HealthSignal::Serves));
    at.fail(2);
    assert_eq!((at.circuit(), at.breaker.failures()), (Circuit::Closed, 2));
}

#[test]
fn one_probe_decides() {
    for (signal, closes) in [(HealthSignal::Serves, true), (HealthSignal::CannotServe, false)] {
        let mut at = Clocked::new();
        at.fail(3);
        at.pass(30);
        let (probe, other) = (TaskId::new(), TaskId::new());
        at.breaker.started(probe, at.now);
        assert!(at.lets_through(probe), "its next attempt too");
        assert!(!at.lets_through(other));
        at.record(probe, signal);
        assert_eq!(at.circuit() == Circuit::Closed, closes);
        assert_eq!(at.lets_through(other), closes);
    }
}

#[test]
fn after_a_success_the_next_failure_does_not_open_it() {
    let mut at = Clocked::new();
    at.fail(3);
    at.pass(30);
    at.record(TaskId::new(), HealthSignal::Serves);
    at.fail(1);
    assert_eq!((at.circuit(), at.breaker.failures()), (Circuit::Closed, 1));
}

#[test]
fn failure_beside_the_probe_is_ignored() {
    let mut at = Clocked::new();
    at.fail(3);
    at.pass(10);
    at.fail(1);
    assert_eq!(at.circuit(), Circuit::Open(Duration::from_secs(20)), "no longer than it was");
    at.pass(20);
    at.breaker.started(TaskId::new(), at.now);
    at.fail(1);
    assert_eq!(at.circuit(), Circuit::HalfOpen);
}

#[test]
fn cancelled_or_hanging_probe_is_replaced() {
    let mut at = Clocked::new();
    at.fail(3);
    at.pass(30);
    let probe = TaskId::new();
    at.breaker.started(probe, at.now);
    at.record(TaskId::new(), HealthSignal::Nothing);
    assert!(!at.lets_through(TaskId::new()), "somebody else's cancel");
    at.record(probe, HealthSignal::Nothing);
    assert!(at.lets_through(TaskId::new()));
    at.breaker.started(probe, at.now);
    at.pass(29);
    assert!(!at.lets_through(TaskId::new()));
    at.pass(1);
    assert!(at.lets_through(TaskId::new()));
}

#[test]
fn new_worker_allows_a_probe_at_once() {
    let mut at = Clocked::new();
    at.fail(3);
    at.breaker.see_now(at.now);
    assert_eq!(at.circuit(), Circuit::HalfOpen);
}

#[test]
fn breaker_with_zero_failures_never_opens() {
    let never = BreakerRules { failures: 0, ..RULES };
    let (mut breaker, now) = (Breaker::default(), Instant::now());
    assert!((0..100).all(|_| !breaker.record(
        TaskId::new(),
        HealthSignal::CannotServe,
        &never,
        now
    )));
    assert!(breaker.is_closed());
}

#[test]
fn only_infrastructure_failures_count() {
    let born = |reason| Failure::new(reason).born_at(Origin::default());
    for reason in [
        &reason::WORKER_LOST,
        &reason::UNAVAILABLE,
        &reason::AGENT_UNAVAILABLE,
        &reason::TASK_TIMEOUT,
        &reason::RECONNECT_EXHAUSTED,
        &reason::DEADLINE_EXCEEDED,
        &reason::CONNECT_TIMEOUT,
        &reason::READ_TIMEOUT,
        &reason::WRITE_TIMEOUT,
        &reason::CALL_TIMEOUT,
    ] {
        assert!(cannot_serve(&born(reason)), "{}", reason.name);
        assert!(!cannot_serve(&born(reason).wrap("b", "t", "c")), "a child's {}", reason.name);
        let mesh = Origin { service: "coordinator".into(), ..Origin::default() };
        let by_mesh = Failure::new(reason).born_at(mesh).wrap("a", "t", "c");
        assert!(!cannot_serve(&by_mesh), "the mesh's {}", reason.name);
    }
    for reason in [
        &reason::INVALID_ARGUMENT,
        &reason::RATE_LIMITED,
        &reason::UNKNOWN,
        &reason::CANCELLED,
        &reason::TASK_REJECTED,
        &reason::AGENT_PANICKED,
        &reason::CIRCUIT_OPEN,
    ] {
        assert!(!cannot_serve(&born(reason)), "{}", reason.name);
    }
}

#[test]
fn remote_outage_counts_for_its_local_agent() {
    let quoted = crate::policy::retry::tests::quoted(&reason::UNAVAILABLE, &["peer"]);
    assert!(cannot_serve(&quoted));
    assert!(cannot_serve(&quoted.clone().with_retries_spent(3)), "however often he tried");
    assert!(!cannot_serve(&quoted.wrap("front", "t", "c")), "not for who called it");
    let of_trade = crate::policy::retry::tests::quoted(&reason::INVALID_ARGUMENT, &["peer"]);
    assert!(!cannot_serve(&of_trade));
}

#[test]
fn timeout_in_the_queue_is_no_health_signal() {
    let failure = Failure::new(&reason::TASK_TIMEOUT).born_at(Origin::default());
    let attempt = |outcome: Outcome| Attempt { outcome: outcome as i32, ..Attempt::default() };
    let signal = |attempts: Vec<Attempt>| {
        let mut task = Task::blank(TaskId::new(), "a".into(), "c".into(), 0);
        (task.state, task.failure) = (TaskState::Failed, Some(failure.clone()));
        task.attempts = attempts;
        said_by(&task, Some(Duration::from_secs(1)))
    };
    assert_eq!(signal(vec![]), HealthSignal::Nothing, "nobody had it");
    assert_eq!(
        signal(vec![attempt(Outcome::Released)]),
        HealthSignal::Nothing,
        "it was handed back"
    );
    assert_eq!(signal(vec![attempt(Outcome::Ended)]), HealthSignal::CannotServe, "it was at it");
}
