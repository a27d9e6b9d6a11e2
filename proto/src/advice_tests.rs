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
fn verdict_is_retry_exactly_when_the_failure_may_be_retried() {
    for failure in all() {
        for reader in [Reader::Caller, Reader::Operator] {
            let advice = advise(&failure, reader);
            let expected = failure.may_retry();
            assert_eq!(advice.verdict == Verdict::Retry, expected, "{failure:?} {advice:?}");
        }
    }
    // Without a flag the class of the reason decides alone.
    for row in TABLE {
        let verdict = advise(&Failure::new(row), Reader::Caller).verdict;
        assert_eq!(verdict == Verdict::Retry, row.retry.may_retry(), "{}", row.name);
    }
}

#[test]
fn work_that_may_have_been_done_is_checked_first() {
    let lost = chain(&reason::WORKER_LOST, &[]).with_retryable(false);
    let cancelled = chain(&reason::CANCELLED, &[]).with_cancellation("deadline", "");
    let timed_out = chain(&reason::TASK_TIMEOUT, &[]);
    for failure in [lost, timed_out, cancelled, Failure::new(&reason::RECONNECT_EXHAUSTED)] {
        for failure in [failure.clone(), failure.wrap("billing", "t", "c")] {
            let advice = advise(&failure, Reader::Caller);
            assert_eq!((advice.verdict, advice.actor), (Verdict::Check, Party::Caller));
            assert_eq!(advice.retry_after, None);
            assert!(advice.text.contains("no harm"), "{}", advice.text);
        }
    }
}

#[test]
fn flag_of_another_program_does_not_settle_an_unknown_outcome() {
    let unknown = TABLE.iter().filter(|row| row.retry == reason::Retry::Idempotent);
    for row in unknown {
        let theirs = foreign(row, &["shop:x"], &["shop"]).with_retryable(true);
        let advice = advise(&theirs, Reader::Caller);
        assert_eq!((theirs.may_retry(), advice.verdict), (false, Verdict::Check), "{}", row.name);
        let by_mesh = born(row, "x", "coordinator").with_retryable(true);
        assert!(!by_mesh.may_retry(), "{}", row.name);
        // The agent's own code knows what its work has done.
        assert!(chain(row, &[]).with_retryable(true).may_retry(), "{}", row.name);
    }
    let refused = foreign(&reason::INTERNAL, &["shop:x"], &["shop"]).with_retryable(true);
    assert!(refused.may_retry(), "its outcome is known");
}

#[test]
fn operators_grant_what_the_mesh_refused() {
    for row in [&reason::PERMISSION_DENIED, &reason::INSUFFICIENT_SCOPE] {
        let refused = born(row, "", "coordinator");
        let caller = advise(&refused, Reader::Caller).text;
        assert!(caller.starts_with("ask the operator of the mesh for"), "{caller}");
        let operator = advise(&refused, Reader::Operator).text;
        assert!(operator.starts_with("grant the caller"), "{operator}");
        let below = born(row, "x", "coordinator").wrap("billing", "t", "c");
        assert_eq!(advise(&below, Reader::Operator).actor, Party::Operator);
    }
    let by_agent = advise(&chain(&reason::PERMISSION_DENIED, &[]), Reader::Operator).text;
    assert_eq!(by_agent, "the caller can ask the owner of agent 'ledger' for permission");
}

#[test]
fn media_type_of_the_http_body_is_not_a_matter_of_the_agent_card() {
    let advice =
        |service| advise(&born(&reason::CONTENT_TYPE_NOT_SUPPORTED, "", service), Reader::Caller);
    assert_eq!(
        advice("gateway").text,
        "send the body as application/json, without a Content-Encoding"
    );
    assert_eq!(advice("coordinator").text, "send a media type that the agent card lists");
}

#[test]
fn bug_of_a_remote_agent_is_named_by_its_task_and_time() {
    let mut record = foreign(&reason::INTERNAL, &["shop:y", "shop:x"], &["shop"]).into_record();
    record.time = Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 5 });
    for (cause, task) in record.causes.iter_mut().zip(["ours", "theirs", "deeper"]) {
        cause.task_id = task.into();
    }
    let failure = Failure::from_record(record);
    for reader in [Reader::Caller, Reader::Operator] {
        let text = advise(&failure, reader).text;
        assert!(text.contains("(remote task theirs, 2023-11-14T22:13:20Z)"), "{text}");
        assert!(!text.contains(&failure.id), "{text}");
    }
}

#[test]
fn no_of_an_agent_is_a_matter_of_the_caller_at_each_depth() {
    for row in [&reason::TASK_REJECTED, &reason::FAILED_PRECONDITION] {
        for above in [&[][..], &["billing"], &["billing", "planner", "front"]] {
            for failure in [chain(row, above), foreign(row, &["shop:x"], above)] {
                let advice = advise(&failure, Reader::Caller);
                assert_eq!((advice.verdict, advice.actor), (Verdict::Fix, Party::Caller));
                assert!(advice.text.contains("read the message"), "{}", advice.text);
            }
        }
        let far = advise(&chain(row, &["billing"]), Reader::Caller).text;
        assert!(far.ends_with("else report it to the owner of agent 'billing'"), "{far}");
    }
}

#[test]
fn operators_look_for_the_crash_after_a_lost_worker() {
    for retryable in [true, false] {
        let lost = chain(&reason::WORKER_LOST, &[]).with_retryable(retryable);
        let text = advise(&lost, Reader::Operator).text;
        assert!(text.contains("a crash in the log of the worker of agent 'ledger'"), "{text}");
        assert!(!advise(&lost, Reader::Caller).text.contains("crash"));
    }
}

#[test]
fn unknown_outcome_of_a_keyed_send_is_repeated_with_its_key() {
    let keyed = born(&reason::STORE_UNAVAILABLE, "", "coordinator").with_retryable(true);
    let keyed = keyed.with_retry_after(Duration::from_secs(2)).with_repeat_by_key();
    let advice = advise(&keyed, Reader::Caller);
    assert_eq!(advice.verdict, Verdict::Retry);
    let text = "wait 2s, then send again with the same Idempotency-Key";
    assert!(advice.text.starts_with(text), "{}", advice.text);
    // The key of an agent's own call is none of the caller's.
    let below = advise(&keyed.wrap("billing", "t", "c"), Reader::Caller);
    assert!(!below.text.contains("Key"), "{}", below.text);
}

#[test]
fn fault_of_the_mesh_in_a_call_of_an_agent_is_a_matter_of_the_operator() {
    for row in [&reason::STORE_UNAVAILABLE, &reason::OVERLOADED] {
        let failure = born(row, "", "coordinator").wrap("billing", "t", "c");
        let text = advise(&failure, Reader::Caller).text;
        assert!(text.ends_with("tell the operator of the mesh"), "{text}");
    }
    let unknown = born(&reason::OUTCOME_UNKNOWN, "", "coordinator").wrap("billing", "t", "c");
    let text = advise(&unknown, Reader::Caller).text;
    assert!(text.starts_with("a call that agent 'billing' made may have been done"), "{text}");
    let broken = born(&reason::INTERNAL, "", "coordinator").wrap("billing", "t", "c");
    assert_eq!(advise(&broken, Reader::Caller).actor, Party::Operator);
}

#[test]
fn wrong_configuration_of_a_remote_agent_is_corrected_by_the_operator() {
    for row in [&reason::INVALID_AGENT_RESPONSE, &reason::UNAUTHENTICATED] {
        let failure = born(row, "billing", REMOTE_SETUP).with_retryable(false);
        for failure in [failure.clone(), failure.wrap("front", "t", "c")] {
            let advice = advise(&failure, Reader::Operator);
            assert_eq!((advice.verdict, &advice.actor), (Verdict::Report, &Party::Operator));
            assert!(advice.text.contains("`remote.billing`"), "{}", advice.text);
        }
    }
}

#[test]
fn question_that_nobody_answered_is_sent_again_by_the_caller() {
    let advice = advise(&chain(&reason::INPUT_TIMEOUT, &[]), Reader::Caller);
    assert_eq!((advice.verdict, advice.actor), (Verdict::Fix, Party::Caller));
}

#[test]
fn record_names_the_party_in_words() {
    let ended = advise(&born(&reason::TASK_NOT_CANCELABLE, "", "gateway"), Reader::Caller);
    assert_eq!(ended.sentence(), "the task has ended, and its state is final");
    assert_eq!(
        (ended.to_record().actor.as_str(), ended.to_record().party.as_str()),
        ("nobody", "")
    );
    let lost = Failure::new(&reason::INVALID_AGENT_RESPONSE);
    assert_eq!(advise(&lost, Reader::Caller).to_record().party, "the owner of the agent");
    // As gateways answered that did not name it.
    let old = v1::Advice { text: "send again".into(), ..v1::Advice::default() };
    assert_eq!(sentence(&old), "send again");
}

#[test]
fn the_text_names_a_delay_exactly_when_there_is_one() {
    for failure in all() {
        for reader in [Reader::Caller, Reader::Operator] {
            let advice = advise(&failure, reader);
            let words = |delay| match reader {
                Reader::Caller => format!("wait {}, then", span(delay)),
                Reader::Operator => format!(" after {}", span(delay)),
            };
            let named = advice.retry_after.map(words);
            let is_named = ["wait ", " after 1s", " after 2.5s"].map(|w| advice.text.contains(w));
            assert_eq!(is_named.contains(&true), named.is_some(), "{advice:?}");
            assert!(named.is_none_or(|named| advice.text.contains(&named)), "{advice:?}");
            let delay = failure.delay().filter(|_| advice.verdict == Verdict::Retry);
            assert_eq!(advice.retry_after, delay, "{advice:?}");
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
            for retryable in [None, Some(true)] {
                let failure = chain(row, above).edit(|record| {
                    (record.declined, record.retryable) = (true, retryable);
                });
                let advice = advise(&failure, Reader::Caller);
                assert_eq!((advice.verdict, advice.actor), (Verdict::Stop, Party::Person));
                assert!(advice.text.starts_with("a person refused this"), "{}", advice.text);
                assert!(!failure.may_retry());
            }
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
        r#""retryAfterMs":2500,"party":"the caller"}"#
    );
    assert_eq!(record, expected);
    let far = advise(&chain(&reason::OUT_OF_RANGE, &["billing"]), Reader::Caller).to_record();
    assert_eq!((&*far.verdict, &*far.actor, &*far.agent), ("report", "owner", "billing"));
    assert_eq!(far.retry_after_ms, None);
}
