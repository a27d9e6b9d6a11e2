//! Stream of a task's events over one connection.

use std::time::Duration;

use faultline_chassis::telemetry::ClientSpan;
use faultline_proto::{
    Failure,
    a2a::{StreamResponse, TaskState, stream_response::Payload},
};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Streaming;

use crate::{
    protocol::{
        dialect::Dialect,
        sse::{Frame, Parser},
        task_outcome::{is_final, is_waiting, text_of_parts},
        wire_error,
    },
    transport::{
        http::{ANSWER_BYTES_MAX, BodyFormat, read_frame},
        timeouts::Layer,
    },
};

/// One event and its number in its task, after which a later subscription can start. Zero if the
/// server sends no numbers, as for a bare message.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The number of the event in its task, or zero.
    pub seq: u64,
    /// The event.
    pub response: StreamResponse,
}

impl Event {
    /// The state of the task after the event, if the event contains one.
    pub fn state(&self) -> Option<TaskState> {
        match self.response.payload.as_ref()? {
            Payload::Task(task) => task.status.as_ref().map(|s| s.state()),
            Payload::StatusUpdate(update) => update.status.as_ref().map(|s| s.state()),
            Payload::ArtifactUpdate(_) | Payload::Message(_) => None,
        }
    }

    /// The id of the task; a bare message has none.
    pub fn task_id(&self) -> Option<&str> {
        match self.response.payload.as_ref()? {
            Payload::Task(task) => Some(&task.id),
            Payload::StatusUpdate(update) => Some(&update.task_id),
            Payload::ArtifactUpdate(update) => Some(&update.task_id),
            Payload::Message(_) => None,
        }
    }

    /// The text of the event: of its artifacts or of a bare message.
    pub fn text(&self) -> String {
        let text = |parts| text_of_parts(parts).concat();
        match &self.response.payload {
            Some(Payload::Task(task)) => task.artifacts.iter().map(|a| text(&a.parts)).collect(),
            Some(Payload::ArtifactUpdate(update)) => {
                update.artifact.as_ref().map(|a| text(&a.parts)).unwrap_or_default()
            }
            Some(Payload::Message(message)) => text(&message.parts),
            Some(Payload::StatusUpdate(_)) | None => String::new(),
        }
    }

    /// Whether the event is the last one: a final state, or a bare message.
    pub fn is_last(&self) -> bool {
        let is_message = matches!(self.response.payload, Some(Payload::Message(_)));
        is_message || self.state().is_some_and(is_final)
    }
}

/// The events of one connection. The stream ends with the connection; [`crate::Follow`] reconnects.
#[derive(Debug)]
pub struct Events {
    source: Source,
    /// Permit of the call, held while the stream is open.
    permit: Option<OwnedSemaphorePermit>,
    /// Span of the call, open while the stream is open.
    calling: Option<ClientSpan>,
}

#[derive(Debug)]
enum Source {
    Sse(Box<Sse>),
    Grpc(Box<Streaming<StreamResponse>>),
    Ended,
}

#[derive(Debug)]
struct Sse {
    body: Incoming,
    parser: Parser,
    form: BodyFormat,
    dialect: Dialect,
    /// The longest silence of the stream.
    read: Option<Duration>,
}

impl Events {
    pub(crate) fn sse(
        body: Incoming,
        form: BodyFormat,
        dialect: Dialect,
        read: Option<Duration>,
    ) -> Self {
        let parser = Parser::new(ANSWER_BYTES_MAX);
        let sse = Sse { body, parser, form, dialect, read };
        Self { source: Source::Sse(Box::new(sse)), permit: None, calling: None }
    }

    pub(crate) fn grpc(stream: Streaming<StreamResponse>) -> Self {
        Self { source: Source::Grpc(Box::new(stream)), permit: None, calling: None }
    }

    /// Counts the stream as a call while it is open.
    pub(crate) fn holding(self, permit: OwnedSemaphorePermit, calling: ClientSpan) -> Self {
        Self { permit: Some(permit), calling: Some(calling), ..self }
    }

    /// Ends the span: a caller may drop the stream after the last event or a question.
    fn end_span(&mut self, next: Option<&Result<Event, Failure>>) {
        let Some(calling) = &mut self.calling else { return };
        let settled = |event: &Event| event.is_last() || event.state().is_some_and(is_waiting);
        match next {
            Some(Ok(event)) if !settled(event) => {}
            Some(Ok(_)) | None => calling.ended(Ok(None)),
            Some(Err(failure)) => calling.ended(Err(failure)),
        }
    }

    /// The next event; `None` after the server has ended the stream. A failure is the last item.
    /// Cancel-safe: the future may be dropped and called again without losing an event.
    pub async fn next(&mut self) -> Option<Result<Event, Failure>> {
        let next = match &mut self.source {
            Source::Ended => None,
            Source::Sse(sse) => sse.next().await,
            Source::Grpc(stream) => match stream.message().await {
                Ok(response) => response.map(|response| Ok(Event { seq: 0, response })),
                Err(status) => Some(Err(status.into())),
            },
        };
        self.end_span(next.as_ref());
        if !matches!(next, Some(Ok(_))) {
            (self.source, self.permit) = (Source::Ended, None);
        }
        next
    }
}

impl Sse {
    async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            if let Some(frame) = self.parser.next() {
                return Some(read(&frame, self.form, self.dialect));
            }
            match Layer::Read.bound(self.read, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let data = frame.data_ref().map_or(&[][..], |data| data);
                    if self.parser.feed(data).is_err() {
                        return Some(Err(wire_error::invalid_response(
                            "an event of the stream is too large",
                        )));
                    }
                }
                Ok(Some(Err(error))) => {
                    return Some(Err(wire_error::connection_lost("the stream broke off", &error)));
                }
                Ok(None) => return None,
                Err(silent) => return Some(Err(silent.failure)),
            }
        }
    }
}

fn read(frame: &Frame, form: BodyFormat, dialect: Dialect) -> Result<Event, Failure> {
    let seq = frame.id.as_ref().and_then(|id| id.parse().ok()).unwrap_or(0);
    Ok(Event { seq, response: read_frame(&frame.data, form, dialect)? })
}
