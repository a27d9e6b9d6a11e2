//! Tests of the retry decision as a table, with a manual clock.

use faultline_proto::v1::Origin;
use faultline_proto::{
    reason::{self, Reason, TABLE},
    v1::{self, Aggregate, Cause},
};

use super::*;

const RULES: RetryRules =
    RetryRules { retries: 3, base: Duration::from_secs(1), cap: Duration::from_secs(30) };
const FRESH: Situation = Situation { retries: 0, idempotent: false, remaining: None, chance: 0.5 };

fn born(reason: &'static Reason) -> Failure {
    Failure::new(reason).born_at(Origin { agent: "a".into(), ..Origin::default() })
}

/// As a service of the mesh refuses a call.
fn by_mesh(reason: &'static Reason) -> Failure {
    Failure::new(reason).born_at(Origin { service: "coordinator".into(), ..Origin::default() })
}

fn declined(failure: Failure) -> Failure {
    Failure::from_record(v1::Failure { declined: true, ..failure.into_record() })
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn retry_decision_matches_the_table() {
    let said = |reason, retryable| born(reason).with_retryable(retryable);
    let later = |reason, delay| born(reason).with_retry_after(delay);
    let idempotent = Situation { idempotent: true, ..FRESH };
    let table: &[(&str, Failure, Situation, Result<Duration, No>)] = &[
        ("class yes", born(&reason::UNAVAILABLE), FRESH, Ok(secs(1))),
        ("a timeout", born(&reason::TASK_TIMEOUT), FRESH, Err(No::NotRetryable)),
        ("a timeout, idempotent", born(&reason::TASK_TIMEOUT), idempotent, Ok(secs(1))),
        ("a lost stream", born(&reason::RECONNECT_EXHAUSTED), FRESH, Err(No::NotRetryable)),
        ("a lost stream, idempotent", born(&reason::RECONNECT_EXHAUSTED), idempotent, Ok(secs(1))),
        ("class never", born(&reason::INVALID_ARGUMENT), FRESH, Err(No::NotRetryable)),
        ("bad parameters", born(&reason::INVALID_PARAMS), FRESH, Err(No::NotRetryable)),
        ("no request", born(&reason::INVALID_REQUEST), FRESH, Err(No::NotRetryable)),
        ("not understood", born(&reason::JSON_PARSE), FRESH, Err(No::NotRetryable)),
        ("no such method", born(&reason::METHOD_NOT_FOUND), FRESH, Err(No::NotRetryable)),
        ("who calls", born(&reason::UNAUTHENTICATED), FRESH, Err(No::NotRetryable)),
        ("what it may", born(&reason::INSUFFICIENT_SCOPE), FRESH, Err(No::NotRetryable)),
        ("a panic", born(&reason::AGENT_PANICKED), idempotent, Err(No::NotRetryable)),
        ("enclosing", born(&reason::ABORTED), FRESH, Err(No::NotRetryable)),
        ("internal", born(&reason::INTERNAL), FRESH, Err(No::NotRetryable)),
        ("internal that says so", said(&reason::INTERNAL, true), FRESH, Ok(secs(1))),
        ("yes that says no", said(&reason::UNAVAILABLE, false), FRESH, Err(No::NotRetryable)),
        ("may have been done", born(&reason::UNKNOWN), FRESH, Err(No::NotRetryable)),
        ("may be done twice", born(&reason::UNKNOWN), idempotent, Ok(secs(1))),
        ("a deadline", born(&reason::DEADLINE_EXCEEDED), FRESH, Err(No::NotRetryable)),
        ("limited, no delay", born(&reason::RATE_LIMITED), FRESH, Ok(secs(1))),
        ("limited, a delay", later(&reason::RATE_LIMITED, secs(7)), FRESH, Ok(secs(7))),
        ("full, no delay", born(&reason::RESOURCE_EXHAUSTED), FRESH, Ok(secs(1))),
        ("overloaded, no delay", born(&reason::OVERLOADED), FRESH, Ok(secs(1))),
        ("full, a delay", later(&reason::RESOURCE_EXHAUSTED, secs(2)), FRESH, Ok(secs(2))),
        ("at the cap", later(&reason::UNAVAILABLE, secs(30)), FRESH, Ok(secs(30))),
        ("above it", later(&reason::UNAVAILABLE, secs(120)), FRESH, Err(No::TooLong)),
        (
            "a fault of the mesh in a call",
            by_mesh(&reason::STORE_UNAVAILABLE).wrap("a", "t", "c"),
            FRESH,
            Ok(secs(1)),
        ),
        (
            "the same of a child",
            by_mesh(&reason::STORE_UNAVAILABLE).wrap("b", "t", "c").wrap("a", "t", "c"),
            FRESH,
            Err(No::NotOurs),
        ),
        (
            "refused by a person",
            declined(said(&reason::FAILED_PRECONDITION, true)),
            idempotent,
            Err(No::NotRetryable),
        ),
        ("a child's", born(&reason::UNAVAILABLE).wrap("b", "t", "c"), FRESH, Err(No::NotOurs)),
        (
            "tried again further down",
            born(&reason::UNAVAILABLE).with_retries_spent(3),
            FRESH,
            Err(No::NotOurs),
        ),
    ];
    for (name, failure, situation, expected) in table {
        assert_eq!(pause(failure, &RULES, situation), *expected, "{name}");
    }
}

#[test]
fn unknown_outcome_is_run_again_only_by_the_declaration_or_the_code_of_the_agent() {
    let idempotent = Situation { idempotent: true, ..FRESH };
    let unknown = TABLE.iter().filter(|row| row.retry == Retry::Idempotent);
    for row in unknown {
        let flagged = |flag| born(row).with_retryable(flag);
        let quoted = quoted(row, &["peer"]).with_retryable(true);
        let table = [
            ("no flag", born(row), Err(No::NotRetryable), Ok(secs(1))),
            ("flag of the agent", flagged(true), Ok(secs(1)), Ok(secs(1))),
            ("denied by the agent", flagged(false), Err(No::NotRetryable), Err(No::NotRetryable)),
            ("flag of a server outside", quoted, Err(No::NotRetryable), Ok(secs(1))),
            ("key", born(row).with_repeat_by_key(), Err(No::NotRetryable), Ok(secs(1))),
        ];
        for (name, failure, otherwise, declared) in table {
            assert_eq!(pause(&failure, &RULES, &FRESH), otherwise, "{}: {name}", row.name);
            assert_eq!(pause(&failure, &RULES, &idempotent), declared, "{}: {name}", row.name);
        }
    }
}

/// A failure of a remote agent, whose own hops are quoted below its local name.
pub(crate) fn quoted(reason: &'static Reason, theirs: &[&str]) -> Failure {
    let mut record = Failure::new(reason).into_record();
    let cause = |agent: &&str| Cause { agent: format!("b:{agent}"), ..Cause::default() };
    record.causes = theirs.iter().map(cause).collect();
    record.hop = theirs.len() as u32 - 1;
    record.origin = Some(Origin { agent: "b".into(), ..Origin::default() });
    record.foreign = true;
    Failure::from_record(record).wrap("b", "t", "c")
}

#[test]
fn remote_failure_is_retried_by_its_local_agent() {
    let refused = quoted(&reason::UNAVAILABLE, &["peer"]);
    assert_eq!(pause(&refused, &RULES, &FRESH), Ok(secs(1)));
    let deep = quoted(&reason::UNAVAILABLE, &["plan", "code"]);
    assert_eq!(pause(&deep, &RULES, &FRESH), Ok(secs(1)), "we are next to it as well");
    let delayed = quoted(&reason::RATE_LIMITED, &["peer"]).with_retry_after(secs(7));
    assert_eq!(pause(&delayed, &RULES, &FRESH), Ok(secs(7)));
    let said = quoted(&reason::UNAVAILABLE, &["peer"]).with_retryable(false);
    assert_eq!(pause(&said, &RULES, &FRESH), Err(No::NotRetryable));
    let tried = refused.clone().with_retries_spent(2);
    assert_eq!(pause(&tried, &RULES, &FRESH), Err(No::Spent), "he has tried again himself");
    let above = refused.wrap("a", "t", "c");
    assert_eq!(pause(&above, &RULES, &FRESH), Err(No::NotOurs), "further up nobody does");
}

#[test]
fn failed_fan_out_counts_as_failure_of_its_branches() {
    let mut record = born(&reason::MIN_RESULTS_NOT_MET).into_record();
    record.aggregate = Some(Aggregate::default());
    let failure = Failure::from_record(record);
    assert_eq!(pause(&failure, &RULES, &FRESH), Err(No::NotOurs));
}

#[test]
fn backoff_doubles_up_to_the_cap() {
    let rules = RetryRules { retries: 7, ..RULES };
    let pauses = (0..8).map(|retries| {
        let situation = Situation { retries, ..FRESH };
        pause(&born(&reason::UNAVAILABLE), &rules, &situation).map(|pause| pause.as_secs())
    });
    let expected = [Ok(1), Ok(2), Ok(4), Ok(8), Ok(16), Ok(30), Ok(30), Err(No::Spent)];
    assert_eq!(pauses.collect::<Vec<_>>(), expected);
}

#[test]
fn jitter_is_20_percent_and_spares_requested_delays() {
    for (chance, millis) in [(0.0, 800), (0.5, 1000), (1.0, 1200)] {
        let situation = Situation { chance, ..FRESH };
        let own = pause(&born(&reason::UNAVAILABLE), &RULES, &situation);
        assert_eq!(own, Ok(Duration::from_millis(millis)));
        let asked = born(&reason::UNAVAILABLE).with_retry_after(secs(2));
        assert_eq!(pause(&asked, &RULES, &situation), Ok(secs(2)));
    }
}

#[test]
fn backoff_never_exceeds_the_cap() {
    let rules = RetryRules { retries: 40, ..RULES };
    for retries in 0..40 {
        for chance in [0.0, 0.5, 1.0] {
            let situation = Situation { retries, chance, ..FRESH };
            let pause = pause(&born(&reason::UNAVAILABLE), &rules, &situation).unwrap();
            assert!(pause <= secs(30), "retry {retries}: {pause:?}");
            assert!(retries < 9 || pause >= secs(24), "retry {retries}: {pause:?}");
        }
    }
}

#[test]
fn retry_past_the_deadline_is_not_made() {
    for (remaining, expected) in [(1049, Err(No::TooLate)), (1050, Ok(secs(1)))] {
        let situation = Situation { remaining: Some(Duration::from_millis(remaining)), ..FRESH };
        assert_eq!(pause(&born(&reason::UNAVAILABLE), &RULES, &situation), expected);
    }
}

#[test]
fn retry_budget_admits_a_flaky_agent_and_stops_a_dead_one() {
    let allowance = Allowance { max: 100, ratio: 0.5 };
    let mut flaky = RetryBudget::full(&allowance);
    for n in 0..1000 {
        match n % 10 {
            0 | 3 | 6 => assert!(flaky.failed(&allowance), "attempt {n}"),
            _ => flaky.succeeded(&allowance),
        }
    }
    let mut dead = RetryBudget::full(&allowance);
    assert_eq!((0..1000).filter(|_| dead.failed(&allowance)).count(), 49);
    for _ in 0..102 {
        dead.succeeded(&allowance);
    }
    assert!(!dead.failed(&allowance), "exactly half is not enough");
    dead.succeeded(&allowance);
    dead.succeeded(&allowance);
    dead.succeeded(&allowance);
    assert!(dead.failed(&allowance));
    let uncounted = Allowance { max: 0, ratio: 0.0 };
    assert!(RetryBudget::full(&uncounted).failed(&uncounted));
}
