//! Wrapping, texts, bounds and task metadata of failures.

use super::*;

fn born(agent: &str) -> Failure {
    let origin = Origin { agent: agent.to_owned(), ..Origin::default() };
    Failure::new(&reason::RATE_LIMITED)
        .because("slow down")
        .with_business_code("40401")
        .with_trace("4bf9", "00f0")
        .born_at(origin)
}

#[test]
fn wrapped_failure_keeps_the_facts_of_its_origin() {
    let root = born("code");
    let top = root.clone().wrap("plan", "t-2", "c").wrap("front", "t-1", "c");
    assert_eq!((top.id.as_str(), top.origin_agent()), (root.id.as_str(), "code"));
    assert_eq!((top.reason.as_str(), top.code), ("RATE_LIMITED", 8));
    assert_eq!((top.trace_id.as_str(), top.hop), ("4bf9", 2));
    assert_eq!(top.public_message, "code: slow down (via plan)");
    let hops: Vec<_> = top.causes.iter().map(|c| (c.agent.as_str(), c.hop)).collect();
    assert_eq!(hops, [("front", 2), ("plan", 1), ("code", 0)]);
    let texts: Vec<_> = top.causes.iter().map(|c| c.public_message.as_str()).collect();
    assert_eq!(texts, ["", "", "slow down"], "the text appears once");
}

#[test]
fn text_of_a_chain_is_the_origins_with_its_path() {
    let text = "the card processor takes 20 calls a minute";
    let failure = born("ledger").because("unused");
    let mut record = failure.into_record();
    record.causes[0].public_message = text.to_owned();
    let failure = Failure::from_record(record).wrap("billing", "t", "c");
    assert_eq!(failure.public_message, format!("ledger: {text}"));
    let failure = failure.wrap("planner", "t", "c");
    assert_eq!(failure.public_message, format!("ledger: {text} (via billing)"));
    let failure = failure.wrap("front", "t", "c");
    assert_eq!(failure.public_message, format!("ledger: {text} (via billing, planner)"));
}

#[test]
fn text_of_a_long_chain_is_bounded_and_keeps_its_path() {
    let origin = Origin { agent: "code".to_owned(), ..Origin::default() };
    let mut failure = Failure::new(&reason::UNAVAILABLE).because("ä".repeat(2000)).born_at(origin);
    for hop in 0..40 {
        failure = failure.wrap(&format!("a{hop}"), "t", "c");
        assert!(failure.public_message.len() <= MESSAGE_BYTES_MAX);
    }
    let message = &failure.public_message;
    assert!(message.starts_with("code: ä") && message.contains(" (via …, a"), "{message}");
    assert!(message.ends_with(", a38)"), "{message}");
}

#[test]
fn long_chain_loses_its_middle_and_counts_it() {
    let mut failure = born("root");
    for i in 0..40 {
        failure = failure.wrap(&format!("a{i}"), "t", "c");
    }
    assert_eq!(failure.causes.len(), CAUSES_MAX);
    assert_eq!(failure.causes_dropped, 41 - CAUSES_MAX as u32);
    assert_eq!(failure.causes[0].agent, "a39");
    assert_eq!(failure.causes[CAUSES_MAX - 1].agent, "root");
    assert_eq!(failure.hop, 40);
}

#[test]
fn private_text_appears_only_in_the_log() {
    let failure = born("a").privately("password=hunter2");
    assert!(!format!("{failure:?} {failure}").contains("hunter2"));
    assert!(!json::to_string(failure.record()).contains("hunter2"));
    assert_eq!(failure.private().map(Private::for_log), Some("password=hunter2"));
}

#[test]
fn explicit_flag_overrides_the_reason() {
    assert!(born("a").may_retry());
    assert!(!born("a").with_retryable(false).may_retry());
    assert!(!Failure::new(&reason::INTERNAL).may_retry());
}

#[test]
fn unknown_field_of_a_newer_peer_keeps_the_rest_of_the_record() {
    let record = r#"{"code":8,"reason":"RATE_LIMITED","domain":"faultline.dev",
        "plane":"PLANE_BRAND_NEW","severity":"SEVERITY_ODD","businessCode":"B9"}"#;
    let record: Struct = json::from_str(record).unwrap();
    let value = Value { kind: Some(Kind::StructValue(record)) };
    let metadata = Struct { fields: [(METADATA_KEY.to_owned(), value)].into() };
    let failure = Failure::from_metadata(&metadata).expect("the record is read");
    assert_eq!((failure.row(), failure.plane()), (&reason::RATE_LIMITED, Plane::Unspecified));
    assert_eq!(failure.business_code, "B9");
}

#[test]
fn task_metadata_has_the_record_and_the_flat_keys() {
    let failure = born("a").with_violation("order.id", "missing");
    let metadata = failure.to_metadata(TaskState::Failed);
    assert_eq!(Failure::from_metadata(&metadata), Some(failure.clone()));
    let mirrored = failure.to_flat_metadata(TaskState::Failed);
    assert_eq!(Failure::from_metadata(&mirrored), None, "the record appears once");
    let texts = [json::to_string(&metadata), json::to_string(&mirrored)];
    for flat in [
        r#""object_type":"error""#,
        r#""error_type":"run_error""#,
        r#""error_code":"40401""#,
        r#""error_message":"slow down""#,
        r#""task_state":"failed""#,
        r#""error_param":"order.id""#,
    ] {
        assert!(texts.iter().all(|text| text.contains(flat)), "{flat} in {texts:?}");
    }
}
