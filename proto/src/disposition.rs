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
mod tests;
