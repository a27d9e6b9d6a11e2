//! Question to a human (A2A: input required), with an optional schema for the answer.

use std::time::{Duration, SystemTime};

use faultline_proto::{
    json, reason,
    schema::Schema,
    v1::{Interrupt, interrupt::Kind},
};
use prost_types::{Struct, value};
use serde_json::json;

use crate::{Error, sdk::answer::APPROVED};

/// A question for [`Context::ask`](crate::Context::ask). A string is a question for free text.
///
/// ```
/// use faultline_worker::Question;
///
/// let question = Question::approval("Deploy to production?").key("deploy");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub(crate) key: Option<String>,
    kind: Kind,
    prompt: String,
    schema: Option<serde_json::Value>,
    url: String,
    expires_in: Option<Duration>,
    sensitive: bool,
    tool_call_id: String,
}

impl Question {
    /// Asks for text.
    pub fn input(prompt: impl Into<String>) -> Self {
        Self::new(Kind::Input, prompt.into())
    }

    /// Asks for yes or no; see [`Answer::approved`](crate::Answer::approved).
    pub fn approval(prompt: impl Into<String>) -> Self {
        Self::new(Kind::Approval, prompt.into()).schema(json!({
            "type": "object",
            "properties": { APPROVED: { "type": "boolean" } },
            "required": [APPROVED],
        }))
    }

    /// Asks for one of `options`.
    pub fn choice<O: Into<String>>(
        prompt: impl Into<String>,
        options: impl IntoIterator<Item = O>,
    ) -> Self {
        let options: Vec<String> = options.into_iter().map(Into::into).collect();
        let choice = json!({ "type": "string", "enum": options });
        Self::new(Kind::Choice, prompt.into()).schema(json!({
            "type": "object",
            "properties": { "choice": choice },
            "required": ["choice"],
        }))
    }

    /// Asks for a credential, which is given at `url` and never passes through the mesh. Meanwhile
    /// the task is AUTH_REQUIRED.
    pub fn auth(url: impl Into<String>) -> Self {
        let url = url.into();
        let prompt = format!("Sign in at {url}");
        Self { url, ..Self::new(Kind::AuthUrl, prompt) }
    }

    /// Names the question within its task. The same key in a later attempt returns the stored
    /// answer instead of asking again. Without a key, questions are numbered; give keys when their
    /// order may change.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Replaces the text for the human.
    pub fn prompt(self, prompt: impl Into<String>) -> Self {
        Self { prompt: prompt.into(), ..self }
    }

    /// The fields of the answer as a flat JSON Schema: an object whose properties are strings
    /// (`format` email, uri, date or date-time, `minLength`, `maxLength`, `enum`, or `oneOf` with
    /// `const` and `title`), numbers and integers (`minimum`, `maximum`), booleans, or arrays with
    /// an `enum` of strings, each with an optional `default`. Front ends show the schema as a form,
    /// and an answer that does not match it never reaches the agent. With any other schema
    /// [`ask`](crate::Context::ask) fails with INVALID_ARGUMENT.
    pub fn schema(self, schema: serde_json::Value) -> Self {
        Self { schema: Some(schema), ..self }
    }

    /// Limit for the answer. Default: none. After it [`ask`](crate::Context::ask) fails with
    /// INPUT_TIMEOUT, which the agent may catch.
    pub fn expires_in(self, time: Duration) -> Self {
        Self { expires_in: Some(time), ..self }
    }

    /// Marks the answer as sensitive: front ends should not show it.
    pub fn sensitive(self) -> Self {
        Self { sensitive: true, ..self }
    }

    /// The id of the model's tool call that waits for the answer.
    pub fn tool_call(self, id: impl Into<String>) -> Self {
        Self { tool_call_id: id.into(), ..self }
    }

    fn new(kind: Kind, prompt: String) -> Self {
        Self {
            key: None,
            kind,
            prompt,
            schema: None,
            url: String::new(),
            expires_in: None,
            sensitive: false,
            tool_call_id: String::new(),
        }
    }

    pub(crate) fn into_interrupt(self, key: String, agent: &str) -> Result<Interrupt, Error> {
        let now = SystemTime::now();
        Ok(Interrupt {
            key,
            kind: self.kind as i32,
            prompt: self.prompt,
            schema: self.schema.map(read_schema).transpose()?,
            url: self.url,
            requested_at: Some(now.into()),
            expires_at: self.expires_in.map(|time| (now + time).into()),
            agent: agent.to_owned(),
            sensitive: self.sensitive,
            tool_call_id: self.tool_call_id,
            ..Interrupt::default()
        })
    }
}

fn read_schema(schema: serde_json::Value) -> Result<Struct, Error> {
    let refused = |field: &str, what: &str| {
        let text = format!("the question cannot be asked: {field}: {what}");
        Error::new(&reason::INVALID_ARGUMENT).because(text).violation(field, what)
    };
    let Some(value::Kind::StructValue(schema)) = json::value_from_json(schema).kind else {
        return Err(refused("schema", "is an object"));
    };
    match Schema::read(&schema) {
        Ok(_) => Ok(schema),
        Err(wrong) => Err(refused(&wrong.field, &wrong.what)),
    }
}

impl From<&str> for Question {
    fn from(prompt: &str) -> Self {
        Self::input(prompt)
    }
}

impl From<String> for Question {
    fn from(prompt: String) -> Self {
        Self::input(prompt)
    }
}
