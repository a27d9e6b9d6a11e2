//! Severity and disposition of codes, chains and aggregates.

use super::*;
use crate::reason::Reason;

#[test]
fn every_code_has_its_disposition() {
    use Disposition::{Abort, ModelRetry, Report};
    let rows: [(&'static Reason, Disposition); 24] = [
        (&reason::INVALID_ARGUMENT, ModelRetry),
        (&reason::OUT_OF_RANGE, ModelRetry),
        (&reason::CONTENT_TOO_LARGE, ModelRetry),
        (&reason::SKILL_NOT_FOUND, ModelRetry),
        (&reason::NOT_FOUND, Report),
        (&reason::AGENT_NOT_FOUND, Report),
        (&reason::FAILED_PRECONDITION, Report),
        (&reason::ALREADY_EXISTS, Report),
        (&reason::PERMISSION_DENIED, Report),
        (&reason::UNIMPLEMENTED, Report),
        (&reason::DEADLINE_EXCEEDED, Report),
        (&reason::UNAVAILABLE, Report),
        (&reason::WORKER_LOST, Report),
        (&reason::RATE_LIMITED, Report),
        (&reason::ABORTED, Report),
        (&reason::TASK_FAILED, Report),
        (&reason::MIN_RESULTS_NOT_MET, Report),
        (&reason::UNAUTHENTICATED, Abort),
        (&reason::INTERNAL, Abort),
        (&reason::AGENT_PANICKED, Abort),
        (&reason::DATA_LOSS, Abort),
        (&reason::UNKNOWN, Abort),
        (&reason::CANCELLED, Abort),
        (&reason::INVALID_AGENT_RESPONSE, Abort),
    ];
    for (reason, expected) in rows {
        assert_eq!(Failure::new(reason).disposition(), expected, "{}", reason.name);
    }
    let mut spent = Failure::new(&reason::RESOURCE_EXHAUSTED).into_record();
    spent.reason = BUDGET_EXHAUSTED.to_owned();
    assert_eq!(Failure::from_record(spent).disposition(), Abort);
}

#[test]
fn untyped_error_aborts_and_a_typed_one_does_not() {
    let unknown = || Failure::new(&reason::UNKNOWN);
    for untyped in [unknown().with_error_type(FLOW_ERROR), unknown().with_error_type(RUN_ERROR)] {
        assert_eq!(untyped.disposition(), Disposition::Abort);
    }
    for typed in [unknown().with_error_type("quota"), unknown().with_business_code("1")] {
        assert_eq!(typed.disposition(), Disposition::Report);
    }
}

#[test]
fn explicit_disposition_wins_except_for_an_unchanged_repetition_by_a_model() {
    let resulting = |d| Failure::new(&reason::INTERNAL).with_disposition(d).disposition();
    assert_eq!(resulting(Disposition::ModelRetry), Disposition::ModelRetry);
    assert_eq!(resulting(Disposition::Report), Disposition::Report);
    assert_eq!(resulting(Disposition::RetrySame), Disposition::Report);
    let field = Failure::new(&reason::NOT_FOUND).with_violation("city", "there is none");
    assert_eq!(field.disposition(), Disposition::ModelRetry, "another argument may do");
}

#[test]
fn hop_keeps_the_disposition() {
    for reason in [&reason::INVALID_ARGUMENT, &reason::UNAVAILABLE, &reason::UNKNOWN] {
        let failure = Failure::new(reason);
        let wrapped = failure.clone().wrap("a", "t", "c").wrap("b", "t", "c");
        let translated = failure.clone().because("Das ging schief");
        assert_eq!(translated.disposition(), failure.disposition(), "texts decide nothing");
        let mut foreign = failure.clone().into_record();
        foreign.foreign = true;
        assert_eq!(wrapped.disposition(), failure.disposition());
        assert_eq!(Failure::from_record(foreign).disposition(), failure.disposition());
    }
}

#[test]
fn failure_is_fatal_by_default() {
    assert_eq!(Failure::new(&reason::INTERNAL).severity(), Severity::Fatal);
    let recoverable = Failure::new(&reason::INTERNAL).with_severity(Severity::Recoverable);
    assert_eq!(recoverable.severity(), Severity::Recoverable);
}

#[test]
fn too_few_results_have_the_most_frequent_code_of_the_branches() {
    let branch = |reason| Failure::new(reason).to_branch("a");
    let down = branch(&reason::WORKER_LOST);
    let bad = branch(&reason::INVALID_ARGUMENT);
    let few = Failure::too_few(3, 3, 0, &[bad.clone(), bad.clone(), down.clone()]);
    assert_eq!((few.code(), few.reason.as_str()), (Code::InvalidArgument, "MIN_RESULTS_NOT_MET"));
    assert_eq!(few.public_message, "Only 0/3 agents responded. Minimum required: 3");
    assert_eq!(few.aggregate.as_ref().unwrap().branches, [bad.clone(), bad.clone(), down.clone()]);
    assert_eq!(Failure::too_few(2, 2, 0, &[bad, down]).code(), Code::Unavailable);
}

#[test]
fn branch_names_the_origin_below_it() {
    let origin = v1::Origin { agent: "code".into(), ..v1::Origin::default() };
    let born = Failure::new(&reason::RATE_LIMITED).because("slow").with_business_code("17");
    let branch = born.born_at(origin).wrap("plan", "t-2", "c").to_branch("plan");
    assert_eq!(branch.public_message, "code: slow");
    assert_eq!((&*branch.origin_agent, &*branch.business_code), ("code", "17"));
    assert_eq!((&*branch.root_reason, &*branch.root_message), ("RATE_LIMITED", "slow"));
    assert_eq!(branch.path, ["plan", "code"]);
}

#[test]
fn foreign_aggregate_is_bounded() {
    let long = Branch { public_message: "x".repeat(5000), ..Branch::default() };
    let aggregate = Aggregate { branches: vec![long; 100], ..Aggregate::default() };
    let record = v1::Failure { aggregate: Some(aggregate), ..v1::Failure::default() };
    let read = Failure::from_record(record).aggregate.clone().unwrap();
    assert_eq!(read.branches.len(), BRANCHES_MAX);
    assert_eq!(read.branches[0].public_message.len(), BRANCH_MESSAGE_BYTES_MAX);
}
