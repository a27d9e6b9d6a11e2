//! Objects of 0.3, converted to 1.0. A renamed field is moved; a field that must have a certain
//! shape for that is checked, and refused by its 0.3 name. All other checks are those of 1.0.

use serde_json::{Map, Value, json};

use super::{Dialect, Misfit, STATES, WRAPPED};

/// 0.3 allows several schemes; the first is used, as servers of 0.3 did.
pub fn push(mut old: Object) -> Result<Map<String, Value>, Misfit> {
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

/// A message of a client or of an agent.
pub fn message(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    let same = ["messageId", "contextId", "taskId", "metadata", "extensions", "referenceTaskIds"];
    old.move_to(&mut new, &same);
    new.insert("role".to_owned(), role(&mut old, dialect)?.into());
    let name = match dialect {
        Dialect::Rpc => "parts",
        Dialect::Rest => "content",
    };
    let parts = parts(&mut old, name, dialect)?;
    new.insert("parts".to_owned(), parts);
    Ok(new.into())
}

/// The list with that name, each member converted to a part of 1.0.
fn parts(old: &mut Object, name: &str, dialect: Dialect) -> Result<Value, Misfit> {
    each(old, name, |old| part(old, dialect))
}

fn each(
    old: &mut Object,
    name: &str,
    renew: impl Fn(Object) -> Result<Value, Misfit>,
) -> Result<Value, Misfit> {
    let path = old.path_of(name);
    let read = |(i, value)| renew(Object::read(value, &format!("{path}[{i}]"))?);
    old.list(name)?.into_iter().enumerate().map(read).collect()
}

fn role(old: &mut Object, dialect: Dialect) -> Result<&'static str, Misfit> {
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

fn part(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
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

/// The discriminator of a part: explicit in JSON, absent in ProtoJSON, else inferred.
fn kind(old: &mut Object) -> Result<&'static str, Misfit> {
    let explicit = old.text("kind")?;
    let meant = |kind: &&str| match &explicit {
        Some(explicit) => explicit == kind,
        None => old.fields.contains_key(*kind),
    };
    let found = ["text", "file", "data"].into_iter().find(meant);
    found.ok_or_else(|| match explicit {
        Some(_) => old.refuse("kind", "must be text, file or data"),
        None => old.refuse("", "must have one of text, file or data"),
    })
}

fn file(mut old: Object, mut new: Map<String, Value>, dialect: Dialect) -> Result<Value, Misfit> {
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

/// Reverts the wrapping of data.
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

/// One event of a stream, or the response to a message, as the `StreamResponse` of 1.0. In JSON-RPC
/// the object is bare and has a `kind`; on REST it is wrapped.
pub fn event(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    if dialect == Dialect::Rest {
        for (name, field) in WRAPPERS {
            if let Some(inner) = old.object(name)? {
                return Ok(json!({ field: named(field, inner, dialect)? }));
            }
        }
        return Err(old.refuse("", "must have one of task, message, statusUpdate, artifactUpdate"));
    }
    let kind = old.fields.get("kind").and_then(Value::as_str);
    let has = |name: &str| old.fields.contains_key(name);
    let field = match kind {
        Some("task") => "task",
        Some("message") => "message",
        Some("status-update") => "statusUpdate",
        Some("artifact-update") => "artifactUpdate",
        Some(_) => return Err(old.refuse("kind", "is none of A2A 0.3")),
        // Some servers omit it.
        None if has("artifact") => "artifactUpdate",
        None if has("status") && has("taskId") => "statusUpdate",
        None if has("status") => "task",
        None if has("role") => "message",
        None => return Err(old.refuse("", "is neither a task, a message nor an event")),
    };
    Ok(json!({ field: named(field, old, dialect)? }))
}

/// The names of the wrappers on REST, some of which the contract and its JSON spell differently.
const WRAPPERS: [(&str, &str); 5] = [
    ("task", "task"),
    ("message", "message"),
    ("msg", "message"),
    ("statusUpdate", "statusUpdate"),
    ("artifactUpdate", "artifactUpdate"),
];

fn named(field: &str, old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    match field {
        "task" => task(old, dialect),
        "message" => message(old, dialect),
        "statusUpdate" => status_update(old, dialect),
        _ => artifact_update(old, dialect),
    }
}

pub fn task(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    old.move_to(&mut new, &["id", "contextId", "metadata"]);
    if let Some(now) = old.object("status")? {
        new.insert("status".to_owned(), status(now, dialect)?);
    }
    let artifacts = each(&mut old, "artifacts", |old| artifact(old, dialect))?;
    new.insert("artifacts".to_owned(), artifacts);
    let history = each(&mut old, "history", |old| message(old, dialect))?;
    new.insert("history".to_owned(), history);
    Ok(new.into())
}

fn status(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    old.move_to(&mut new, &["timestamp"]);
    let given = old.required("state")?;
    let known = STATES.iter().find(|(rpc, rest, _)| match dialect {
        Dialect::Rpc => *rpc == given,
        Dialect::Rest => *rest == given,
    });
    let (_, _, state) = known.ok_or_else(|| old.refuse("state", "is none of A2A 0.3"))?;
    new.insert("state".to_owned(), json!(state));
    let words = match old.object("message")? {
        None => old.object("update")?,
        words => words,
    };
    if let Some(words) = words {
        new.insert("message".to_owned(), message(words, dialect)?);
    }
    Ok(new.into())
}

fn status_update(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    old.move_to(&mut new, &["taskId", "contextId", "metadata"]);
    new.insert("status".to_owned(), status(old.required_object("status")?, dialect)?);
    Ok(new.into())
}

fn artifact_update(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    old.move_to(&mut new, &["taskId", "contextId", "metadata", "append", "lastChunk"]);
    new.insert("artifact".to_owned(), artifact(old.required_object("artifact")?, dialect)?);
    Ok(new.into())
}

fn artifact(mut old: Object, dialect: Dialect) -> Result<Value, Misfit> {
    let mut new = Map::new();
    let same = ["artifactId", "name", "description", "metadata", "extensions"];
    old.move_to(&mut new, &same);
    let parts = parts(&mut old, "parts", dialect)?;
    new.insert("parts".to_owned(), parts);
    Ok(new.into())
}

/// The card of an agent that supports 0.3 only; none for any other card. The security schemes and
/// the signature have other shapes and are dropped.
pub fn card(old: Value) -> Result<Option<Value>, Misfit> {
    let mut old = Object::read(old, "")?;
    let listed = ["supportedInterfaces", "supported_interfaces"].map(|name| old.fields.get(name));
    if listed.iter().flatten().any(|list| list.as_array().is_some_and(|list| !list.is_empty())) {
        return Ok(None);
    }
    let Some(url) = old.text("url")? else { return Ok(None) };
    let version = old.text("protocolVersion")?.unwrap_or_else(|| "0.3".to_owned());
    let first = old.text("preferredTransport")?.unwrap_or_else(|| "JSONRPC".to_owned());
    let mut all = vec![(url, first)];
    let path = old.path_of("additionalInterfaces");
    for (i, more) in old.list("additionalInterfaces")?.into_iter().enumerate() {
        let mut more = Object::read(more, &format!("{path}[{i}]"))?;
        let more = (more.required("url")?, more.required("transport")?);
        if !all.contains(&more) {
            all.push(more);
        }
    }
    let of_1_0 = |(url, binding): &(String, String)| interface(url, binding, &version);
    let interfaces = all.iter().map(of_1_0).collect();
    old.fields.insert("supportedInterfaces".to_owned(), interfaces);
    for other in ["security", "securitySchemes", "signatures"] {
        old.take(other);
    }
    Ok(Some(old.fields.into()))
}

fn interface(url: &str, binding: &str, version: &str) -> Value {
    json!({"url": url, "protocolBinding": binding, "protocolVersion": version})
}

/// An object of 0.3 and its path, for the errors. Null counts as absent, and snake_case as
/// camelCase, as everywhere in ProtoJSON and in the old SDKs.
pub struct Object {
    pub fields: Map<String, Value>,
    path: String,
}

impl Object {
    pub fn read(value: Value, path: &str) -> Result<Self, Misfit> {
        match value {
            Value::Object(fields) => Ok(Self { fields, path: path.to_owned() }),
            Value::Null => Ok(Self { fields: Map::new(), path: path.to_owned() }),
            _ => Err(Misfit { path: path.to_owned(), description: "must be an object".to_owned() }),
        }
    }

    /// Fields of the outermost object have no path prefix.
    pub fn at_root(mut self) -> Self {
        self.path.clear();
        self
    }

    pub fn path_of(&self, name: &str) -> String {
        match (&*self.path, name) {
            ("", _) => name.to_owned(),
            (path, "") => path.to_owned(),
            (path, _) => format!("{path}.{name}"),
        }
    }

    pub fn refuse(&self, name: &str, description: &str) -> Misfit {
        Misfit { path: self.path_of(name), description: description.to_owned() }
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        let value = self.fields.remove(name).or_else(|| self.fields.remove(&snake(name)))?;
        (!value.is_null()).then_some(value)
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Misfit> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refuse(name, "must be a string")),
        }
    }

    pub fn required(&mut self, name: &str) -> Result<String, Misfit> {
        self.text(name)?.ok_or_else(|| self.refuse(name, "is required"))
    }

    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Misfit> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.refuse(name, "must be true or false")),
        }
    }

    pub fn list(&mut self, name: &str) -> Result<Vec<Value>, Misfit> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(self.refuse(name, "must be an array")),
        }
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Object>, Misfit> {
        let path = self.path_of(name);
        self.take(name).map(|value| Object::read(value, &path)).transpose()
    }

    pub fn required_object(&mut self, name: &str) -> Result<Object, Misfit> {
        self.object(name)?.ok_or_else(|| self.refuse(name, "is required"))
    }

    pub fn move_to(&mut self, new: &mut Map<String, Value>, names: &[&str]) {
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
