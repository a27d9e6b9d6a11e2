//! The answer to a question: received by an agent, or given by an agent to another one.

use std::borrow::Cow;

use faultline_proto::{
    a2a, answer, json, reason, schema,
    v1::{AnswerAction, Interrupt},
};
use prost_types::{Struct, Value, value};
use serde::de::DeserializeOwned;

use crate::{
    Content, Error,
    attempt::state::ReceivedAnswer,
    sdk::{content::text_of, delegation::user_message},
};

pub(crate) use faultline_proto::answer::APPROVED;

/// The kind of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The question was answered.
    Accepted,
    /// The request was refused: continue without it, or give up.
    Declined,
    /// The question was closed without yes or no.
    Dismissed,
}

/// The answer to a question. Text and fields are meaningful only if the question was
/// [accepted](Self::is_accepted).
///
/// ```
/// # use faultline_worker::{Context, Error, Question};
/// # async fn run(cx: &Context) -> Result<(), Error> {
/// let answer = cx.ask(Question::approval("Deploy to production?")).await?;
/// if !answer.approved() {
///     return Err(Error::rejected("not without approval"));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    message: a2a::Message,
    action: Action,
    fields: Option<Struct>,
    /// The name of the boolean field of an approval, if the question has a schema.
    approval: Option<String>,
}

impl Answer {
    /// An answer as text, or as a JSON object with the fields of the question's schema.
    pub fn new(content: impl Into<Content>) -> Self {
        Self::made(user_message(content.into().0), Action::Accepted)
    }

    /// An answer that refuses the request.
    pub fn declined() -> Self {
        Self::made(user_message(Vec::new()), Action::Declined)
    }

    /// An answer without yes or no.
    pub fn dismissed() -> Self {
        Self::made(user_message(Vec::new()), Action::Dismissed)
    }

    fn made(message: a2a::Message, action: Action) -> Self {
        Self { message, action, fields: None, approval: None }
    }

    /// Reads the received answer; an expired question is an error.
    pub(crate) fn of(question: &Interrupt, given: ReceivedAnswer) -> Result<Self, Error> {
        let action = match given.action {
            AnswerAction::Unspecified | AnswerAction::Accept => Action::Accepted,
            AnswerAction::Decline => Action::Declined,
            AnswerAction::Dismiss => Action::Dismissed,
            AnswerAction::Expire => return Err(Error::new(&reason::INPUT_TIMEOUT)),
        };
        // The coordinator validated the answer already.
        let fields = answer::Reply::read(&given.message).ok();
        let fields = fields.and_then(|reply| reply.fit(question).ok()).flatten();
        let approval = answer::approval_field(question);
        Ok(Self { message: given.message, action, fields, approval })
    }

    /// The kind of the answer.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Whether the question was answered, and neither declined nor dismissed.
    pub fn is_accepted(&self) -> bool {
        self.action == Action::Accepted
    }

    /// Whether the answer is a yes. Use this instead of [`text`](Self::text) for an
    /// [approval](crate::Question::approval): the console and forms send a boolean field, other
    /// clients send text.
    ///
    /// With a schema, the boolean field decides: `approved`, or the only boolean field under
    /// another name. Without a schema the text decides: yes, y or true. Everything else is a no,
    /// including a declined or dismissed answer.
    pub fn approved(&self) -> bool {
        if !self.is_accepted() {
            return false;
        }
        let field = self.field(self.approval.as_deref().unwrap_or(APPROVED));
        match self.fields {
            Some(_) => field == Some(true),
            None => schema::yes_or_no(&self.text()) == Some(true),
        }
    }

    /// The text parts, joined by line breaks.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(&self.message)
    }

    /// The fields of the question's schema, with defaults filled in; null without a schema and
    /// without fields.
    pub fn value(&self) -> serde_json::Value {
        let kind = self.fields.clone().map(value::Kind::StructValue);
        json::value_to_json(&Value { kind })
    }

    /// One field; `None` if it is absent or of another type.
    pub fn field<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let value = self.fields.as_ref()?.fields.get(name)?;
        serde_json::from_value(json::value_to_json(value)).ok()
    }

    /// The whole message.
    pub fn message(&self) -> &a2a::Message {
        &self.message
    }

    /// The whole message, by value.
    pub fn into_message(self) -> a2a::Message {
        self.message
    }

    /// The message that gives this answer to question `key` of another task.
    pub(crate) fn into_message_for(self, task_id: &str, key: &str) -> a2a::Message {
        let action = match self.action {
            Action::Accepted => AnswerAction::Accept,
            Action::Declined => AnswerAction::Decline,
            Action::Dismissed => AnswerAction::Dismiss,
        };
        let record = answer::record(key, action);
        let mut parts = self.message.parts;
        let mut metadata = self.message.metadata.unwrap_or_default();
        // A message needs at least one part.
        if parts.is_empty() {
            parts.push(answer::fields_part(record.clone()));
        }
        metadata.fields.extend(record.fields);
        let task_id = task_id.to_owned();
        a2a::Message { task_id, metadata: Some(metadata), ..user_message(parts) }
    }
}
