//! Objects of 1.0, converted to 0.3. They are well formed, so nothing is checked; fields are
//! selected by name, because peers of 0.3 refuse unknown ones.

use serde_json::{Map, Value, json};

use super::{Dialect, STATES, WRAPPED};

pub fn task(new: Value, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let mut old = start(dialect, "task");
    old.insert("id".to_owned(), text(&mut new, "id"));
    old.insert("contextId".to_owned(), text(&mut new, "contextId"));
    old.insert("status".to_owned(), status(new.remove("status"), dialect));
    if let Some(artifacts) = each(&mut new, "artifacts", dialect, artifact) {
        old.insert("artifacts".to_owned(), artifacts);
    }
    if let Some(history) = each(&mut new, "history", dialect, message) {
        old.insert("history".to_owned(), history);
    }
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

fn status(new: Option<Value>, dialect: Dialect) -> Value {
    let mut new = fields(new.unwrap_or_default());
    let state = state(new.get("state").and_then(Value::as_str).unwrap_or_default(), dialect);
    let mut old = Map::from_iter([("state".to_owned(), json!(state))]);
    if let Some(status_message) = new.remove("message") {
        old.insert("message".to_owned(), message(status_message, dialect));
    }
    keep(&mut new, &mut old, &["timestamp"]);
    old.into()
}

fn state(new: &str, dialect: Dialect) -> &'static str {
    let known = STATES.iter().find(|(_, _, state)| *state == new);
    let (rpc, rest, _) = known.unwrap_or(&("unknown", "TASK_STATE_UNSPECIFIED", ""));
    match dialect {
        Dialect::Rpc => rpc,
        Dialect::Rest => rest,
    }
}

/// `ends_at_question`: the stream of a message ends with the question that it led to, that of a
/// subscription does not.
pub fn status_update(new: Value, ends_at_question: bool, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let last = match new.get("status").and_then(|status| status["state"].as_str()) {
        Some(
            "TASK_STATE_COMPLETED"
            | "TASK_STATE_FAILED"
            | "TASK_STATE_CANCELED"
            | "TASK_STATE_REJECTED",
        ) => true,
        Some("TASK_STATE_INPUT_REQUIRED") => ends_at_question,
        _ => false,
    };
    let mut old = start(dialect, "status-update");
    old.insert("taskId".to_owned(), text(&mut new, "taskId"));
    old.insert("contextId".to_owned(), text(&mut new, "contextId"));
    old.insert("status".to_owned(), status(new.remove("status"), dialect));
    old.insert("final".to_owned(), json!(last));
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

pub fn artifact_update(new: Value, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let mut old = start(dialect, "artifact-update");
    old.insert("taskId".to_owned(), text(&mut new, "taskId"));
    old.insert("contextId".to_owned(), text(&mut new, "contextId"));
    let body = new.remove("artifact").unwrap_or_default();
    old.insert("artifact".to_owned(), artifact(body, dialect));
    for flag in ["append", "lastChunk"] {
        old.insert(flag.to_owned(), new.remove(flag).unwrap_or(json!(false)));
    }
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

fn artifact(new: Value, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let mut old = Map::new();
    old.insert("artifactId".to_owned(), text(&mut new, "artifactId"));
    old.insert("parts".to_owned(), parts(&mut new, dialect));
    keep(&mut new, &mut old, &["name", "description", "metadata", "extensions"]);
    old.into()
}

pub fn message(new: Value, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let mut old = start(dialect, "message");
    old.insert("messageId".to_owned(), text(&mut new, "messageId"));
    let user = new.get("role").is_some_and(|role| role == "ROLE_USER");
    let (role, list) = match dialect {
        Dialect::Rpc => (if user { "user" } else { "agent" }, "parts"),
        Dialect::Rest => (if user { "ROLE_USER" } else { "ROLE_AGENT" }, "content"),
    };
    old.insert("role".to_owned(), json!(role));
    old.insert(list.to_owned(), parts(&mut new, dialect));
    keep(&mut new, &mut old, &["contextId", "taskId", "metadata", "extensions"]);
    if dialect == Dialect::Rpc {
        keep(&mut new, &mut old, &["referenceTaskIds"]);
    }
    old.into()
}

/// A `SendMessageRequest`. It always states whether to wait: by default a server waits on JSON-RPC
/// and does not on REST.
pub fn send(new: Value, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let mut old = Map::new();
    if let Some(sent) = new.remove("message") {
        old.insert("message".to_owned(), message(sent, dialect));
    }
    let mut settings = fields(new.remove("configuration").unwrap_or_default());
    let waits = settings.remove("returnImmediately") != Some(json!(true));
    let mut configuration = Map::from_iter([("blocking".to_owned(), json!(waits))]);
    keep(&mut settings, &mut configuration, &["acceptedOutputModes", "historyLength"]);
    if let Some(config) = settings.remove("taskPushNotificationConfig") {
        let name = match dialect {
            Dialect::Rpc => "pushNotificationConfig",
            Dialect::Rest => "pushNotification",
        };
        let config = push(config, dialect)["pushNotificationConfig"].take();
        configuration.insert(name.to_owned(), config);
    }
    old.insert("configuration".to_owned(), configuration.into());
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

/// The list is present even when empty: ProtoJSON may omit it, an old client requires it.
fn parts(of: &mut Map<String, Value>, dialect: Dialect) -> Value {
    each(of, "parts", dialect, part).unwrap_or_else(|| json!([]))
}

fn part(new: Value, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let (kind, content) = if let Some(raw) = new.remove("raw") {
        ("file", file(raw, ["bytes", "fileWithBytes"], &mut new, dialect))
    } else if let Some(url) = new.remove("url") {
        ("file", file(url, ["uri", "fileWithUri"], &mut new, dialect))
    } else if let Some(data) = new.remove("data") {
        let data = wrapped(data, &mut new);
        ("data", if dialect == Dialect::Rest { json!({ "data": data }) } else { data })
    } else {
        ("text", text(&mut new, "text"))
    };
    let mut old = start(dialect, kind);
    old.insert(kind.to_owned(), content);
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

fn file(
    content: Value,
    names: [&str; 2],
    part: &mut Map<String, Value>,
    dialect: Dialect,
) -> Value {
    let [rpc, rest] = names;
    let name = if dialect == Dialect::Rpc { rpc } else { rest };
    let mut file = Map::from_iter([(name.to_owned(), content)]);
    for (new, old) in [("mediaType", "mimeType"), ("filename", "name")] {
        if let Some(value) = part.remove(new) {
            file.insert(old.to_owned(), value);
        }
    }
    file.into()
}

/// In 0.3 data is an object. Any other value is wrapped into one, with a mark.
fn wrapped(data: Value, part: &mut Map<String, Value>) -> Value {
    if data.is_object() {
        return data;
    }
    let metadata = part.entry("metadata").or_insert_with(|| json!({}));
    if let Value::Object(metadata) = metadata {
        metadata.insert(WRAPPED.to_owned(), json!(true));
    }
    json!({ "value": data })
}

pub fn push(new: Value, dialect: Dialect) -> Value {
    let mut new = fields(new);
    let task_id = text(&mut new, "taskId");
    let mut config = Map::from_iter([("url".to_owned(), text(&mut new, "url"))]);
    keep(&mut new, &mut config, &["id", "token"]);
    if let Some(info) = new.remove("authentication") {
        let mut info = fields(info);
        let schemes = Vec::from_iter(info.remove("scheme"));
        let mut authentication = Map::from_iter([("schemes".to_owned(), schemes.into())]);
        keep(&mut info, &mut authentication, &["credentials"]);
        config.insert("authentication".to_owned(), authentication.into());
    }
    match dialect {
        Dialect::Rpc => json!({"taskId": task_id, "pushNotificationConfig": config}),
        Dialect::Rest => {
            let id = config.get("id").and_then(Value::as_str).unwrap_or_default();
            let task_id = task_id.as_str().unwrap_or_default();
            let name = format!("tasks/{task_id}/pushNotificationConfigs/{id}");
            json!({"name": name, "pushNotificationConfig": config})
        }
    }
}

/// An object of that kind, which only JSON-RPC states.
fn start(dialect: Dialect, kind: &str) -> Map<String, Value> {
    match dialect {
        Dialect::Rpc => Map::from_iter([("kind".to_owned(), json!(kind))]),
        Dialect::Rest => Map::new(),
    }
}

pub fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The list with that name, each member converted.
pub fn each(
    from: &mut Map<String, Value>,
    name: &str,
    dialect: Dialect,
    old: fn(Value, Dialect) -> Value,
) -> Option<Value> {
    let Value::Array(list) = from.remove(name)? else { return None };
    Some(list.into_iter().map(|new| old(new, dialect)).collect())
}

/// A required field, also if ProtoJSON omitted it because it is empty.
fn text(from: &mut Map<String, Value>, name: &str) -> Value {
    from.remove(name).unwrap_or_else(|| json!(""))
}

fn keep(new: &mut Map<String, Value>, old: &mut Map<String, Value>, names: &[&str]) {
    for name in names {
        if let Some(value) = new.remove(*name) {
            old.insert((*name).to_owned(), value);
        }
    }
}
