//! New answers, made old. They are our own, so nothing is checked here; fields are picked by name,
//! because old clients refuse those they do not know.

use serde_json::{Map, Value, json};

use super::{Form, card, requests::WRAPPED};

pub(super) fn rpc(method: &str, new: Value) -> Value {
    match method {
        "SendMessage" => event(method, new, Form::Rpc),
        "GetTask" | "CancelTask" => task(new, Form::Rpc),
        "CreateTaskPushNotificationConfig" | "GetTaskPushNotificationConfig" => {
            push(new, Form::Rpc)
        }
        "ListTaskPushNotificationConfigs" => configs(new, Form::Rpc),
        "DeleteTaskPushNotificationConfig" => Value::Null,
        "GetExtendedAgentCard" => card(new),
        _ => new,
    }
}

pub(super) fn rest(method: &str, new: Value) -> Value {
    match method {
        "SendMessage" => event(method, new, Form::Rest),
        "GetTask" | "CancelTask" => task(new, Form::Rest),
        "CreateTaskPushNotificationConfig" | "GetTaskPushNotificationConfig" => {
            push(new, Form::Rest)
        }
        "ListTaskPushNotificationConfigs" => {
            let more = new.get("nextPageToken").cloned().unwrap_or_else(|| json!(""));
            json!({"configs": configs(new, Form::Rest), "nextPageToken": more})
        }
        "GetExtendedAgentCard" => card(new),
        _ => new,
    }
}

/// A `StreamResponse`, or a `SendMessageResponse`, which is a subset: bare in JSON, still wrapped
/// on REST.
pub(super) fn event(method: &str, new: Value, form: Form) -> Value {
    let Value::Object(fields) = new else { return new };
    let Some((name, value)) = fields.into_iter().next() else { return json!({}) };
    let old = match &*name {
        "task" => task(value, form),
        "message" => message(value, form),
        "statusUpdate" => status_update(value, method, form),
        "artifactUpdate" => artifact_update(value, form),
        _ => value,
    };
    match form {
        Form::Rpc => old,
        Form::Rest => json!({ name: old }),
    }
}

fn task(new: Value, form: Form) -> Value {
    let mut new = fields(new);
    let mut old = start(form, "task");
    old.insert("id".to_owned(), text(&mut new, "id"));
    old.insert("contextId".to_owned(), text(&mut new, "contextId"));
    old.insert("status".to_owned(), status(new.remove("status"), form));
    if let Some(artifacts) = each(&mut new, "artifacts", form, artifact) {
        old.insert("artifacts".to_owned(), artifacts);
    }
    if let Some(history) = each(&mut new, "history", form, message) {
        old.insert("history".to_owned(), history);
    }
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

fn status(new: Option<Value>, form: Form) -> Value {
    let mut new = fields(new.unwrap_or_default());
    let state = state(new.get("state").and_then(Value::as_str).unwrap_or_default(), form);
    let mut old = Map::from_iter([("state".to_owned(), json!(state))]);
    if let Some(said) = new.remove("message") {
        old.insert("message".to_owned(), message(said, form));
    }
    keep(&mut new, &mut old, &["timestamp"]);
    old.into()
}

fn state(new: &str, form: Form) -> &'static str {
    let (rpc, rest) = match new {
        "TASK_STATE_SUBMITTED" => ("submitted", "TASK_STATE_SUBMITTED"),
        "TASK_STATE_WORKING" => ("working", "TASK_STATE_WORKING"),
        "TASK_STATE_COMPLETED" => ("completed", "TASK_STATE_COMPLETED"),
        "TASK_STATE_FAILED" => ("failed", "TASK_STATE_FAILED"),
        // The earlier contract had the other spelling.
        "TASK_STATE_CANCELED" => ("canceled", "TASK_STATE_CANCELLED"),
        "TASK_STATE_INPUT_REQUIRED" => ("input-required", "TASK_STATE_INPUT_REQUIRED"),
        "TASK_STATE_REJECTED" => ("rejected", "TASK_STATE_REJECTED"),
        "TASK_STATE_AUTH_REQUIRED" => ("auth-required", "TASK_STATE_AUTH_REQUIRED"),
        _ => ("unknown", "TASK_STATE_UNSPECIFIED"),
    };
    match form {
        Form::Rpc => rpc,
        Form::Rest => rest,
    }
}

fn status_update(new: Value, method: &str, form: Form) -> Value {
    let mut new = fields(new);
    let last = match new.get("status").and_then(|status| status["state"].as_str()) {
        Some(
            "TASK_STATE_COMPLETED"
            | "TASK_STATE_FAILED"
            | "TASK_STATE_CANCELED"
            | "TASK_STATE_REJECTED",
        ) => true,
        // A question ends the stream of the message that led to it, but not a subscription.
        Some("TASK_STATE_INPUT_REQUIRED") => method == "SendStreamingMessage",
        _ => false,
    };
    let mut old = start(form, "status-update");
    old.insert("taskId".to_owned(), text(&mut new, "taskId"));
    old.insert("contextId".to_owned(), text(&mut new, "contextId"));
    old.insert("status".to_owned(), status(new.remove("status"), form));
    old.insert("final".to_owned(), json!(last));
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

fn artifact_update(new: Value, form: Form) -> Value {
    let mut new = fields(new);
    let mut old = start(form, "artifact-update");
    old.insert("taskId".to_owned(), text(&mut new, "taskId"));
    old.insert("contextId".to_owned(), text(&mut new, "contextId"));
    let body = new.remove("artifact").unwrap_or_default();
    old.insert("artifact".to_owned(), artifact(body, form));
    for flag in ["append", "lastChunk"] {
        old.insert(flag.to_owned(), new.remove(flag).unwrap_or(json!(false)));
    }
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

fn artifact(new: Value, form: Form) -> Value {
    let mut new = fields(new);
    let mut old = Map::new();
    old.insert("artifactId".to_owned(), text(&mut new, "artifactId"));
    old.insert("parts".to_owned(), parts(&mut new, form));
    keep(&mut new, &mut old, &["name", "description", "metadata", "extensions"]);
    old.into()
}

fn message(new: Value, form: Form) -> Value {
    let mut new = fields(new);
    let mut old = start(form, "message");
    old.insert("messageId".to_owned(), text(&mut new, "messageId"));
    let user = new.get("role").is_some_and(|role| role == "ROLE_USER");
    let (role, list) = match form {
        Form::Rpc => (if user { "user" } else { "agent" }, "parts"),
        Form::Rest => (if user { "ROLE_USER" } else { "ROLE_AGENT" }, "content"),
    };
    old.insert("role".to_owned(), json!(role));
    old.insert(list.to_owned(), parts(&mut new, form));
    keep(&mut new, &mut old, &["contextId", "taskId", "metadata", "extensions"]);
    if form == Form::Rpc {
        keep(&mut new, &mut old, &["referenceTaskIds"]);
    }
    old.into()
}

/// There even when empty: ProtoJSON may leave the field out, an old client may not.
fn parts(of: &mut Map<String, Value>, form: Form) -> Value {
    each(of, "parts", form, part).unwrap_or_else(|| json!([]))
}

fn part(new: Value, form: Form) -> Value {
    let mut new = fields(new);
    let (kind, content) = if let Some(raw) = new.remove("raw") {
        ("file", file(raw, ["bytes", "fileWithBytes"], &mut new, form))
    } else if let Some(url) = new.remove("url") {
        ("file", file(url, ["uri", "fileWithUri"], &mut new, form))
    } else if let Some(data) = new.remove("data") {
        let data = wrapped(data, &mut new);
        ("data", if form == Form::Rest { json!({ "data": data }) } else { data })
    } else {
        ("text", text(&mut new, "text"))
    };
    let mut old = start(form, kind);
    old.insert(kind.to_owned(), content);
    keep(&mut new, &mut old, &["metadata"]);
    old.into()
}

fn file(content: Value, names: [&str; 2], part: &mut Map<String, Value>, form: Form) -> Value {
    let [rpc, rest] = names;
    let name = if form == Form::Rpc { rpc } else { rest };
    let mut file = Map::from_iter([(name.to_owned(), content)]);
    for (new, old) in [("mediaType", "mimeType"), ("filename", "name")] {
        if let Some(value) = part.remove(new) {
            file.insert(old.to_owned(), value);
        }
    }
    file.into()
}

/// Data was an object. What is none is put into one, and marked.
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

fn configs(new: Value, form: Form) -> Value {
    each(&mut fields(new), "configs", form, push).unwrap_or_else(|| json!([]))
}

fn push(new: Value, form: Form) -> Value {
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
    match form {
        Form::Rpc => json!({"taskId": task_id, "pushNotificationConfig": config}),
        Form::Rest => {
            let id = config.get("id").and_then(Value::as_str).unwrap_or_default();
            let task_id = task_id.as_str().unwrap_or_default();
            let name = format!("tasks/{task_id}/pushNotificationConfigs/{id}");
            json!({"name": name, "pushNotificationConfig": config})
        }
    }
}

/// An object of that kind, which only JSON says.
fn start(form: Form, kind: &str) -> Map<String, Value> {
    match form {
        Form::Rpc => Map::from_iter([("kind".to_owned(), json!(kind))]),
        Form::Rest => Map::new(),
    }
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The list of that name, every member made old.
fn each(
    from: &mut Map<String, Value>,
    name: &str,
    form: Form,
    old: fn(Value, Form) -> Value,
) -> Option<Value> {
    let Value::Array(list) = from.remove(name)? else { return None };
    Some(list.into_iter().map(|new| old(new, form)).collect())
}

/// A field that must be there, also where ProtoJSON left it out because it is empty.
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
