//! A question to a human, and its answer.

use std::{borrow::Cow, time::Duration, time::SystemTime};

use faultline_proto::{
    a2a, json,
    v1::{Interrupt, interrupt::Kind},
};
use prost_types::{Struct, value};

use crate::content::text_of;

/// What [`Context::ask`](crate::Context::ask) asks. A string is a question for free text.
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
    schema: Option<Struct>,
    url: String,
    expires_in: Option<Duration>,
}

impl Question {
    /// Asks for text.
    pub fn input(prompt: impl Into<String>) -> Self {
        Self::new(Kind::Input, prompt.into())
    }

    /// Asks for yes or no.
    pub fn approval(prompt: impl Into<String>) -> Self {
        Self::new(Kind::Approval, prompt.into())
    }

    /// Asks for one of `options`.
    pub fn choice<O: Into<String>>(
        prompt: impl Into<String>,
        options: impl IntoIterator<Item = O>,
    ) -> Self {
        let options: Vec<String> = options.into_iter().map(Into::into).collect();
        let choice = serde_json::json!({ "type": "string", "enum": options });
        Self::new(Kind::Choice, prompt.into()).schema(serde_json::json!({
            "type": "object",
            "properties": { "choice": choice },
            "required": ["choice"],
        }))
    }

    /// Asks for a credential, which is given at `url` and never passes through the mesh. The task
    /// is AUTH_REQUIRED meanwhile.
    pub fn auth(url: impl Into<String>) -> Self {
        let url = url.into();
        let prompt = format!("Sign in at {url}");
        Self { url, ..Self::new(Kind::AuthUrl, prompt) }
    }

    /// Names the question within its task. The same key in a later attempt gets the stored answer
    /// instead of asking again. Without one, questions are counted, so give keys when their order
    /// may change. Several at the same time are put one after the other.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Replaces the text that people read.
    pub fn prompt(self, prompt: impl Into<String>) -> Self {
        Self { prompt: prompt.into(), ..self }
    }

    /// A flat JSON Schema of the answer, for front ends that show a form. Anything but an object
    /// is ignored.
    pub fn schema(self, schema: serde_json::Value) -> Self {
        let schema = match json::value_from_json(schema).kind {
            Some(value::Kind::StructValue(schema)) => Some(schema),
            _ => None,
        };
        Self { schema, ..self }
    }

    /// Shown to people: nobody need answer after this much time. It does not end the question;
    /// race [`ask`](crate::Context::ask) against a timer for that.
    pub fn expires_in(self, time: Duration) -> Self {
        Self { expires_in: Some(time), ..self }
    }

    fn new(kind: Kind, prompt: String) -> Self {
        Self { key: None, kind, prompt, schema: None, url: String::new(), expires_in: None }
    }

    pub(crate) fn into_interrupt(self, key: String, agent: &str) -> Interrupt {
        let now = SystemTime::now();
        Interrupt {
            key,
            kind: self.kind as i32,
            prompt: self.prompt,
            schema: self.schema,
            url: self.url,
            requested_at: Some(now.into()),
            expires_at: self.expires_in.map(|time| (now + time).into()),
            agent: agent.to_owned(),
        }
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

/// What came back: the message that was sent to the waiting task.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(pub(crate) a2a::Message);

impl Answer {
    /// Its text parts, joined by line breaks.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(&self.0)
    }

    /// The whole message.
    pub fn message(&self) -> &a2a::Message {
        &self.0
    }

    pub fn into_message(self) -> a2a::Message {
        self.0
    }
}
