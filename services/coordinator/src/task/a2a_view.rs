//! The A2A view of a task, with the metadata that its failure carries. Pure.

use faultline_proto::{Failure, a2a, answer, json, reason, v1};
use prost_types::{Value, value::Kind};
use tonic::Code;

use crate::task::{
    Task,
    failure_origin::is_born_here,
    frame::{INTERRUPT_KEY, interrupts},
    timestamp,
};

/// Where a delegated task names the task that delegated it.
const PARENT_KEY: &str = "faultline.dev/parent";

impl Task {
    /// Completes a failure with the data that every failure of this task carries.
    pub(crate) fn complete_failure(&self, failure: Failure, service: &str) -> Failure {
        let origin = v1::Origin {
            agent: self.runner().to_owned(),
            service: service.to_owned(),
            worker: String::new(),
        };
        let failure = failure.with_task(self.id, &self.context_id);
        let failure = match failure.trace_id.is_empty() {
            true => {
                let trace = match self.worker.is_empty() {
                    true => self.run_trace(),
                    false => self.attempt_trace(),
                };
                failure.with_trace(trace.trace_id(), trace.span_id())
            }
            false => failure,
        };
        let failure = failure.born_at(origin);
        match is_born_here(&failure) && gives_up(&failure) && self.was_declined() {
            true => Failure::from_record(v1::Failure { declined: true, ..failure.into_record() }),
            false => failure,
        }
    }

    /// Whether a person declined the last question.
    fn was_declined(&self) -> bool {
        let Some(given) = self.answers.last() else { return false };
        let id = self.ids().question_id(&given.key);
        let question = self.history.iter().find(|message| message.message_id == id);
        let asked = question.and_then(|message| {
            match message.metadata.as_ref()?.fields.get(INTERRUPT_KEY)?.kind.as_ref()? {
                Kind::StructValue(record) => json::from_struct::<v1::Interrupt>(record).ok(),
                _ => None,
            }
        });
        let message = given.message.clone().unwrap_or_default();
        answer::is_no(&asked.unwrap_or_default(), &message, given.action())
    }

    fn status(&self) -> a2a::TaskStatus {
        a2a::TaskStatus {
            state: self.state as i32,
            message: self.status_message.clone(),
            timestamp: Some(timestamp(self.status_at)),
        }
    }

    fn metadata(&self) -> Option<prost_types::Struct> {
        let failure = self.failure.as_ref().map(|f| f.to_metadata(self.state));
        let mut own = self.tolerated.show(failure);
        if let Some(asked) = interrupts(&self.pending) {
            own.get_or_insert_default().fields.extend(asked.fields);
        }
        let Some(parent) = &self.parent else { return own };
        let mut metadata = own.unwrap_or_default();
        let kind = Some(Kind::StringValue(parent.task_id.clone()));
        metadata.fields.insert(PARENT_KEY.to_owned(), Value { kind });
        Some(metadata)
    }

    /// As A2A shows it. `history`: at most so many of the latest messages.
    pub(in crate::task) fn to_a2a(&self, history: Option<i32>, artifacts: bool) -> a2a::Task {
        let keep = history.map_or(self.history.len(), |n| n.max(0) as usize);
        let skip = self.history.len().saturating_sub(keep);
        a2a::Task {
            id: self.id.to_string(),
            context_id: self.context_id.clone(),
            status: Some(self.status()),
            artifacts: if artifacts {
                self.artifacts.iter().cloned().collect()
            } else {
                Vec::new()
            },
            history: self.history[skip..].to_vec(),
            metadata: self.metadata(),
        }
    }

    /// The same for the last reader, without a copy of the task.
    pub(in crate::task) fn into_a2a(mut self, history: Option<i32>) -> a2a::Task {
        let keep = history.map_or(self.history.len(), |n| n.max(0) as usize);
        let skip = self.history.len().saturating_sub(keep);
        self.history.drain(..skip);
        a2a::Task {
            id: self.id.to_string(),
            status: Some(self.status()),
            metadata: self.metadata(),
            context_id: self.context_id,
            artifacts: self.artifacts.into_vec(),
            history: self.history,
        }
    }
}

/// Whether an agent that was told no ends its task like this: by a rejection, or by an error that
/// says the same.
fn gives_up(failure: &Failure) -> bool {
    matches!(failure.code(), Code::FailedPrecondition | Code::PermissionDenied)
}

/// The failure of a task that was stopped, which says by whom. `why` is what they said, if they
/// said anything.
pub(crate) fn cancelled(initiator: &str, text: &str, why: Option<&str>) -> Failure {
    let text = why.map_or_else(|| text.to_owned(), |why| format!("{text}: {why}"));
    Failure::new(&reason::CANCELLED)
        .because(text)
        .with_error_type("cancelled")
        .with_plane(v1::Plane::Execution)
        .with_cancellation(initiator, why.unwrap_or_default())
}
