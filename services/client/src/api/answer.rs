//! What a message is answered with.

use faultline_proto::a2a::{Message, SendMessageResponse, Task, send_message_response::Payload};

use crate::{
    api::error::{Ended, Error},
    protocol::task_outcome::{text_of, text_of_parts},
};

/// A task, or just a message: an agent need not make a task of everything.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The task that the message started or continued.
    Task(Task),
    /// Said and done.
    Message(Message),
}

impl Answer {
    /// The task, if there is one.
    pub fn task(&self) -> Option<&Task> {
        match self {
            Answer::Task(task) => Some(task),
            Answer::Message(_) => None,
        }
    }

    /// What the agent made, as far as it is text: artifacts, one a line; without any, what it
    /// said.
    pub fn text(&self) -> String {
        let task = match self {
            Answer::Message(message) => return text_of(message),
            Answer::Task(task) => task,
        };
        let said = || task.status.as_ref().and_then(|s| s.message.as_ref()).map(text_of);
        if task.artifacts.is_empty() {
            said().unwrap_or_default()
        } else {
            let texts = task.artifacts.iter().map(|a| text_of_parts(&a.parts).concat());
            texts.collect::<Vec<_>>().join("\n")
        }
    }

    /// The same, unless it is a task that failed, was rejected or canceled, or waits for somebody.
    pub fn ok(self) -> Result<Self, Error> {
        match self.task().and_then(Ended::of) {
            Some(ended) => Err(ended.into()),
            None => Ok(self),
        }
    }

    /// As it came; none when it was empty.
    pub(crate) fn read(response: SendMessageResponse) -> Option<Self> {
        match response.payload? {
            Payload::Task(task) => Some(Answer::Task(task)),
            Payload::Message(message) => Some(Answer::Message(message)),
        }
    }
}

/// As it travels.
impl From<Answer> for SendMessageResponse {
    fn from(answer: Answer) -> Self {
        let payload = match answer {
            Answer::Task(task) => Payload::Task(task),
            Answer::Message(message) => Payload::Message(message),
        };
        Self { payload: Some(payload) }
    }
}
