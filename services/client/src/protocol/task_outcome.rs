//! Outcome of a task from its status: the failure, the question and the text. A record of faultline
//! is taken whole; the flat keys and the text of other servers are marked as foreign.

use std::{fmt, sync::Arc};

use faultline_proto::{
    Failure,
    a2a::{Message, Part, Task, TaskState, TaskStatus, part::Content},
    v1::Interrupt,
};
use prost_types::{Struct, value::Kind};

/// Metadata key of the question of a waiting task.
const INTERRUPT_KEY: &str = "faultline.dev/interrupt";

/// The user's own reading of failures, if set by `Builder::convert`.
#[derive(Clone, Default)]
pub(crate) struct Convert(Option<Arc<Reader>>);

type Reader = dyn Fn(&Task) -> Option<Failure> + Send + Sync;

impl Convert {
    pub(crate) fn new(read: impl Fn(&Task) -> Option<Failure> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(read)))
    }

    pub(crate) fn read(&self, task: &Task) -> Option<Failure> {
        self.0.as_ref()?(task)
    }
}

impl fmt::Debug for Convert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Convert(own)" } else { "Convert(usual)" })
    }
}

/// Whether the state is final.
pub fn is_final(state: TaskState) -> bool {
    use TaskState::{Canceled, Completed, Failed, Rejected};
    matches!(state, Completed | Failed | Canceled | Rejected)
}

/// Whether the task waits for its caller.
pub fn is_waiting(state: TaskState) -> bool {
    matches!(state, TaskState::InputRequired | TaskState::AuthRequired)
}

/// The failure of a task that failed, was rejected or was canceled, from its status and the
/// metadata of its task or event.
pub fn failure_of(status: &TaskStatus, metadata: Option<&Struct>) -> Option<Failure> {
    Failure::of_task(status, metadata)
}

/// The question of a waiting task, if it has a faultline record.
pub fn interrupt_of(status: &TaskStatus, metadata: Option<&Struct>) -> Option<Interrupt> {
    places(status, metadata).iter().find_map(|metadata| {
        match metadata.fields.get(INTERRUPT_KEY)?.kind.as_ref()? {
            Kind::StructValue(record) => faultline_proto::json::from_struct(record).ok(),
            _ => None,
        }
    })
}

/// The text parts of a message, joined by line breaks.
pub fn text_of(message: &Message) -> String {
    text_of_parts(&message.parts).join("\n")
}

/// The text parts.
pub(crate) fn text_of_parts(parts: &[Part]) -> Vec<&str> {
    let texts = parts.iter().filter_map(|part| match &part.content {
        Some(Content::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The metadata around the status, then that of its message.
fn places<'a>(status: &'a TaskStatus, metadata: Option<&'a Struct>) -> Vec<&'a Struct> {
    let mirror = status.message.as_ref().and_then(|m| m.metadata.as_ref());
    metadata.into_iter().chain(mirror).collect()
}

#[cfg(test)]
mod tests {
    use faultline_proto::{json, reason};

    use super::*;

    fn read(task: &str) -> Option<Failure> {
        let task: Task = json::from_str(task).unwrap();
        failure_of(&task.status.unwrap(), task.metadata.as_ref())
    }

    #[test]
    fn failure_record_is_read_from_task_or_message_metadata() {
        let failure = Failure::new(&reason::RATE_LIMITED).because("slow down");
        let metadata = json::to_string(&failure.to_metadata(TaskState::Failed));
        let outer = format!(
            r#"{{"id":"t","status":{{"state":"TASK_STATE_FAILED"}},"metadata":{metadata}}}"#
        );
        assert_eq!(read(&outer), Some(failure.clone()));
        let inner = format!(
            r#"{{"id":"t","status":{{"state":"TASK_STATE_FAILED",
                "message":{{"metadata":{metadata}}}}}}}"#
        );
        assert_eq!(read(&inner), Some(failure));
    }

    #[test]
    fn failure_is_read_from_flat_keys_then_text_then_state() {
        let flat = read(
            r#"{"status":{"state":"TASK_STATE_FAILED","message":{"parts":[{"text":"t"}]}},
            "metadata":{"error_code":"E1","error_type":"flow_error","error_message":"broken"}}"#,
        )
        .unwrap();
        assert_eq!((flat.business_code.as_str(), flat.error_type.as_str()), ("E1", "flow_error"));
        assert!(flat.foreign && flat.public_message == "broken");
        let text =
            r#"{"status":{"state":"TASK_STATE_REJECTED","message":{"parts":[{"text":"no"}]}}}"#;
        let text = read(text).unwrap();
        assert_eq!((text.row(), text.public_message.as_str()), (&reason::TASK_REJECTED, "no"));
        let bare = read(r#"{"status":{"state":"TASK_STATE_CANCELED"}}"#).unwrap();
        assert_eq!(bare.public_message, "the task was canceled");
        assert_eq!(read(r#"{"status":{"state":"TASK_STATE_COMPLETED"}}"#), None);
    }
}
