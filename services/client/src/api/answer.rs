//! Answer to a message: a task or a bare message.

use faultline_proto::a2a::{Message, SendMessageResponse, Task, send_message_response::Payload};

use crate::{
    api::error::{Ended, Error},
    protocol::task_outcome::{text_of, text_of_parts},
};

/// The answer of an agent: a task or a bare message.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The task that the message started or continued.
    Task(Task),
    /// A message without a task.
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

    /// The text of the result: the text of each artifact, joined by line breaks, or that of the
    /// status message without artifacts.
    pub fn text(&self) -> String {
        let task = match self {
            Answer::Message(message) => return text_of(message),
            Answer::Task(task) => task,
        };
        let status_text = || task.status.as_ref().and_then(|s| s.message.as_ref()).map(text_of);
        if task.artifacts.is_empty() {
            status_text().unwrap_or_default()
        } else {
            let texts = task.artifacts.iter().map(|a| text_of_parts(&a.parts).concat());
            texts.collect::<Vec<_>>().join("\n")
        }
    }

    /// The answer, or an error if its task failed, was rejected, was canceled or waits.
    pub fn ok(self) -> Result<Self, Error> {
        match self.task().and_then(Ended::of) {
            Some(ended) => Err(ended.into()),
            None => Ok(self),
        }
    }

    /// Reads a response; `None` if it is empty.
    pub(crate) fn read(response: SendMessageResponse) -> Option<Self> {
        match response.payload? {
            Payload::Task(task) => Some(Answer::Task(task)),
            Payload::Message(message) => Some(Answer::Message(message)),
        }
    }
}

/// The response that carries the answer.
impl From<Answer> for SendMessageResponse {
    fn from(answer: Answer) -> Self {
        let payload = match answer {
            Answer::Task(task) => Payload::Task(task),
            Answer::Message(message) => Payload::Message(message),
        };
        Self { payload: Some(payload) }
    }
}
