//! What a scripted peer answers, and how it breaks while doing so. What is said and what goes wrong
//! are apart, so that each can be had with each.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

/// One answer of a [`super::Peer`]: what it says, and how that goes wrong.
///
/// ```
/// use faultline::testing::Reply;
/// use serde_json::json;
///
/// let busy = Reply::json(429, json!({})).header("retry-after", "7");
/// let done = json!({"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}}});
/// let half_an_event = Reply::stream([done.clone(), done]).cut_in_last_event();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
    /// Instead of the request's own.
    id: Option<Value>,
    pub(super) fault: Fault,
}

#[derive(Clone, Debug)]
enum Body {
    /// The result or the error of a JSON-RPC call, in its envelope.
    Enveloped(&'static str, Value),
    /// As they are.
    Bytes(Vec<u8>),
    /// Results of a JSON-RPC call, one an event.
    Events { events: Vec<Value>, numbered: bool },
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Nothing,
    /// The connection closes without a byte.
    DropBeforeHead,
    /// The connection closes after the headers.
    DropAfterHead,
    /// The connection closes after so many bytes of the body.
    Cut(usize),
    /// The connection closes in the middle of the last event.
    CutInLastEvent,
    /// Events are all there, but their end is not: the connection closes.
    NoEnd,
    /// Not a byte, and the connection stays open.
    Silence,
    /// The headers, and then not a byte.
    SilenceAfterHead,
    /// A byte of the body at a time.
    Drip(Duration),
}

/// An answer as bytes: what is sent, up to where it breaks.
#[derive(Debug)]
pub(super) struct Bytes {
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    fn of(status: u16, kind: &str, body: Body) -> Self {
        let headers = vec![("content-type".to_owned(), kind.to_owned())];
        Self { status, headers, body, id: None, fault: Fault::Nothing }
    }

    /// The result of a JSON-RPC call.
    pub fn result(result: Value) -> Self {
        Self::of(200, "application/json", Body::Enveloped("result", result))
    }

    /// A task as the result of a send.
    pub fn task(task: Value) -> Self {
        Self::result(json!({"task": task}))
    }

    /// The error of a JSON-RPC call, of whatever shape.
    pub fn error(error: Value) -> Self {
        Self::of(200, "application/json", Body::Enveloped("error", error))
    }

    /// JSON without an envelope, as REST has it.
    pub fn json(status: u16, body: Value) -> Self {
        Self::of(status, "application/json", Body::Bytes(body.to_string().into()))
    }

    /// Any bytes of any kind.
    pub fn bytes(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::of(status, kind, Body::Bytes(body.into()))
    }

    /// What a proxy says when nobody is behind it.
    pub fn html(status: u16) -> Self {
        let page = format!("<html><body><h1>{status}</h1><p>nginx</p></body></html>");
        Self::bytes(status, "text/html", page)
    }

    /// Results of a JSON-RPC call, one an event. Twice the same is twice the same.
    pub fn stream(events: impl IntoIterator<Item = Value>) -> Self {
        let events = events.into_iter().collect();
        Self::of(200, "text/event-stream", Body::Events { events, numbered: false })
    }

    /// With numbers on its events, from 1.
    pub fn numbered(mut self) -> Self {
        if let Body::Events { numbered, .. } = &mut self.body {
            *numbered = true;
        }
        self
    }

    pub fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// One more header, or another value of one.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this id in the envelope instead of the request's.
    pub fn id(self, id: Value) -> Self {
        Self { id: Some(id), ..self }
    }

    /// The connection closes without a byte.
    pub fn drop_before_headers(self) -> Self {
        Self { fault: Fault::DropBeforeHead, ..self }
    }

    /// The connection closes after the headers.
    pub fn drop_after_headers(self) -> Self {
        Self { fault: Fault::DropAfterHead, ..self }
    }

    /// The connection closes after so many bytes of the body.
    pub fn cut_after(self, bytes: usize) -> Self {
        Self { fault: Fault::Cut(bytes), ..self }
    }

    /// The connection closes in the middle of the last event of a stream.
    pub fn cut_in_last_event(self) -> Self {
        Self { fault: Fault::CutInLastEvent, ..self }
    }

    /// The connection closes after the last event of a stream, without its end.
    pub fn without_end(self) -> Self {
        Self { fault: Fault::NoEnd, ..self }
    }

    /// The connection stays open and nothing comes.
    pub fn silent(self) -> Self {
        Self { fault: Fault::Silence, ..self }
    }

    /// The same after the headers.
    pub fn silent_after_headers(self) -> Self {
        Self { fault: Fault::SilenceAfterHead, ..self }
    }

    /// The body comes a byte at a time, each after this pause.
    pub fn drip(self, pause: Duration) -> Self {
        Self { fault: Fault::Drip(pause), ..self }
    }

    /// All of it, for a request of this id, up to where it breaks.
    pub(super) fn render(&self, id: &Value) -> Bytes {
        let id = self.id.as_ref().unwrap_or(id);
        let envelope =
            |key: &str, value: &Value| json!({"jsonrpc": "2.0", "id": id, key: value}).to_string();
        let (mut body, chunked) = match &self.body {
            Body::Enveloped(key, value) => (envelope(key, value).into_bytes(), false),
            Body::Bytes(bytes) => (bytes.clone(), false),
            Body::Events { events, numbered } => {
                let number =
                    |n: usize| if *numbered { format!("id: {n}\n") } else { String::new() };
                let events = events.iter().enumerate();
                let events = events.map(|(n, event)| {
                    let data = envelope("result", event);
                    chunk(&format!("{}data: {data}\n\n", number(n + 1)))
                });
                (events.collect::<String>().into_bytes(), true)
            }
        };
        let whole = body.len();
        match self.fault {
            Fault::Cut(bytes) => body.truncate(bytes),
            Fault::CutInLastEvent => body.truncate(whole.saturating_sub(20)),
            Fault::NoEnd => {}
            _ if chunked => body.extend_from_slice(b"0\r\n\r\n"),
            _ => {}
        }
        let reason = StatusCode::from_u16(self.status).ok();
        let reason = reason.and_then(|s| s.canonical_reason()).unwrap_or("Unknown");
        let mut head = format!("HTTP/1.1 {} {reason}\r\nconnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if chunked {
            head.push_str("transfer-encoding: chunked\r\n\r\n")
        } else {
            // What was promised, not what came.
            head.push_str(&format!("content-length: {whole}\r\n\r\n"))
        }
        Bytes { head: head.into(), body }
    }
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}
