//! Answers of 1.0 translated to 0.3, by operation.

use faultline_proto::{
    Failure,
    reason::{self, Reason},
    v03::old::{artifact_update, each, fields, message, push, status_update, task},
};
use serde_json::{Value, json};

use super::{Dialect, card};
use crate::protocol::operation::Operation;

/// The answer of 0.3 to an operation.
pub(crate) fn response(operation: Operation, dialect: Dialect, new: Value) -> Value {
    match (operation, dialect) {
        (Operation::SendMessage, _) => event(operation, dialect, new),
        (Operation::GetTask | Operation::CancelTask, _) => task(new, dialect),
        (
            Operation::CreateTaskPushNotificationConfig | Operation::GetTaskPushNotificationConfig,
            _,
        ) => push(new, dialect),
        (Operation::ListTaskPushNotificationConfigs, Dialect::Rpc) => configs(new, dialect),
        (Operation::ListTaskPushNotificationConfigs, Dialect::Rest) => {
            let more = new.get("nextPageToken").cloned().unwrap_or_else(|| json!(""));
            json!({"configs": configs(new, dialect), "nextPageToken": more})
        }
        (Operation::DeleteTaskPushNotificationConfig, Dialect::Rpc) => Value::Null,
        (Operation::DeleteTaskPushNotificationConfig, Dialect::Rest) => json!({}),
        (Operation::GetExtendedAgentCard, _) => card(new),
        // Streams are translated event by event.
        (Operation::SendStreamingMessage | Operation::SubscribeToTask, _) => new,
        // 0.3 has no such operation.
        (Operation::ListTasks, _) => new,
    }
}

/// One event of a stream, from a `StreamResponse` or from its subset `SendMessageResponse`: bare on
/// JSON-RPC, wrapped on REST.
pub(crate) fn event(operation: Operation, dialect: Dialect, new: Value) -> Value {
    let Value::Object(fields) = new else { return new };
    let Some((name, value)) = fields.into_iter().next() else { return json!({}) };
    let old = match &*name {
        "task" => task(value, dialect),
        "message" => message(value, dialect),
        "statusUpdate" => {
            let ends_at_question = operation == Operation::SendStreamingMessage;
            status_update(value, ends_at_question, dialect)
        }
        "artifactUpdate" => artifact_update(value, dialect),
        _ => value,
    };
    match dialect {
        Dialect::Rpc => old,
        Dialect::Rest => json!({ name: old }),
    }
}

/// An error body of REST. Clients of 0.3 distinguish errors by fields at the top: some by the
/// JSON-RPC number in `code`, some by the class name in `type`.
pub(crate) fn error(failure: &Failure, mut new: Value) -> Value {
    let row = failure.row();
    if let Value::Object(fields) = &mut new {
        fields.insert("code".to_owned(), json!(row.jsonrpc));
        fields.insert("message".to_owned(), json!(failure.public_message));
        if row.domain == reason::A2A {
            fields.insert("type".to_owned(), class(row).into());
        }
    }
    new
}

/// The class name in the SDKs: `TASK_NOT_FOUND` becomes `TaskNotFoundError`.
fn class(row: &Reason) -> String {
    let word = |word: &str| match word {
        "JSON" => word.to_owned(),
        _ => word[..1].to_owned() + &word[1..].to_ascii_lowercase(),
    };
    let words: String = row.name.trim_end_matches("_ERROR").split('_').map(word).collect();
    words + "Error"
}

fn configs(new: Value, dialect: Dialect) -> Value {
    each(&mut fields(new), "configs", dialect, push).unwrap_or_else(|| json!([]))
}
