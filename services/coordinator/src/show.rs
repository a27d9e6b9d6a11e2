//! A task as others see it: in the words of A2A, and with what a failure of it must carry. Pure.

use faultline_proto::{Failure, a2a, reason, v1};
use prost_types::{Value, value::Kind};

use crate::{
    frame::interrupts,
    task::{Task, timestamp},
};

/// Where a delegated task names the task that delegated it.
const PARENT_KEY: &str = "faultline.dev/parent";

impl Task {
    /// Takes over what every failure of this task must carry.
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
        failure.born_at(origin)
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
    pub(crate) fn to_a2a(&self, history: Option<i32>, artifacts: bool) -> a2a::Task {
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

    /// The same for the last reader, without copying what the task holds.
    pub(crate) fn into_a2a(mut self, history: Option<i32>) -> a2a::Task {
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
