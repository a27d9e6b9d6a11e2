//! A2A 0.3 for clients that still speak it: a pure translation between its JSON and that of 1.0,
//! on both bindings. It owns the old names and nothing else; whatever comes out of here is checked
//! and answered as any 1.0 request is.
//!
//! There are two old dialects. JSON-RPC has JSON of its own, with `kind` and kebab-case states;
//! `method`, `params`, `result` and `event` are for it. REST has the ProtoJSON of an earlier
//! contract, with `content` for parts; `rest` is for that one. A card is the same on both.
//!
//! Error numbers stay as they are: 0.3 knows them up to -32007, and its clients take any other
//! number, and an array as `data`.

mod answers;
mod card;
mod requests;
pub(crate) mod rest;
#[cfg(test)]
mod tests;

use faultline_proto::Failure;
use serde_json::Value;

pub(crate) use card::{card, interfaces};

/// Which of the two old dialects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Rpc,
    Rest,
}

/// The 1.0 method that an old one became. There was no way to list tasks.
pub(crate) fn method(old: &str) -> Option<&'static str> {
    Some(match old {
        "message/send" => "SendMessage",
        "message/stream" => "SendStreamingMessage",
        "tasks/get" => "GetTask",
        "tasks/cancel" => "CancelTask",
        "tasks/resubscribe" => "SubscribeToTask",
        "tasks/pushNotificationConfig/set" => "CreateTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/get" => "GetTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/list" => "ListTaskPushNotificationConfigs",
        "tasks/pushNotificationConfig/delete" => "DeleteTaskPushNotificationConfig",
        "agent/getAuthenticatedExtendedCard" => "GetExtendedAgentCard",
        _ => return None,
    })
}

/// The params of the 1.0 method `method`, from those of the old one.
pub(crate) fn params(method: &str, old: Value) -> Result<Value, Failure> {
    requests::rpc(method, old)
}

/// The old result of the 1.0 method `method`, from the new one.
pub(crate) fn result(method: &str, new: Value) -> Value {
    answers::rpc(method, new)
}

/// One event of a stream that the 1.0 method `method` opened, from a `StreamResponse`.
pub(crate) fn event(method: &str, new: Value) -> Value {
    answers::event(method, new, Form::Rpc)
}
