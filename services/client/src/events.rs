//! A stream of a task's events, as one connection delivers it.

use faultline_proto::{
    Failure,
    a2a::{StreamResponse, TaskState, stream_response::Payload},
};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::{
    IDLE_TIMEOUT, error,
    http::{ANSWER_BYTES_MAX, read_envelope},
    outcome::is_final,
    sse::{Frame, Parser},
};

/// One event and its number in its task: what a later subscription may start after. Zero when the
/// server gave none, as for a bare message.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub seq: u64,
    pub response: StreamResponse,
}

impl Event {
    /// The state that the event shows, if it shows one.
    pub fn state(&self) -> Option<TaskState> {
        match self.response.payload.as_ref()? {
            Payload::Task(task) => task.status.as_ref().map(|s| s.state()),
            Payload::StatusUpdate(update) => update.status.as_ref().map(|s| s.state()),
            Payload::ArtifactUpdate(_) | Payload::Message(_) => None,
        }
    }

    pub fn task_id(&self) -> Option<&str> {
        match self.response.payload.as_ref()? {
            Payload::Task(task) => Some(&task.id),
            Payload::StatusUpdate(update) => Some(&update.task_id),
            Payload::ArtifactUpdate(update) => Some(&update.task_id),
            Payload::Message(_) => None,
        }
    }

    /// Nothing comes after it: a final state, or an answer without a task.
    pub fn is_last(&self) -> bool {
        let is_message = matches!(self.response.payload, Some(Payload::Message(_)));
        is_message || self.state().is_some_and(is_final)
    }
}

/// The events of one connection. It ends with the connection; [`crate::Follow`] does not.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    parser: Parser,
    ended: bool,
}

impl Events {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, parser: Parser::new(ANSWER_BYTES_MAX), ended: false }
    }

    /// The next event; none after the stream was ended by the server. A failure is the last item.
    /// May be dropped and called again without losing anything.
    pub async fn next(&mut self) -> Option<Result<Event, Failure>> {
        while !self.ended {
            if let Some(frame) = self.parser.next() {
                let event = read(&frame);
                self.ended = event.is_err();
                return Some(event);
            }
            match timeout(IDLE_TIMEOUT, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let data = frame.data_ref().map_or(&[][..], |data| data);
                    if self.parser.feed(data).is_err() {
                        self.ended = true;
                        return Some(Err(error::nonsense("an event of the stream is too large")));
                    }
                }
                Ok(Some(Err(error))) => {
                    self.ended = true;
                    return Some(Err(error::transport("the stream broke off", &error)));
                }
                Ok(None) => self.ended = true,
                Err(_) => {
                    self.ended = true;
                    let message = format!("the stream was silent for {} s", IDLE_TIMEOUT.as_secs());
                    return Some(Err(error::lost(message)));
                }
            }
        }
        None
    }
}

fn read(frame: &Frame) -> Result<Event, Failure> {
    let seq = frame.id.as_ref().and_then(|id| id.parse().ok()).unwrap_or(0);
    Ok(Event { seq, response: read_envelope(&frame.data)? })
}
