//! The interpretation of a worker's report: the events that it means for its task. Pure.

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{Message, TaskState},
    v1::{ArtifactWritten, Checkpointed, Report, StatusChanged, event, report},
};

use crate::task::{
    Refused, Task, a2a_view::cancelled, artifacts::TooLarge, ended, nesting, tolerated,
};

/// The outcome of a report for its task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReportOutcome {
    /// These happen, in this order.
    Events(Vec<event::Body>),
    /// The whole answer is this message; the task never was.
    BareMessage(Box<Message>),
    /// The agent declines with this message; the caller ends it.
    Rejected(Box<Message>),
    /// The attempt failed; the caller ends the task or has it tried again.
    Failed(Box<Failure>),
    /// The task would hold more than one task may; the caller ends it.
    TooLarge,
}

impl Task {
    /// Decides a report of a worker.
    pub(crate) fn decide_report(&self, report: Report) -> Result<ReportOutcome, Refused> {
        if self.is_final() || report.attempt != self.attempt || self.worker.is_empty() {
            return Err(Refused::Fenced);
        }
        if report.number <= self.reported {
            return Err(Refused::Duplicate);
        }
        if report.number != self.reported + 1 {
            return Err(Refused::Nonsense("a report before this one is missing"));
        }
        let Some(body) = report.body else {
            return Err(Refused::Nonsense(
                "the report is empty, of an unknown kind, or too large in memory",
            ));
        };
        if nesting::is_report_too_deep(&body) {
            return Err(Refused::Nonsense("its data nests too deep"));
        }
        self.judge(body)
    }

    fn judge(&self, body: report::Body) -> Result<ReportOutcome, Refused> {
        use report::Body;
        let one = |body| Ok(ReportOutcome::Events(vec![body]));
        match body {
            Body::Started(_) => Ok(ReportOutcome::Events(Vec::new())),
            Body::Artifact(_)
            | Body::Status(_)
            | Body::Checkpoint(_)
            | Body::Tolerated(_)
            | Body::Ask(_)
                if self.seq >= limits::TASK_EVENTS_MAX =>
            {
                Ok(ReportOutcome::TooLarge)
            }
            Body::Status(message) => {
                one(event::Body::Status(StatusChanged { message: Some(self.signed(message)) }))
            }
            Body::Artifact(chunk) => {
                let artifact = chunk.artifact.filter(|a| !a.artifact_id.is_empty());
                let Some(artifact) = artifact else {
                    return Err(Refused::Nonsense("an artifact has no id"));
                };
                let mut write = ArtifactWritten {
                    artifact: Some(artifact),
                    append: chunk.append,
                    last_chunk: chunk.last_chunk,
                };
                match self.artifacts.admit(&write) {
                    Ok(append) => {
                        write.append = append;
                        one(event::Body::Artifact(write))
                    }
                    Err(TooLarge) => Ok(ReportOutcome::TooLarge),
                }
            }
            Body::Checkpoint(state) if state.len() > limits::CHECKPOINT_BYTES_MAX => {
                Ok(ReportOutcome::TooLarge)
            }
            Body::Checkpoint(state) => one(event::Body::Checkpointed(Checkpointed { state })),
            Body::Ask(interrupt) => self.judge_question(interrupt),
            Body::Withdrawn(withdrawn) => Ok(self.judge_withdrawal(withdrawn.key)),
            Body::Completed(done) => {
                one(ended(TaskState::Completed, done.message.map(|m| self.signed(m)), None))
            }
            Body::Failed(record) => {
                let failure = self.complete_failure(Failure::from_record(record), "worker");
                Ok(ReportOutcome::Failed(Box::new(failure)))
            }
            Body::Rejected(message) => Ok(ReportOutcome::Rejected(Box::new(self.signed(message)))),
            Body::Message(message) if self.reported == 0 && self.attempts.len() == 1 => {
                Ok(ReportOutcome::BareMessage(Box::new(message)))
            }
            // Too late for a bare message: the task exists, so the message is its last status.
            Body::Message(message) => {
                one(ended(TaskState::Completed, Some(self.signed(message)), None))
            }
            Body::Tolerated(record) => {
                let failure = self.complete_failure(Failure::from_record(record), "worker");
                one(event::Body::Tolerated(tolerated::recoverable(failure)))
            }
            Body::Released(_) => Ok(ReportOutcome::Events(self.decide_release())),
            // Told to stop, its task would have ended before this.
            Body::Stopped(_) => {
                let failure = cancelled("agent", "the agent stopped by itself", None);
                let failure = self.complete_failure(failure, "worker");
                one(ended(TaskState::Canceled, None, Some(failure)))
            }
        }
    }

    /// The agent declined; its message mirrors the failure as every final message does.
    pub(crate) fn reject(&self, mut message: Message, failure: Failure) -> event::Body {
        message.metadata = Some(failure.to_flat_metadata(TaskState::Rejected));
        ended(TaskState::Rejected, Some(message), Some(failure))
    }
}
