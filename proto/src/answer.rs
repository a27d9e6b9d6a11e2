//! Answers to questions, as a message contains them: the key of the question, the action and the
//! content. The gateway, the coordinator and agents parse an answer with the same code. Pure.

use prost_types::{Struct, Value, value};

use crate::{
    a2a::{Message, Part, part::Content},
    schema::{Kind, Schema, Violation, yes_or_no},
    v1::{AnswerAction, Interrupt, interrupt},
};

/// The key of an answer record, in the metadata of a message or as the only field of a data part.
pub const ANSWER_KEY: &str = "faultline.dev/answer";
/// The boolean field of an approval.
pub const APPROVED: &str = "approved";
/// The metadata key of an answer that came too late.
pub const SUPERSEDED_KEY: &str = "faultline.dev/superseded";

/// A message, parsed as an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The key of the question; empty: the oldest open question.
    pub interrupt_id: String,
    pub action: AnswerAction,
    /// The fields of the answer, if it has any.
    pub content: Option<Struct>,
    /// The answer as plain text.
    pub text: String,
}

impl Reply {
    pub fn read(message: &Message) -> Result<Self, Violation> {
        let given = message.metadata.as_ref().and_then(|m| m.fields.get(ANSWER_KEY));
        let mut record = given.map(|value| (format!("message.metadata.{ANSWER_KEY}"), value));
        let mut content = None;
        let mut text = Vec::new();
        for (at, part) in message.parts.iter().enumerate() {
            match &part.content {
                Some(Content::Text(words)) => text.push(words.as_str()),
                Some(Content::Data(Value { kind: Some(value::Kind::StructValue(data)) })) => {
                    match data.fields.get(ANSWER_KEY).filter(|_| data.fields.len() == 1) {
                        Some(value) => {
                            let at = format!("message.parts[{at}].data.{ANSWER_KEY}");
                            record.get_or_insert((at, value));
                        }
                        None => content = content.or_else(|| Some(data.clone())),
                    }
                }
                _ => {}
            }
        }
        let (interrupt_id, action) = match record {
            None => (String::new(), AnswerAction::Accept),
            Some((at, value)) => read_record(&at, value)?,
        };
        Ok(Self { interrupt_id, action, content, text: text.join("\n") })
    }

    /// The answer as the fields of the question's schema, with defaults filled in. Plain text
    /// answers a single field. `None`: the question has no schema, or the answer is a refusal
    /// without fields.
    pub fn fit(self, question: &Interrupt) -> Result<Option<Struct>, Vec<Violation>> {
        // A schema that cannot be parsed was never asked with, so this question came from
        // elsewhere.
        let schema = question.schema.as_ref().and_then(|schema| Schema::read(schema).ok());
        let (Some(schema), AnswerAction::Accept) = (schema, self.action) else {
            return Ok(self.content);
        };
        let from_text = || schema.from_text(&self.text).filter(|_| !self.text.is_empty());
        let content = self.content.or_else(from_text).unwrap_or_default();
        match schema.check(content) {
            Ok(content) => Ok(Some(content)),
            Err(mut wrong) => {
                for violation in &mut wrong {
                    violation.field.insert_str(0, "answer.");
                }
                Err(wrong)
            }
        }
    }
}

/// Whether an answer refuses: it declines, or it denies the approval that the question asks for. A
/// plain "no" to any other question is an ordinary answer.
pub fn is_no(question: &Interrupt, message: &Message, action: AnswerAction) -> bool {
    match action {
        AnswerAction::Decline => true,
        AnswerAction::Dismiss | AnswerAction::Expire => false,
        AnswerAction::Unspecified | AnswerAction::Accept => {
            let Ok(reply) = Reply::read(message) else { return false };
            let Some(field) = approval_of(question) else { return false };
            let in_words = yes_or_no(&reply.text) == Some(false);
            let fields = reply.fit(question).ok().flatten();
            match fields.and_then(|mut fields| fields.fields.remove(&field)?.kind) {
                Some(value::Kind::BoolValue(approved)) => !approved,
                _ => in_words,
            }
        }
    }
}

/// The field that approves, if the question asks for an approval only.
fn approval_of(question: &Interrupt) -> Option<String> {
    let schema = question.schema.as_ref().and_then(|schema| Schema::read(schema).ok());
    let fields = schema.map(|schema| schema.fields).unwrap_or_default();
    match fields.as_slice() {
        fields if fields.iter().any(|field| field.name == APPROVED) => approval_field(question),
        [_] => approval_field(question),
        [] if question.kind() == interrupt::Kind::Approval => Some(APPROVED.to_owned()),
        _ => None,
    }
}

/// The field that approves, in the schema of a question: `approved`, else the only boolean one.
pub fn approval_field(question: &Interrupt) -> Option<String> {
    let schema = question.schema.as_ref().and_then(|schema| Schema::read(schema).ok())?;
    let mut booleans = schema.fields.iter().filter(|field| field.kind == Kind::YesNo);
    if let Some(field) = booleans.clone().find(|field| field.name == APPROVED) {
        return Some(field.name.clone());
    }
    let first = booleans.next()?;
    let second = booleans.next();
    second.is_none().then(|| first.name.clone())
}

fn read_record(at: &str, value: &Value) -> Result<(String, AnswerAction), Violation> {
    let wrong = |field: &str, what: &str| {
        let field = if field.is_empty() { at.to_owned() } else { format!("{at}.{field}") };
        Err(Violation { field, what: what.to_owned() })
    };
    let Some(value::Kind::StructValue(record)) = &value.kind else {
        return wrong("", "an object with `interruptId` and `action`, both optional");
    };
    let mut id = String::new();
    let mut action = AnswerAction::Accept;
    for (name, value) in &record.fields {
        match (name.as_str(), value.kind.as_ref()) {
            (_, None | Some(value::Kind::NullValue(_))) => {}
            ("interruptId", Some(value::Kind::StringValue(text))) => id.clone_from(text),
            ("interruptId", _) => return wrong(name, "the key of a question that is open"),
            ("action", Some(value::Kind::StringValue(word))) => match read_action(word) {
                Some(given) => action = given,
                None => return wrong(name, "accept, decline or dismiss"),
            },
            ("action", _) => return wrong(name, "accept, decline or dismiss"),
            _ => return wrong(name, "there are only `interruptId` and `action`"),
        }
    }
    Ok((id, action))
}

/// Actions that a client may send. Expiry is only set by the coordinator's timer.
fn read_action(word: &str) -> Option<AnswerAction> {
    match word {
        "accept" => Some(AnswerAction::Accept),
        "decline" => Some(AnswerAction::Decline),
        "dismiss" => Some(AnswerAction::Dismiss),
        _ => None,
    }
}

/// The metadata of a message for an answer to a question that was answered before.
pub fn superseded(interrupt_id: &str) -> Struct {
    let text = Value { kind: Some(value::Kind::StringValue(interrupt_id.to_owned())) };
    let record = Struct { fields: [("interruptId".to_owned(), text)].into() };
    let kind = Some(value::Kind::StructValue(record));
    Struct { fields: [(SUPERSEDED_KEY.to_owned(), Value { kind })].into() }
}

/// The answer record for a question and an action, as `Reply` parses it.
pub fn record(interrupt_id: &str, action: AnswerAction) -> Struct {
    let word = match action {
        AnswerAction::Unspecified | AnswerAction::Accept => "accept",
        AnswerAction::Decline => "decline",
        AnswerAction::Dismiss | AnswerAction::Expire => "dismiss",
    };
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let mut fields = Struct::default().fields;
    if !interrupt_id.is_empty() {
        fields.insert("interruptId".to_owned(), text(interrupt_id));
    }
    fields.insert("action".to_owned(), text(word));
    let kind = Some(value::Kind::StructValue(Struct { fields }));
    Struct { fields: [(ANSWER_KEY.to_owned(), Value { kind })].into() }
}

/// The fields of an answer as a data part of a message.
pub fn fields_part(fields: Struct) -> Part {
    let value = Value { kind: Some(value::Kind::StructValue(fields)) };
    Part { content: Some(Content::Data(value)), ..Part::default() }
}

#[cfg(test)]
mod tests;
