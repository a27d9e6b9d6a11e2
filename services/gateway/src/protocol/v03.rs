//! Protocol translation between A2A 0.3 and 1.0: pure JSON to JSON, for JSON-RPC and REST. Objects
//! are translated by `faultline_proto::v03`, operations and the card here. A translated request is
//! validated and answered like any request of 1.0.
//!
//! Error numbers are not translated: 0.3 defines them up to -32007, and its clients accept other
//! numbers and an array as `data`.

mod answers;
mod card;
mod requests;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    answers::{error, event, response},
    card::{card, interfaces},
    requests::request,
};
pub(crate) use faultline_proto::v03::Dialect;
use faultline_proto::{Failure, reason};
use serde_json::Value;

use crate::protocol::operation::Operation;

/// The operation of 1.0 for a translated request. In 0.3 a request for a push configuration without
/// an id means the first one; 1.0 has only the list of all.
pub(crate) fn effective_operation(operation: Operation, new: &Value) -> Operation {
    match operation {
        Operation::GetTaskPushNotificationConfig if new.get("pageSize").is_some() => {
            Operation::ListTaskPushNotificationConfigs
        }
        operation => operation,
    }
}

/// The failure for a task without a push configuration.
pub(crate) fn no_configuration() -> Failure {
    Failure::new(&reason::TASK_NOT_FOUND).because("the task has no push configuration")
}

/// The operation of a JSON-RPC method of 0.3, which cannot list tasks.
pub(crate) fn method(old: &str) -> Option<Operation> {
    Some(match old {
        "message/send" => Operation::SendMessage,
        "message/stream" => Operation::SendStreamingMessage,
        "tasks/get" => Operation::GetTask,
        "tasks/cancel" => Operation::CancelTask,
        "tasks/resubscribe" => Operation::SubscribeToTask,
        "tasks/pushNotificationConfig/set" => Operation::CreateTaskPushNotificationConfig,
        "tasks/pushNotificationConfig/get" => Operation::GetTaskPushNotificationConfig,
        "tasks/pushNotificationConfig/list" => Operation::ListTaskPushNotificationConfigs,
        "tasks/pushNotificationConfig/delete" => Operation::DeleteTaskPushNotificationConfig,
        "agent/getAuthenticatedExtendedCard" => Operation::GetExtendedAgentCard,
        _ => return None,
    })
}
