//! Round trips of failures through a status, and hostile details.

use proptest::prelude::{any as anything, prop, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::v1::Origin;

fn whole(code: i32, retryable: bool) -> Failure {
    let origin = Origin { agent: "pay".into(), service: "worker".into(), worker: "w-1".into() };
    Failure::new(reason::generic(Code::from_i32(code)))
        .because("card declined — try another")
        .with_business_code("CARD_17")
        .with_retryable(retryable)
        .with_retry_after(Duration::from_millis(2500))
        .with_task("t-1", "c-1")
        .with_trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
        .with_plane(Plane::Execution)
        .born_at(origin)
}

#[test]
fn every_code_round_trips_with_its_record() {
    for code in 1..=16 {
        for retryable in [true, false] {
            let sent = whole(code, retryable);
            let status = Status::from(sent.clone());
            assert_eq!(status.code() as i32, code);
            assert_eq!(status.message(), sent.public_message);
            assert_eq!(from_status(&status), sent);
        }
    }
}

#[test]
fn standard_details_have_the_essentials() {
    let sent = whole(14, true);
    let bytes = encode(&sent, false);
    let status = Status::with_details(Code::Unavailable, "card declined", bytes.into());
    let read = from_status(&status);
    assert_eq!((read.id.as_str(), read.reason.as_str()), (sent.id.as_str(), "UNAVAILABLE"));
    assert_eq!((read.business_code.as_str(), read.retryable), ("CARD_17", Some(true)));
    assert_eq!(read.retry_after(), sent.retry_after());
    assert_eq!((read.origin_agent(), read.task_id.as_str()), ("pay", "t-1"));
    assert_eq!(read.trace_id, sent.trace_id);
}

#[test]
fn unknown_reason_degrades_to_its_code() {
    let mut record = whole(8, true).into_record();
    record.reason = "FROM_THE_FUTURE".into();
    record.retryable = None;
    let read = from_status(&Status::from(Failure::from_record(record)));
    assert_eq!(read.reason, "FROM_THE_FUTURE");
    assert_eq!(read.row().name, "RESOURCE_EXHAUSTED");
    assert!(read.may_retry());
}

#[test]
fn details_stay_within_their_bounds_and_the_essentials_within_them() {
    let mut failure = whole(3, false).because("x".repeat(10_000));
    for i in 0..60 {
        failure = failure.wrap(&format!("agent-{i}"), &"t".repeat(300), "c");
        failure = failure.with_violation("f".repeat(500), "d".repeat(500));
    }
    let status = Status::from(failure.clone());
    assert!(status.details().len() <= DETAILS_BYTES_MAX, "{}", status.details().len());
    let read = from_status(&status);
    assert_eq!((read.id.as_str(), read.code), (failure.id.as_str(), 3));
    assert_eq!(read.causes.last().map(|c| c.agent.as_str()), Some("pay"));
    assert_eq!(read.causes.first().map(|c| c.agent.as_str()), Some("agent-59"));
    assert_eq!(read.causes.len() as u32 + read.causes_dropped, 61);
}

#[test]
fn wrong_codes_of_tonic_are_corrected() {
    let read = from_status(&Status::cancelled("Timeout expired"));
    assert_eq!(read.reason, "DEADLINE_EXCEEDED");
    let text = "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes";
    let read = from_status(&Status::out_of_range(text));
    assert_eq!((read.reason.as_str(), read.code()), ("CONTENT_TOO_LARGE", Code::InvalidArgument));
    assert_eq!(from_status(&Status::cancelled("stop")).reason, "CANCELLED");
    assert_eq!(from_status(&Status::ok("")).reason, "UNKNOWN");
}

#[test]
fn record_that_contradicts_the_code_is_ignored() {
    let bytes = encode(&whole(5, false), true);
    let status = Status::with_details(Code::Internal, "boom", bytes.into());
    assert_eq!(from_status(&status).code(), Code::Internal);
}

proptest! {
    #[test]
    fn hostile_details_never_panic_or_hide_the_code(
        code in 1..=16i32, bytes in prop::collection::vec(anything::<u8>(), 0..600),
        flip in anything::<usize>(), with in anything::<u8>(),
    ) {
        let code = Code::from_i32(code);
        let noise = Status::with_details(code, "m", bytes.into());
        prop_assert_eq!(from_status(&noise).code(), code);
        let mut bent = encode(&whole(code as i32, true), true);
        let at = flip % bent.len();
        bent[at] = with;
        let read = from_status(&Status::with_details(code, "m", bent.into()));
        prop_assert_eq!(read.code(), code);
        let again = Status::from(read);
        prop_assert!(again.details().len() <= DETAILS_BYTES_MAX);
    }
}
