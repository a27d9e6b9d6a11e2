//! The rules that hold for every failure, and the contradictions that were seen.

use super::*;
use crate::{
    reason::{self, Reason, TABLE},
    v1::Origin,
};

fn born(reason: &'static Reason, agent: &str, service: &str) -> Failure {
    let origin = Origin { agent: agent.into(), service: service.into(), ..Origin::default() };
    Failure::new(reason).born_at(origin)
}

fn chain(reason: &'static Reason, above: &[&str]) -> Failure {
    let failure = born(reason, "ledger", "worker");
    above.iter().fold(failure, |failure, agent| failure.wrap(agent, "t", "c"))
}

/// Every reason, as the mesh and as agents raise it, near and far, with every flag and delay.
fn all() -> Vec<Failure> {
    let mut all = Vec::new();
    for row in TABLE {
        for depth in [0, 1, 4] {
            for (agent, service) in [("", "gateway"), ("ledger", "worker"), ("x", "coordinator")] {
                for retryable in [None, Some(true), Some(false)] {
                    for delay in [None, Some(Duration::from_millis(2500))] {
                        let hops = ["billing", "planner", "front", "top"];
                        let mut failure = born(row, agent, service);
                        if let Some(delay) = delay {
                            failure = failure.with_retry_after(delay);
                        }
                        let failure =
                            hops[..depth].iter().fold(failure, |f, a| f.wrap(a, "t", "c"));
                        let record = v1::Failure { retryable, ..failure.into_record() };
                        let foreign = v1::Failure { foreign: true, ..record.clone() };
                        all.extend([record, foreign].map(Failure::from_record));
                    }
                }
            }
        }
    }
    all
}

#[test]
fn the_verdict_is_retry_exactly_when_the_failure_may_be_retried() {
    for failure in all() {
        for reader in [Reader::Caller, Reader::Operator] {
            let advice = advise(&failure, reader);
            let is_retry = advice.verdict == Verdict::Retry;
            assert_eq!(is_retry, failure.may_retry(), "{failure:?} {advice:?}");
        }
    }
    // Without a flag the class of the reason decides alone.
    for row in TABLE {
        let verdict = advise(&Failure::new(row), Reader::Caller).verdict;
        assert_eq!(verdict == Verdict::Retry, row.retry.may_retry(), "{}", row.name);
    }
}

#[test]
fn the_text_names_a_delay_exactly_when_there_is_one() {
    for failure in all() {
        for reader in [Reader::Caller, Reader::Operator] {
            let advice = advise(&failure, reader);
            let named = advice.retry_after.map(|delay| format!("wait {}, then", span(delay)));
            assert_eq!(advice.text.contains("wait "), named.is_some(), "{advice:?}");
            assert!(named.is_none_or(|named| advice.text.contains(&named)), "{advice:?}");
            assert_eq!(advice.retry_after, failure.delay(), "{advice:?}");
        }
    }
}

#[test]
fn a_reason_of_the_delay_class_has_a_delay_also_when_none_came() {
    for row in TABLE.iter().filter(|row| row.retry == reason::Retry::Delay) {
        let advice = advise(&Failure::new(row), Reader::Caller);
        assert_eq!(advice.retry_after, Some(reason::DELAY_DEFAULT), "{}", row.name);
        assert!(advice.text.starts_with("wait 1s, then send again"), "{advice:?}");
    }
}

#[test]
fn readers_differ_in_words_only() {
    for failure in all() {
        let [one, other] = [Reader::Caller, Reader::Operator].map(|r| advise(&failure, r));
        assert_eq!((&one.verdict, &one.actor), (&other.verdict, &other.actor), "{failure:?}");
        assert!(!other.text.contains("report it to the operator"), "{other:?}");
        assert!(!other.text.contains("tell the operator"), "{other:?}");
    }
}

#[test]
fn every_reason_that_limits_the_rate_says_the_same_first() {
    for row in [&reason::OVERLOADED, &reason::RATE_LIMITED, &reason::RESOURCE_EXHAUSTED] {
        for above in [&[][..], &["billing", "planner"]] {
            let advice = advise(&chain(row, above), Reader::Caller);
            assert_eq!((advice.verdict, &advice.actor), (Verdict::Retry, &Party::Caller));
            assert!(advice.text.starts_with("wait 1s, then send again"), "{advice:?}");
        }
    }
}

#[test]
fn a_bad_request_is_corrected_by_the_agent_that_wrote_it() {
    let near = advise(&chain(&reason::INVALID_ARGUMENT, &[]), Reader::Caller);
    assert_eq!((near.verdict, near.actor), (Verdict::Fix, Party::Caller));
    assert_eq!(near.text, "correct the request, then send again");
    let far = chain(&reason::INVALID_ARGUMENT, &["billing", "planner", "front", "top"]);
    let far = advise(&far, Reader::Caller);
    assert_eq!((far.verdict, far.actor), (Verdict::Report, Party::Owner("billing".into())));
    assert_eq!(
        far.text,
        "agent 'ledger' refused the request that agent 'billing' wrote: report it to the owner of \
         agent 'billing'"
    );
}

#[test]
fn a_bug_of_an_agent_is_not_a_fault_of_the_mesh() {
    for reader in [Reader::Caller, Reader::Operator] {
        for above in [&[][..], &["billing"]] {
            let failure = chain(&reason::INTERNAL, above);
            let advice = advise(&failure, reader);
            assert_eq!(advice.actor, Party::Owner("ledger".into()));
            assert!(advice.text.starts_with("agent 'ledger' has a bug"), "{advice:?}");
            assert!(advice.text.contains(&failure.id), "{advice:?}");
            assert!(!advice.text.contains("mesh"), "{advice:?}");
        }
    }
    let ours = advise(&born(&reason::INTERNAL, "", "gateway"), Reader::Caller);
    assert_eq!(ours.actor, Party::Operator);
}

#[test]
fn a_refusal_by_a_person_is_final() {
    for row in [&reason::TASK_REJECTED, &reason::FAILED_PRECONDITION, &reason::PERMISSION_DENIED] {
        for above in [&[][..], &["billing", "planner"]] {
            let failure = chain(row, above).edit(|record| record.declined = true);
            let advice = advise(&failure, Reader::Caller);
            assert_eq!((advice.verdict, advice.actor), (Verdict::Stop, Party::Person));
            assert!(advice.text.starts_with("a person refused this"), "{}", advice.text);
        }
    }
}

/// As the remote agent's stand-in quotes it: our agent above, the names of the others behind a
/// colon.
fn foreign(reason: &'static Reason, theirs: &[&str], above: &[&str]) -> Failure {
    let failure = born(reason, theirs[0], "remote");
    let failure = theirs[1..].iter().fold(failure, |f, agent| f.wrap(agent, "t", "c"));
    let failure = failure.edit(|record| {
        record.foreign = true;
        record.origin.as_mut().unwrap().agent = "shop".into();
    });
    above.iter().fold(failure, |failure, agent| failure.wrap(agent, "t", "c"))
}

#[test]
fn a_fault_of_a_remote_agent_is_a_matter_of_its_owner() {
    let remote = || Party::Remote("shop".into());
    for row in [&reason::INTERNAL, &reason::INVALID_AGENT_RESPONSE, &reason::TASK_NOT_FOUND] {
        let advice = advise(&foreign(row, &["shop:x"], &["shop", "front"]), Reader::Caller);
        assert_eq!((advice.verdict, &advice.actor), (Verdict::Report, &remote()), "{advice:?}");
        assert!(!advice.text.contains("task id"), "{advice:?}");
    }
    let bad = |theirs: &[&str], above: &[&str]| {
        advise(&foreign(&reason::INVALID_ARGUMENT, theirs, above), Reader::Caller).actor
    };
    assert_eq!(bad(&["shop:x"], &["shop"]), Party::Caller, "the stand-in passes messages on");
    assert_eq!(bad(&["shop:x"], &["shop", "front"]), Party::Owner("front".into()));
    assert_eq!(bad(&["shop:y", "shop:x"], &["shop"]), remote());
}

#[test]
fn a_chain_that_lost_its_middle_does_not_name_the_wrong_agent() {
    let mut failure = chain(&reason::INVALID_ARGUMENT, &[]);
    for hop in 0..30 {
        failure = failure.wrap(&format!("a{hop}"), "t", "c");
    }
    let advice = advise(&failure, Reader::Caller);
    assert_eq!(advice.actor, Party::Owner(String::new()));
    assert!(!advice.text.contains("agent 'a"), "{advice:?}");
}

#[test]
fn the_record_names_the_agent_and_the_delay() {
    let limited = chain(&reason::RATE_LIMITED, &[]).with_retry_after(Duration::from_millis(2500));
    let record = json::to_string(&advise(&limited, Reader::Caller).to_record());
    let expected = concat!(
        r#"{"verdict":"retry","actor":"caller","text":"wait 2.5s, then send again","#,
        r#""retryAfterMs":2500}"#
    );
    assert_eq!(record, expected);
    let far = advise(&chain(&reason::OUT_OF_RANGE, &["billing"]), Reader::Caller).to_record();
    assert_eq!((&*far.verdict, &*far.actor, &*far.agent), ("report", "owner", "billing"));
    assert_eq!(far.retry_after_ms, None);
}
