//! What to do about a failure: whether it ended the run, what a loop of a model and its tools makes
//! of it, and what too few results of a fan-out come to. The same record gives the same advice,
//! wherever it was born.

use std::collections::HashMap;

use tonic::Code;

use crate::{
    Failure,
    failure::{CAUSES_MAX, MESSAGE_BYTES_MAX, cut},
    reason,
    v1::{self, Aggregate, Branch, Disposition, Severity},
};

/// The class of an agent's error that was given none.
pub const FLOW_ERROR: &str = "flow_error";
/// The class of what was not the agent's doing: the mesh around it failed.
pub const RUN_ERROR: &str = "run_error";
/// The most branches that the failure of a fan-out names; it counts them all.
pub const BRANCHES_MAX: usize = 32;
/// The longest text of one branch.
const BRANCH_MESSAGE_BYTES_MAX: usize = 256;
/// The reason of a spent budget, in the words of those that have budgets. Not ours to raise.
const BUDGET_EXHAUSTED: &str = "USAGE_LIMIT_EXCEEDED";

impl Failure {
    /// Whether it ended its run; it did unless somebody said otherwise.
    pub fn severity(&self) -> Severity {
        match self.record().severity() {
            Severity::Recoverable => Severity::Recoverable,
            Severity::Unspecified | Severity::Fatal => Severity::Fatal,
        }
    }

    /// What the failure says itself, else what its code says. Never to repeat it unchanged: that is
    /// for those below the model, and whoever asks this asks after they gave up.
    pub fn disposition(&self) -> Disposition {
        match self.record().disposition() {
            Disposition::Unspecified => self.usual_disposition(),
            Disposition::RetrySame => Disposition::Report,
            said => said,
        }
    }

    fn usual_disposition(&self) -> Disposition {
        match self.code() {
            Code::InvalidArgument | Code::OutOfRange => Disposition::ModelRetry,
            // What was named is not there, and another name may be.
            Code::NotFound if self.row() == &reason::SKILL_NOT_FOUND => Disposition::ModelRetry,
            Code::NotFound if !self.violations.is_empty() => Disposition::ModelRetry,
            Code::ResourceExhausted if self.reason == BUDGET_EXHAUSTED => Disposition::Abort,
            Code::Unknown if self.is_typed() => Disposition::Report,
            Code::Ok
            | Code::Unknown
            | Code::Unauthenticated
            | Code::Internal
            | Code::DataLoss
            | Code::Cancelled => Disposition::Abort,
            Code::NotFound
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unimplemented
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::Aborted => Disposition::Report,
        }
    }

    /// Whether somebody chose what it says, and did not merely let an error go.
    pub fn is_typed(&self) -> bool {
        let default_type = ["", FLOW_ERROR, RUN_ERROR].contains(&self.error_type.as_str());
        !default_type || !self.business_code.is_empty() || self.reason != reason::UNKNOWN.name
    }

    // Building, at the origin.

    pub fn with_severity(self, severity: Severity) -> Self {
        self.edit(|record| record.severity = severity as i32)
    }

    pub fn with_disposition(self, disposition: Disposition) -> Self {
        self.edit(|record| record.disposition = disposition as i32)
    }

    /// The answer of a model that it came with.
    pub fn with_llm_response_id(self, id: impl Into<String>) -> Self {
        self.edit(|record| record.llm_response_id = id.into())
    }

    /// Too few of a fan-out's agents responded. `failed` has those that did not; whoever neither
    /// responded nor failed was not waited for.
    pub fn too_few(required: usize, asked: usize, succeeded: usize, failed: &[Branch]) -> Self {
        let text =
            format!("Only {succeeded}/{asked} agents responded. Minimum required: {required}");
        let failure = Self::new(&reason::MIN_RESULTS_NOT_MET).because(text);
        let branches = failed.iter().take(BRANCHES_MAX).cloned().map(bounded).collect();
        let aggregate = Aggregate {
            required: required as u32,
            succeeded: succeeded as u32,
            asked: asked as u32,
            branches,
        };
        let code = majority(failed).unwrap_or(reason::MIN_RESULTS_NOT_MET.code as i32);
        failure.edit(|record| {
            record.code = code;
            record.aggregate = Some(aggregate);
        })
    }

    /// This failure as one branch of a fan-out.
    pub fn to_branch(&self, agent: &str) -> Branch {
        let root = self.causes.last().cloned().unwrap_or_default();
        let own = |root: String, own: &str| if root.is_empty() { own.to_owned() } else { root };
        Branch {
            agent: agent.to_owned(),
            task_id: self.task_id.clone(),
            failure_id: self.id.clone(),
            code: self.code,
            reason: self.reason.clone(),
            public_message: self.public_message.clone(),
            origin_agent: self.origin_agent().to_owned(),
            root_reason: own(root.reason, &self.reason),
            root_message: own(root.public_message, &self.public_message),
            business_code: self.business_code.clone(),
            path: self.causes.iter().map(|cause| cause.agent.clone()).collect(),
        }
    }
}

/// Keeps what came from elsewhere within bounds.
pub(crate) fn bound(record: &mut v1::Failure) {
    cut(&mut record.llm_response_id, 255);
    if let Some(cancel) = &mut record.cancel {
        cut(&mut cancel.initiator, 63);
        cut(&mut cancel.reason, MESSAGE_BYTES_MAX);
    }
    if let Some(aggregate) = &mut record.aggregate {
        aggregate.branches.truncate(BRANCHES_MAX);
        for branch in &mut aggregate.branches {
            *branch = bounded(std::mem::take(branch));
        }
    }
}

fn bounded(mut branch: Branch) -> Branch {
    for text in [
        &mut branch.agent,
        &mut branch.task_id,
        &mut branch.failure_id,
        &mut branch.reason,
        &mut branch.public_message,
        &mut branch.origin_agent,
        &mut branch.root_reason,
        &mut branch.root_message,
        &mut branch.business_code,
    ] {
        cut(text, BRANCH_MESSAGE_BYTES_MAX);
    }
    branch.path.truncate(CAUSES_MAX);
    branch.path.iter_mut().for_each(|agent| cut(agent, BRANCH_MESSAGE_BYTES_MAX));
    branch
}

/// The code that more than half of the branches failed with.
fn majority(failed: &[Branch]) -> Option<i32> {
    let mut counts: HashMap<i32, usize> = HashMap::new();
    for branch in failed {
        *counts.entry(branch.code).or_default() += 1;
    }
    counts.into_iter().find(|(_, count)| 2 * count > failed.len()).map(|(code, _)| code)
}

#[cfg(test)]
mod tests {
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
    fn an_error_that_was_only_let_go_aborts_and_a_typed_one_does_not() {
        let unknown = || Failure::new(&reason::UNKNOWN);
        for untyped in [unknown().with_error_type(FLOW_ERROR), unknown().with_error_type(RUN_ERROR)]
        {
            assert_eq!(untyped.disposition(), Disposition::Abort);
        }
        for typed in [unknown().with_error_type("quota"), unknown().with_business_code("1")] {
            assert_eq!(typed.disposition(), Disposition::Report);
        }
    }

    #[test]
    fn what_was_said_counts_but_no_model_is_told_to_repeat_unchanged() {
        let said = |d| Failure::new(&reason::INTERNAL).with_disposition(d).disposition();
        assert_eq!(said(Disposition::ModelRetry), Disposition::ModelRetry);
        assert_eq!(said(Disposition::Report), Disposition::Report);
        assert_eq!(said(Disposition::RetrySame), Disposition::Report);
        let field = Failure::new(&reason::NOT_FOUND).with_violation("city", "there is none");
        assert_eq!(field.disposition(), Disposition::ModelRetry, "another argument may do");
    }

    #[test]
    fn a_hop_changes_no_disposition() {
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
    fn whatever_ends_a_run_is_fatal_unless_said_otherwise() {
        assert_eq!(Failure::new(&reason::INTERNAL).severity(), Severity::Fatal);
        let said = Failure::new(&reason::INTERNAL).with_severity(Severity::Recoverable);
        assert_eq!(said.severity(), Severity::Recoverable);
    }

    #[test]
    fn too_few_results_take_the_code_of_most_branches() {
        let branch = |reason| Failure::new(reason).to_branch("a");
        let down = branch(&reason::WORKER_LOST);
        let bad = branch(&reason::INVALID_ARGUMENT);
        let few = Failure::too_few(3, 3, 0, &[bad.clone(), bad.clone(), down.clone()]);
        assert_eq!(
            (few.code(), few.reason.as_str()),
            (Code::InvalidArgument, "MIN_RESULTS_NOT_MET")
        );
        assert_eq!(few.public_message, "Only 0/3 agents responded. Minimum required: 3");
        assert_eq!(
            few.aggregate.as_ref().unwrap().branches,
            [bad.clone(), bad.clone(), down.clone()]
        );
        assert_eq!(Failure::too_few(2, 2, 0, &[bad, down]).code(), Code::Unavailable);
    }

    #[test]
    fn a_branch_says_where_below_it_things_broke() {
        let origin = v1::Origin { agent: "code".into(), ..v1::Origin::default() };
        let born = Failure::new(&reason::RATE_LIMITED).because("slow").with_business_code("17");
        let branch = born.born_at(origin).wrap("plan", "t-2", "c").to_branch("plan");
        assert_eq!(branch.public_message, "code: slow");
        assert_eq!((&*branch.origin_agent, &*branch.business_code), ("code", "17"));
        assert_eq!((&*branch.root_reason, &*branch.root_message), ("RATE_LIMITED", "slow"));
        assert_eq!(branch.path, ["plan", "code"]);
    }

    #[test]
    fn a_strangers_aggregate_is_bounded() {
        let long = Branch { public_message: "x".repeat(5000), ..Branch::default() };
        let aggregate = Aggregate { branches: vec![long; 100], ..Aggregate::default() };
        let record = v1::Failure { aggregate: Some(aggregate), ..v1::Failure::default() };
        let read = Failure::from_record(record).aggregate.clone().unwrap();
        assert_eq!(read.branches.len(), BRANCHES_MAX);
        assert_eq!(read.branches[0].public_message.len(), BRANCH_MESSAGE_BYTES_MAX);
    }
}
