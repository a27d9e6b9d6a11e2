//! A2A 0.3 for clients that still speak it: a pure translation between its JSON and that of 1.0,
//! on both bindings. The objects are translated by `faultline_proto::v03`; this module owns the
//! operations and the card. Whatever comes out of here is checked and answered as any 1.0 request
//! is.
//!
//! Error numbers stay as they are: 0.3 knows them up to -32007, and its clients take any other
//! number, and an array as `data`.

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

/// The operation that a request means, made new. Who asked for a configuration and did not say
/// which one meant the first, and 1.0 can only be asked for all.
pub(crate) fn effective_operation(operation: Operation, new: &Value) -> Operation {
    match operation {
        Operation::GetTaskPushNotificationConfig if new.get("pageSize").is_some() => {
            Operation::ListTaskPushNotificationConfigs
        }
        operation => operation,
    }
}

/// There is no first one.
pub(crate) fn no_configuration() -> Failure {
    Failure::new(&reason::TASK_NOT_FOUND).because("the task has no push configuration")
}

/// What an old method of JSON-RPC became. There was no way to list tasks.
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
