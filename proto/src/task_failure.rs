//! The failure of a task, parsed from its task object. In order of precedence: the state, the
//! failure record, the flat keys of other frameworks in the metadata of the task and of its status
//! message, the text. The claims of a foreign framework are marked as foreign.

use prost_types::{Struct, Value, value::Kind};

use crate::{
    Failure,
    a2a::{Part, TaskState, TaskStatus, part::Content},
    reason,
    v1::Plane,
};

/// Reads the failure of a task from metadata in another framework's words. Any function of the
/// same form is one.
///
/// ```
/// use faultline_proto::{Failure, a2a::{TaskState, TaskStatus}, reason};
/// use prost_types::{Struct, value::Kind};
///
/// /// `{"acme.error": "E17"}`
/// fn acme(_: TaskState, metadata: &Struct) -> Option<Failure> {
///     match metadata.fields.get("acme.error")?.kind.as_ref()? {
///         Kind::StringValue(code) => {
///             Some(Failure::new(&reason::TASK_FAILED).with_business_code(code))
///         }
///         _ => None,
///     }
/// }
///
/// let status = TaskStatus { state: TaskState::Failed as i32, ..TaskStatus::default() };
/// let metadata: Struct = faultline_proto::json::from_str(r#"{"acme.error":"E17"}"#).unwrap();
/// let failure = Failure::of_task_by(&[&acme], &status, Some(&metadata)).unwrap();
/// assert_eq!(failure.business_code, "E17");
/// assert!(failure.foreign);
/// ```
pub trait Convention {
    /// `None`: the metadata has another convention.
    fn read(&self, state: TaskState, metadata: &Struct) -> Option<Failure>;
}

impl<F: Fn(TaskState, &Struct) -> Option<Failure>> Convention for F {
    fn read(&self, state: TaskState, metadata: &Struct) -> Option<Failure> {
        self(state, metadata)
    }
}

impl Failure {
    /// The failure of a failed, rejected or canceled task, from its status and the metadata of its
    /// task or event. `None`: any other state.
    pub fn of_task(status: &TaskStatus, metadata: Option<&Struct>) -> Option<Self> {
        Self::of_task_by(&[], status, metadata)
    }

    /// The same for tasks of frameworks with conventions of their own, which are tried after the
    /// record and before the flat keys.
    pub fn of_task_by(
        conventions: &[&dyn Convention],
        status: &TaskStatus,
        metadata: Option<&Struct>,
    ) -> Option<Self> {
        let (row, words) = match status.state() {
            TaskState::Failed => (&reason::TASK_FAILED, "the task failed and did not say why"),
            TaskState::Rejected => (&reason::TASK_REJECTED, "the task was rejected"),
            TaskState::Canceled => (&reason::CANCELLED, "the task was canceled"),
            _ => return None,
        };
        let mirror = status.message.as_ref().and_then(|m| m.metadata.as_ref());
        let places = || metadata.into_iter().chain(mirror);
        if let Some(failure) = places().find_map(Self::from_metadata) {
            return Some(failure);
        }
        let theirs = |place| conventions.iter().find_map(|c| c.read(status.state(), place));
        if let Some(failure) = places().find_map(theirs) {
            return Some(failure.edit(|record| record.foreign = true));
        }
        let flat =
            |key: &str| places().find_map(|m| flat_text(m.fields.get(key)?)).unwrap_or_default();
        let text = [flat("error_message"), text_of(status)].into_iter().find(|t| !t.is_empty());
        let failure = Self::new(row)
            .because(text.unwrap_or_else(|| words.to_owned()))
            .with_business_code(flat("error_code"))
            .with_error_type(flat("error_type"))
            .with_llm_response_id(flat("llm_response_id"))
            .with_plane(Plane::Execution);
        let failure = match flat("error_param").as_str() {
            "" => failure,
            field => failure.with_violation(field, ""),
        };
        let mut record = failure.into_record();
        // In the other two states the task itself is the failure; a failed task of the mesh would
        // have a record.
        record.foreign = status.state() == TaskState::Failed;
        Some(Self::from_record(record))
    }
}

/// A flat value as text. Some frameworks write their codes as numbers.
fn flat_text(value: &Value) -> Option<String> {
    match value.kind.as_ref()? {
        Kind::StringValue(text) if !text.is_empty() => Some(text.clone()),
        Kind::NumberValue(number) => Some(number.to_string()),
        _ => None,
    }
}

fn text_of(status: &TaskStatus) -> String {
    let parts = status.message.iter().flat_map(|message| &message.parts);
    let texts = parts.filter_map(|part: &Part| match &part.content {
        Some(Content::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{a2a::Task, json};

    fn read(task: &str) -> Option<Failure> {
        let task: Task = json::from_str(task).unwrap();
        Failure::of_task(&task.status.unwrap(), task.metadata.as_ref())
    }

    /// A failed task of a framework that knows only the flat keys.
    fn foreign(outer: &str, mirror: &str, text: &str) -> Failure {
        let task = format!(
            r#"{{"status":{{"state":"TASK_STATE_FAILED","message":{{"metadata":{mirror},
            "parts":[{{"text":"{text}"}}]}}}},"metadata":{outer}}}"#
        );
        read(&task).unwrap()
    }

    #[test]
    fn state_decides_whether_there_is_a_failure() {
        let flat = r#""metadata":{"object_type":"error","error_code":"E1"}"#;
        for state in ["COMPLETED", "WORKING", "INPUT_REQUIRED"] {
            let task = format!(r#"{{"status":{{"state":"TASK_STATE_{state}"}},{flat}}}"#);
            assert_eq!(read(&task), None, "{state}");
        }
        for (state, reason) in
            [("FAILED", "TASK_FAILED"), ("REJECTED", "TASK_REJECTED"), ("CANCELED", "CANCELLED")]
        {
            let task = format!(r#"{{"status":{{"state":"TASK_STATE_{state}"}},{flat}}}"#);
            let failure = read(&task).unwrap();
            assert_eq!((failure.reason.as_str(), failure.business_code.as_str()), (reason, "E1"));
        }
    }

    #[test]
    fn outer_metadata_precedes_the_message_metadata_and_its_text() {
        let outer = foreign(
            r#"{"error_code":"E1","error_message":"outer","error_param":"city"}"#,
            r#"{"error_code":"E2","error_message":"mirror","llm_response_id":"r"}"#,
            "text",
        );
        assert_eq!((outer.business_code.as_str(), outer.public_message.as_str()), ("E1", "outer"));
        assert_eq!(
            (outer.llm_response_id.as_str(), outer.violations[0].field.as_str()),
            ("r", "city")
        );
        assert!(outer.foreign);
        let mirror = foreign("{}", r#"{"error_code":40401,"error_message":"mirror"}"#, "text");
        assert_eq!(
            (mirror.business_code.as_str(), mirror.public_message.as_str()),
            ("40401", "mirror")
        );
        assert_eq!(foreign("{}", "{}", "text").public_message, "text");
        assert_eq!(foreign("{}", "{}", "").public_message, "the task failed and did not say why");
    }

    #[test]
    fn failure_record_precedes_the_flat_keys() {
        let failure = Failure::new(&reason::RATE_LIMITED).because("slow down");
        let metadata = json::to_string(&failure.to_metadata(TaskState::Failed));
        assert_eq!(foreign(&metadata, r#"{"error_code":"E"}"#, "t"), failure);
        assert_eq!(foreign(r#"{"error_code":"E"}"#, &metadata, "t"), failure);
    }
}
