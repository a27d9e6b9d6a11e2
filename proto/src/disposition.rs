//! The severity and the disposition of a failure: whether it ended the run, and how a loop of a
//! model and its tools should react. Also the failure of a fan-out with too few results. Both
//! follow from the record alone, wherever the failure originated.

use std::collections::HashMap;

use tonic::Code;

use crate::{
    Failure,
    failure::{CAUSES_MAX, MESSAGE_BYTES_MAX, cut},
    reason,
    v1::{self, Aggregate, Branch, Disposition, Severity},
};

/// The error type of an agent's error without one.
pub const FLOW_ERROR: &str = "flow_error";
/// The error type of a failure that the mesh caused.
pub const RUN_ERROR: &str = "run_error";
/// The largest number of branches in the record of a fan-out; it counts them all.
pub const BRANCHES_MAX: usize = 32;
/// The longest text of one branch.
const BRANCH_MESSAGE_BYTES_MAX: usize = 256;
/// The reason of an exhausted budget, as other frameworks name it. The mesh never raises it.
const BUDGET_EXHAUSTED: &str = "USAGE_LIMIT_EXCEEDED";

impl Failure {
    /// Whether the failure ended its run; it did by default.
    pub fn severity(&self) -> Severity {
        match self.record().severity() {
            Severity::Recoverable => Severity::Recoverable,
            Severity::Unspecified | Severity::Fatal => Severity::Fatal,
        }
    }

    /// The explicit disposition, else that of the code. Never RETRY_SAME: retries happen below the
    /// model, and a caller of this function gets the failure after they were given up.
    pub fn disposition(&self) -> Disposition {
        match self.record().disposition() {
            Disposition::Unspecified => self.usual_disposition(),
            Disposition::RetrySame => Disposition::Report,
            explicit => explicit,
        }
    }

    fn usual_disposition(&self) -> Disposition {
        match self.code() {
            Code::InvalidArgument | Code::OutOfRange => Disposition::ModelRetry,
            // The named skill does not exist; another name may.
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

    /// Whether the agent chose the error, and did not merely propagate one.
    pub fn is_typed(&self) -> bool {
        let default_type = ["", FLOW_ERROR, RUN_ERROR].contains(&self.error_type.as_str());
        !default_type || !self.business_code.is_empty() || self.reason != reason::UNKNOWN.name
    }

    // Builders, used at the origin.

    pub fn with_severity(self, severity: Severity) -> Self {
        self.edit(|record| record.severity = severity as i32)
    }

    pub fn with_disposition(self, disposition: Disposition) -> Self {
        self.edit(|record| record.disposition = disposition as i32)
    }

    /// Sets the id of the model's response that caused the failure.
    pub fn with_llm_response_id(self, id: impl Into<String>) -> Self {
        self.edit(|record| record.llm_response_id = id.into())
    }

    /// The failure of a fan-out with too few results. `failed` has the failed branches; an agent
    /// that neither responded nor failed was not waited for.
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

/// Bounds the parts that came from elsewhere.
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

/// The code of more than half of the failed branches.
fn majority(failed: &[Branch]) -> Option<i32> {
    let mut counts: HashMap<i32, usize> = HashMap::new();
    for branch in failed {
        *counts.entry(branch.code).or_default() += 1;
    }
    counts.into_iter().find(|(_, count)| 2 * count > failed.len()).map(|(code, _)| code)
}

#[cfg(test)]
mod tests;
