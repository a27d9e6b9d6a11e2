//! The stream frames of a task: one event, one frame. Pure and a function of the event alone,
//! so live and replayed streams are equal.

use faultline_proto::{
    Failure,
    a2a::{self, Message, TaskState, stream_response::Payload},
    id::TaskId,
    json,
    v1::{Asked, Event, Interrupt, event, interrupt},
};
use prost_types::{ListValue, Value, value::Kind};

use crate::task::tolerated;

/// Where a task that asks several things at once lists them.
const INTERRUPTS_KEY: &str = "faultline.dev/interrupts";

/// Where the message of a question carries its record.
pub(crate) const INTERRUPT_KEY: &str = "faultline.dev/interrupt";

/// The names a frame carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids<'a> {
    pub(crate) task_id: TaskId,
    pub(crate) context_id: &'a str,
}

impl Ids<'_> {
    /// The frame of an event, if watchers see it.
    pub(crate) fn frame(&self, event: &Event) -> Option<a2a::StreamResponse> {
        let status = |state: TaskState, message: Option<Message>, metadata| {
            Payload::StatusUpdate(a2a::TaskStatusUpdateEvent {
                task_id: self.task_id.to_string(),
                context_id: self.context_id.to_owned(),
                status: Some(a2a::TaskStatus {
                    state: state as i32,
                    message,
                    timestamp: event.time,
                }),
                metadata,
            })
        };
        let payload = match event.body.as_ref()? {
            event::Body::Submitted(_) | event::Body::Checkpointed(_) | event::Body::Lost(_) => {
                return None;
            }
            event::Body::Artifact(write) => Payload::ArtifactUpdate(a2a::TaskArtifactUpdateEvent {
                task_id: self.task_id.to_string(),
                context_id: self.context_id.to_owned(),
                artifact: write.artifact.clone(),
                append: write.append,
                last_chunk: write.last_chunk,
                metadata: None,
            }),
            event::Body::Assigned(_) | event::Body::Answered(_) | event::Body::Withdrawn(_) => {
                status(TaskState::Working, None, None)
            }
            event::Body::Status(said) => status(TaskState::Working, said.message.clone(), None),
            event::Body::Asked(asked) => {
                let question = shown(asked).map(|i| self.question(i));
                status(waiting_state(asked), question, interrupts(&asked.open))
            }
            event::Body::Tolerated(tolerated) => {
                status(TaskState::Working, None, tolerated::metadata(tolerated))
            }
            event::Body::Ended(end) => {
                let failure = end.failure.clone().map(Failure::from_record);
                let message = match (&end.message, &failure) {
                    (None, Some(failure)) => Some(self.failure_message(failure, end.state())),
                    (message, _) => message.clone(),
                };
                status(end.state(), message, failure.map(|f| f.to_metadata(end.state())))
            }
        };
        Some(a2a::StreamResponse { payload: Some(payload) })
    }

    pub(crate) fn signed(&self, mut message: Message) -> Message {
        message.task_id = self.task_id.to_string();
        message.context_id = self.context_id.to_owned();
        message.role = a2a::Role::Agent as i32;
        message
    }

    /// The id of the message that asks a question.
    pub(crate) fn question_id(&self, key: &str) -> String {
        format!("{}-{key}", self.task_id)
    }

    pub(crate) fn question(&self, interrupt: &Interrupt) -> Message {
        let record = json::to_struct(interrupt);
        let value = Value { kind: Some(Kind::StructValue(record)) };
        let fields = [(INTERRUPT_KEY.to_owned(), value)].into();
        let text = match interrupt.prompt.as_str() {
            "" => interrupt.url.clone(),
            prompt => prompt.to_owned(),
        };
        Message {
            message_id: self.question_id(&interrupt.key),
            metadata: Some(prost_types::Struct { fields }),
            ..self.signed(text_message(text))
        }
    }

    pub(crate) fn failure_message(&self, failure: &Failure, state: TaskState) -> Message {
        let message_id = match failure.llm_response_id.as_str() {
            "" => &failure.id,
            response => response,
        };
        Message {
            message_id: message_id.to_owned(),
            metadata: Some(failure.to_flat_metadata(state)),
            ..self.signed(text_message(failure.public_message.clone()))
        }
    }
}

/// The oldest of those that are open.
fn shown(asked: &Asked) -> Option<&Interrupt> {
    asked.open.first().or(asked.interrupt.as_ref())
}

/// All open questions, oldest first, where there are several: the status shows only one.
pub(crate) fn interrupts(open: &[Interrupt]) -> Option<prost_types::Struct> {
    if open.len() < 2 {
        return None;
    }
    let record = |i| Value { kind: Some(Kind::StructValue(json::to_struct(i))) };
    let list = ListValue { values: open.iter().map(record).collect() };
    let value = Value { kind: Some(Kind::ListValue(list)) };
    Some(prost_types::Struct { fields: [(INTERRUPTS_KEY.to_owned(), value)].into() })
}

pub(crate) fn waiting_state(asked: &Asked) -> TaskState {
    match shown(asked).map(Interrupt::kind) {
        Some(interrupt::Kind::AuthUrl) => TaskState::AuthRequired,
        _ => TaskState::InputRequired,
    }
}

pub(crate) fn text_message(text: String) -> Message {
    let content = Some(a2a::part::Content::Text(text));
    let part = a2a::Part { content, ..a2a::Part::default() };
    Message { parts: vec![part], ..Message::default() }
}
