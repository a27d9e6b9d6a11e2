//! The answer to a question: one that came, or one that an agent gives to another.

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

/// What somebody did about a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answered it.
    Accepted,
    /// Said no: go on without, or give up.
    Declined,
    /// Neither yes nor no: put away unanswered.
    Dismissed,
}

/// What came back. Only an [accepted](Self::is_accepted) question has something to read in it.
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
    /// The name of the field that says yes or no, in an answer to a question with a schema.
    approval: Option<String>,
}

impl Answer {
    /// In words, or field by field as a JSON object, as the question's schema asks for it.
    pub fn new(content: impl Into<Content>) -> Self {
        Self::made(user_message(content.into().0), Action::Accepted)
    }

    /// Says no.
    pub fn declined() -> Self {
        Self::made(user_message(Vec::new()), Action::Declined)
    }

    /// Says neither yes nor no.
    pub fn dismissed() -> Self {
        Self::made(user_message(Vec::new()), Action::Dismissed)
    }

    fn made(message: a2a::Message, action: Action) -> Self {
        Self { message, action, fields: None, approval: None }
    }

    /// What came for this question. Nothing in time is an error.
    pub(crate) fn of(question: &Interrupt, given: ReceivedAnswer) -> Result<Self, Error> {
        let action = match given.action {
            AnswerAction::Unspecified | AnswerAction::Accept => Action::Accepted,
            AnswerAction::Decline => Action::Declined,
            AnswerAction::Dismiss => Action::Dismissed,
            AnswerAction::Expire => return Err(Error::new(&reason::INPUT_TIMEOUT)),
        };
        // It was checked before it was taken.
        let fields = answer::Reply::read(&given.message).ok();
        let fields = fields.and_then(|reply| reply.fit(question).ok()).flatten();
        let approval = answer::approval_field(question);
        Ok(Self { message: given.message, action, fields, approval })
    }

    pub fn action(&self) -> Action {
        self.action
    }

    pub fn is_accepted(&self) -> bool {
        self.action == Action::Accepted
    }

    /// Whether the answer is a yes. Use this and not [`text`](Self::text) for an
    /// [approval](crate::Question::approval): the console and forms send a boolean field, other
    /// clients send words.
    ///
    /// The boolean field of the question's schema decides: `approved`, or the only one under
    /// another name. Without a schema the text decides: yes, y or true. Everything else is a no:
    /// an answer that was declined or dismissed, no, and any other text.
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

    /// Its text parts, joined by line breaks.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(&self.message)
    }

    /// The fields that the question's schema asks for, with defaults filled in; null if it has no
    /// schema and none came.
    pub fn value(&self) -> serde_json::Value {
        let kind = self.fields.clone().map(value::Kind::StructValue);
        json::value_to_json(&Value { kind })
    }

    /// One of the fields, if it was given and is what the agent takes it for.
    pub fn field<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let value = self.fields.as_ref()?.fields.get(name)?;
        serde_json::from_value(json::value_to_json(value)).ok()
    }

    /// The whole message.
    pub fn message(&self) -> &a2a::Message {
        &self.message
    }

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
        // A message has to say something; a bare no says just that.
        if parts.is_empty() {
            parts.push(answer::fields_part(record.clone()));
        }
        metadata.fields.extend(record.fields);
        let task_id = task_id.to_owned();
        a2a::Message { task_id, metadata: Some(metadata), ..user_message(parts) }
    }
}
