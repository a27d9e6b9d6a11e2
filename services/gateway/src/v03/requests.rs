//! Old requests, made new. What only has another name is moved; what must have a shape to be moved
//! is checked, and refused by its old name. Everything else is passed on and judged as 1.0 is.

use faultline_proto::Failure;
use serde_json::{Map, Value, json};

use super::Dialect;
use crate::{operation::Operation, validate};

/// Marks data that is no object, which only 1.0 can have. Both generations of the SDKs know it.
pub(super) const WRAPPED: &str = "data_part_compat";

/// The request of an operation, from the old `params`; on REST from the old body or, where there
/// is none, the query. What a path says is not in here: it is the same in both versions, and wins.
pub(crate) fn request(
    operation: Operation,
    dialect: Dialect,
    old: Value,
) -> Result<Value, Failure> {
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
            // The contract says the body is the `config`; some send the whole request.
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
        // The names are the same, but for one that only repeats the path.
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

fn send(mut old: Object, dialect: Dialect) -> Result<Value, Failure> {
    let mut new = Map::new();
    old.move_to(&mut new, &["metadata"]);
    // The one field whose name in the contract and in JSON were different.
    let sent = match old.object("message")? {
        None => old.object("request")?,
        sent => sent,
    };
    if let Some(sent) = sent {
        new.insert("message".to_owned(), message(sent, dialect)?);
    }
    if let Some(settings) = old.object("configuration")? {
        new.insert("configuration".to_owned(), configuration(settings, dialect)?);
    }
    Ok(new.into())
}

fn configuration(mut old: Object, dialect: Dialect) -> Result<Value, Failure> {
    let mut new = Map::new();
    old.move_to(&mut new, &["acceptedOutputModes"]);
    history_length(&mut old, &mut new);
    let (name, unless_said) = match dialect {
        // Servers of 0.3 wait unless they are told not to.
        Dialect::Rpc => ("pushNotificationConfig", true),
        // A flag of protobuf: whoever does not want to wait leaves it out.
        Dialect::Rest => ("pushNotification", false),
    };
    let blocking = old.flag("blocking")?.unwrap_or(unless_said);
    new.insert("returnImmediately".to_owned(), json!(!blocking));
    if let Some(config) = old.object(name)? {
        new.insert("taskPushNotificationConfig".to_owned(), push(config)?.into());
    }
    Ok(new.into())
}

fn task(mut old: Object) -> Result<Value, Failure> {
    let mut new = Map::new();
    old.move_to(&mut new, &["id"]);
    history_length(&mut old, &mut new);
    Ok(new.into())
}

/// Zero was no limit, as an unset number of protobuf; in 1.0 it is no history.
fn history_length(old: &mut Object, new: &mut Map<String, Value>) {
    let is_zero = |value: &Value| *value == json!(0) || *value == json!("0");
    if let Some(length) = old.take("historyLength").filter(|value| !is_zero(value)) {
        new.insert("historyLength".to_owned(), length);
    }
}

/// Several schemes could be offered; the first is used, as servers of 0.3 did.
fn push(mut old: Object) -> Result<Map<String, Value>, Failure> {
    let mut new = Map::new();
    old.move_to(&mut new, &["id", "url", "token"]);
    if let Some(mut authentication) = old.object("authentication")? {
        let mut info = Map::new();
        authentication.move_to(&mut info, &["credentials"]);
        let scheme = authentication.list("schemes")?.into_iter().next();
        info.insert("scheme".to_owned(), scheme.unwrap_or_else(|| json!("")));
        new.insert("authentication".to_owned(), info.into());
    }
    Ok(new)
}

fn message(mut old: Object, dialect: Dialect) -> Result<Value, Failure> {
    let mut new = Map::new();
    let same = ["messageId", "contextId", "taskId", "metadata", "extensions", "referenceTaskIds"];
    old.move_to(&mut new, &same);
    new.insert("role".to_owned(), role(&mut old, dialect)?.into());
    let name = match dialect {
        Dialect::Rpc => "parts",
        Dialect::Rest => "content",
    };
    let path = old.path_of(name);
    let parts = old.list(name)?;
    if parts.is_empty() {
        return Err(old.refuse(name, "must have at least one part"));
    }
    let read = |(i, value)| part(Object::read(value, &format!("{path}[{i}]"))?, dialect);
    let parts: Result<Vec<_>, _> = parts.into_iter().enumerate().map(read).collect();
    new.insert("parts".to_owned(), parts?.into());
    Ok(new.into())
}

fn role(old: &mut Object, dialect: Dialect) -> Result<&'static str, Failure> {
    let (user, agent) = match dialect {
        Dialect::Rpc => ("user", "agent"),
        Dialect::Rest => ("ROLE_USER", "ROLE_AGENT"),
    };
    match old.required("role")? {
        role if role == user => Ok("ROLE_USER"),
        role if role == agent => Ok("ROLE_AGENT"),
        _ => Err(old.refuse("role", &format!("must be {user} or {agent}"))),
    }
}

fn part(mut old: Object, dialect: Dialect) -> Result<Value, Failure> {
    let mut new = Map::new();
    old.move_to(&mut new, &["metadata"]);
    match kind(&mut old)? {
        "text" => new.insert("text".to_owned(), old.required("text")?.into()),
        "file" => return file(old.required_object("file")?, new, dialect),
        _ => {
            let mut data = old.required_object("data")?;
            if dialect == Dialect::Rest {
                data = data.required_object("data")?;
            }
            let data = unwrapped(data.fields, &mut new);
            new.insert("data".to_owned(), data)
        }
    };
    Ok(new.into())
}

/// Said in JSON, unsaid in ProtoJSON; a client that forgot to say it is understood as well.
fn kind(old: &mut Object) -> Result<&'static str, Failure> {
    let said = old.text("kind")?;
    let meant = |kind: &&str| match &said {
        Some(said) => said == kind,
        None => old.fields.contains_key(*kind),
    };
    let found = ["text", "file", "data"].into_iter().find(meant);
    found.ok_or_else(|| match said {
        Some(_) => old.refuse("kind", "must be text, file or data"),
        None => old.refuse("", "must have one of text, file or data"),
    })
}

fn file(mut old: Object, mut new: Map<String, Value>, dialect: Dialect) -> Result<Value, Failure> {
    let (bytes, uri) = match dialect {
        Dialect::Rpc => ("bytes", "uri"),
        Dialect::Rest => ("fileWithBytes", "fileWithUri"),
    };
    let (field, content) = match (old.text(bytes)?, old.text(uri)?) {
        (Some(bytes), None) => ("raw", bytes),
        (None, Some(uri)) => ("url", uri),
        _ => return Err(old.refuse("", &format!("must have one of {bytes} or {uri}"))),
    };
    if field == "raw" && !content.bytes().all(is_base64) {
        return Err(old.refuse(bytes, "must be base64"));
    }
    new.insert(field.to_owned(), content.into());
    for (name, field) in [("mimeType", "mediaType"), ("name", "filename")] {
        if let Some(text) = old.text(name)? {
            new.insert(field.to_owned(), text.into());
        }
    }
    Ok(new.into())
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/-_=".contains(&byte)
}

/// Data that was wrapped to get through 0.3, as it was before.
fn unwrapped(mut data: Map<String, Value>, part: &mut Map<String, Value>) -> Value {
    let Some(Value::Object(metadata)) = part.get_mut("metadata") else { return data.into() };
    if metadata.get(WRAPPED) != Some(&Value::Bool(true)) || !data.contains_key("value") {
        return data.into();
    }
    metadata.remove(WRAPPED);
    if metadata.is_empty() {
        part.remove("metadata");
    }
    data.remove("value").unwrap_or_default()
}

/// An object of a request and where it stands, so that a refusal can name the field. A null is
/// nothing, and snake_case is camelCase, as everywhere in ProtoJSON and in the old SDKs.
struct Object {
    fields: Map<String, Value>,
    path: String,
}

impl Object {
    fn read(value: Value, path: &str) -> Result<Self, Failure> {
        match value {
            Value::Object(fields) => Ok(Self { fields, path: path.to_owned() }),
            Value::Null => Ok(Self { fields: Map::new(), path: path.to_owned() }),
            _ => Err(validate::violation(path, "must be an object")),
        }
    }

    /// Fields of the outermost object go by their names alone.
    fn at_root(mut self) -> Self {
        self.path.clear();
        self
    }

    fn path_of(&self, name: &str) -> String {
        match (&*self.path, name) {
            ("", _) => name.to_owned(),
            (path, "") => path.to_owned(),
            (path, _) => format!("{path}.{name}"),
        }
    }

    fn refuse(&self, name: &str, description: &str) -> Failure {
        validate::violation(&self.path_of(name), description)
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let value = self.fields.remove(name).or_else(|| self.fields.remove(&snake(name)))?;
        (!value.is_null()).then_some(value)
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refuse(name, "must be a string")),
        }
    }

    fn required(&mut self, name: &str) -> Result<String, Failure> {
        self.text(name)?.ok_or_else(|| self.refuse(name, "is required"))
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.refuse(name, "must be true or false")),
        }
    }

    fn list(&mut self, name: &str) -> Result<Vec<Value>, Failure> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(self.refuse(name, "must be an array")),
        }
    }

    fn object(&mut self, name: &str) -> Result<Option<Object>, Failure> {
        let path = self.path_of(name);
        self.take(name).map(|value| Object::read(value, &path)).transpose()
    }

    fn required_object(&mut self, name: &str) -> Result<Object, Failure> {
        self.object(name)?.ok_or_else(|| self.refuse(name, "is required"))
    }

    fn move_to(&mut self, new: &mut Map<String, Value>, names: &[&str]) {
        for name in names {
            if let Some(value) = self.take(name) {
                new.insert((*name).to_owned(), value);
            }
        }
    }
}

fn snake(camel: &str) -> String {
    let mut snake = String::with_capacity(camel.len() + 4);
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
