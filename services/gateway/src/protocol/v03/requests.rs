//! Requests of 0.3 translated to 1.0, by operation.

use faultline_proto::{
    Failure,
    v03::{
        Misfit,
        new::{Object, message, push},
    },
};
use serde_json::{Map, Value, json};

use super::Dialect;
use crate::protocol::{operation::Operation, validate};

/// The request of an operation, from `params` on JSON-RPC, from the body or the query on REST.
/// Values of the path are not in it: they are the same in both versions and take precedence.
pub(crate) fn request(
    operation: Operation,
    dialect: Dialect,
    old: Value,
) -> Result<Value, Failure> {
    read(operation, dialect, old)
        .map_err(|misfit| validate::violation(&misfit.path, &misfit.description))
}

fn read(operation: Operation, dialect: Dialect, old: Value) -> Result<Value, Misfit> {
    let whole = match dialect {
        Dialect::Rpc => "params",
        Dialect::Rest => "the body",
    };
    let mut old = Object::read(old, whole)?.at_root();
    match (operation, dialect) {
        (Operation::SendMessage | Operation::SendStreamingMessage, _) => send(old, dialect),
        (Operation::GetTask, _) => task(old),
        (Operation::CreateTaskPushNotificationConfig, Dialect::Rpc) => {
            let task_id = old.required("taskId")?;
            let mut config = push(old.required_object("pushNotificationConfig")?)?;
            config.insert("taskId".to_owned(), task_id.into());
            Ok(config.into())
        }
        (Operation::CreateTaskPushNotificationConfig, Dialect::Rest) => {
            // By the specification the body is the `config`; some clients send the whole request.
            let mut config = old.object("config")?.unwrap_or(old);
            push(config.required_object("pushNotificationConfig")?).map(Value::Object)
        }
        (Operation::ListTaskPushNotificationConfigs, Dialect::Rpc) => {
            Ok(json!({"taskId": old.required("id")?}))
        }
        (Operation::GetTaskPushNotificationConfig, Dialect::Rpc) => {
            let task_id = old.required("id")?;
            Ok(match old.text("pushNotificationConfigId")? {
                Some(id) => json!({"taskId": task_id, "id": id}),
                None => json!({"taskId": task_id, "pageSize": 1}),
            })
        }
        (Operation::DeleteTaskPushNotificationConfig, Dialect::Rpc) => {
            let task_id = old.required("id")?;
            Ok(json!({"taskId": task_id, "id": old.required("pushNotificationConfigId")?}))
        }
        // The field names are the same; `name` repeats the path and is dropped.
        (
            Operation::CancelTask
            | Operation::SubscribeToTask
            | Operation::GetExtendedAgentCard
            | Operation::ListTasks
            | Operation::ListTaskPushNotificationConfigs
            | Operation::GetTaskPushNotificationConfig
            | Operation::DeleteTaskPushNotificationConfig,
            _,
        ) => {
            old.fields.remove("name");
            Ok(old.fields.into())
        }
    }
}

fn send(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    old.move_to(&mut new, &["metadata"]);
    // The one field with different names in the proto file (`request`) and in JSON (`message`).
    let sent = match old.object("message")? {
        None => old.object("request")?,
        sent => sent,
    };
    if let Some(sent) = sent {
        let name = match dialect {
            Dialect::Rpc => "parts",
            Dialect::Rest => "content",
        };
        let none = sent.refuse(name, "must have at least one part");
        let sent = message(sent, dialect)?;
        if sent["parts"].as_array().is_none_or(Vec::is_empty) {
            return Err(none);
        }
        new.insert("message".to_owned(), sent);
    }
    if let Some(settings) = old.object("configuration")? {
        new.insert("configuration".to_owned(), configuration(settings, dialect)?);
    }
    Ok(new.into())
}

fn configuration(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    old.move_to(&mut new, &["acceptedOutputModes"]);
    history_length(&mut old, &mut new);
    let (name, unless_said) = match dialect {
        // On JSON-RPC a send of 0.3 blocks by default.
        Dialect::Rpc => ("pushNotificationConfig", true),
        // On REST an absent protobuf flag means false, so a send does not block by default.
        Dialect::Rest => ("pushNotification", false),
    };
    let blocking = old.flag("blocking")?.unwrap_or(unless_said);
    new.insert("returnImmediately".to_owned(), json!(!blocking));
    if let Some(config) = old.object(name)? {
        new.insert("taskPushNotificationConfig".to_owned(), push(config)?.into());
    }
    Ok(new.into())
}

fn task(mut old: Object) -> Result<Value, Misfit> {
    let mut new = Map::new();
    old.move_to(&mut new, &["id"]);
    history_length(&mut old, &mut new);
    Ok(new.into())
}

/// Zero means no limit in 0.3, like an unset number of protobuf; in 1.0 it means no history.
fn history_length(old: &mut Object, new: &mut Map<String, Value>) {
    let is_zero = |value: &Value| *value == json!(0) || *value == json!("0");
    if let Some(length) = old.take("historyLength").filter(|value| !is_zero(value)) {
        new.insert("historyLength".to_owned(), length);
    }
}
