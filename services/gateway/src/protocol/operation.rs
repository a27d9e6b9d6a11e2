//! The eleven operations of A2A, and the call to a coordinator that each request in JSON becomes.

use faultline_proto::{
    Failure, allocation,
    json::{self, ProtoJson},
    v1::{Subscribe, call},
};

use crate::protocol::validate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
    CreateTaskPushNotificationConfig,
    GetTaskPushNotificationConfig,
    ListTaskPushNotificationConfigs,
    GetExtendedAgentCard,
    DeleteTaskPushNotificationConfig,
}

impl Operation {
    pub(crate) const ALL: [Operation; 11] = [
        Operation::SendMessage,
        Operation::SendStreamingMessage,
        Operation::GetTask,
        Operation::ListTasks,
        Operation::CancelTask,
        Operation::SubscribeToTask,
        Operation::CreateTaskPushNotificationConfig,
        Operation::GetTaskPushNotificationConfig,
        Operation::ListTaskPushNotificationConfigs,
        Operation::GetExtendedAgentCard,
        Operation::DeleteTaskPushNotificationConfig,
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::SendMessage => "SendMessage",
            Operation::SendStreamingMessage => "SendStreamingMessage",
            Operation::GetTask => "GetTask",
            Operation::ListTasks => "ListTasks",
            Operation::CancelTask => "CancelTask",
            Operation::SubscribeToTask => "SubscribeToTask",
            Operation::CreateTaskPushNotificationConfig => "CreateTaskPushNotificationConfig",
            Operation::GetTaskPushNotificationConfig => "GetTaskPushNotificationConfig",
            Operation::ListTaskPushNotificationConfigs => "ListTaskPushNotificationConfigs",
            Operation::GetExtendedAgentCard => "GetExtendedAgentCard",
            Operation::DeleteTaskPushNotificationConfig => "DeleteTaskPushNotificationConfig",
        }
    }

    /// Whether the answer is a stream.
    pub(crate) fn streams(self) -> bool {
        matches!(self, Operation::SendStreamingMessage | Operation::SubscribeToTask)
    }

    /// Parses a request in JSON; validation follows later.
    pub(crate) fn read(self, json: &str) -> Result<call::Body, Failure> {
        Ok(match self {
            Operation::SendMessage => call::Body::Send(parse(json)?),
            Operation::SendStreamingMessage => call::Body::Stream(parse(json)?),
            Operation::GetTask => call::Body::Get(parse(json)?),
            Operation::ListTasks => call::Body::List(parse(json)?),
            Operation::CancelTask => call::Body::Cancel(parse(json)?),
            Operation::SubscribeToTask => {
                call::Body::Subscribe(Subscribe { request: Some(parse(json)?), after: None })
            }
            Operation::CreateTaskPushNotificationConfig => call::Body::CreatePush(parse(json)?),
            Operation::GetTaskPushNotificationConfig => call::Body::GetPush(parse(json)?),
            Operation::ListTaskPushNotificationConfigs => call::Body::ListPush(parse(json)?),
            Operation::GetExtendedAgentCard => call::Body::ExtendedCard(parse(json)?),
            Operation::DeleteTaskPushNotificationConfig => call::Body::DeletePush(parse(json)?),
        })
    }
}

fn parse<T: ProtoJson>(json: &str) -> Result<T, Failure> {
    let read = json::from_caller(json.as_bytes(), allocation::MESSAGE_BYTES_MAX);
    read.map_err(|error| validate::decode_failure(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_one_name() {
        for operation in Operation::ALL {
            assert_eq!(Operation::named(operation.name()), Some(operation));
        }
        assert_eq!(Operation::named("message/send"), None);
    }
}
