//! The reply of a scripted peer and the fault that is injected into it. Both are independent, so
//! that every reply can be combined with every fault.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

/// One reply of a [`super::Peer`], with the fault that is injected into it.
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
    /// The id in the envelope, in place of that of the request.
    id: Option<Value>,
    pub(super) fault: Fault,
}

#[derive(Clone, Debug)]
enum Body {
    /// The result or the error of a JSON-RPC call, in its envelope.
    Enveloped(&'static str, Value),
    /// A body without an envelope.
    Bytes(Vec<u8>),
    /// Results of a JSON-RPC call, one per event.
    Events { events: Vec<Value>, numbered: bool },
}

/// The injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Nothing,
    /// The connection closes without a byte.
    DropBeforeHead,
    /// The connection closes after the headers.
    DropAfterHead,
    /// The connection closes after this many bytes of the body.
    Cut(usize),
    /// The connection closes in the middle of the last event.
    CutInLastEvent,
    /// The connection closes after the last event, without the end of the stream.
    NoEnd,
    /// No byte is sent, and the connection stays open.
    Silence,
    /// No byte is sent after the headers, and the connection stays open.
    SilenceAfterHead,
    /// The body is sent one byte at a time, with this pause between bytes.
    Drip(Duration),
}

/// The bytes of a reply, up to the point of the fault.
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

    /// The error of a JSON-RPC call, of any shape.
    pub fn error(error: Value) -> Self {
        Self::of(200, "application/json", Body::Enveloped("error", error))
    }

    /// JSON without an envelope, as in REST.
    pub fn json(status: u16, body: Value) -> Self {
        Self::of(status, "application/json", Body::Bytes(body.to_string().into()))
    }

    /// Any bytes of any kind.
    pub fn bytes(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::of(status, kind, Body::Bytes(body.into()))
    }

    /// The HTML error page of a proxy without an upstream.
    pub fn html(status: u16) -> Self {
        let page = format!("<html><body><h1>{status}</h1><p>nginx</p></body></html>");
        Self::bytes(status, "text/html", page)
    }

    /// Results of a JSON-RPC call, one per event. Equal events are sent as often as they are given.
    pub fn stream(events: impl IntoIterator<Item = Value>) -> Self {
        let events = events.into_iter().collect();
        Self::of(200, "text/event-stream", Body::Events { events, numbered: false })
    }

    /// Numbers the events from 1.
    pub fn numbered(mut self) -> Self {
        if let Body::Events { numbered, .. } = &mut self.body {
            *numbered = true;
        }
        self
    }

    pub fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Adds a header, or replaces its value.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts this id into the envelope, in place of that of the request.
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

    /// The connection closes after this many bytes of the body.
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

    /// The connection stays open, and no byte is sent.
    pub fn silent(self) -> Self {
        Self { fault: Fault::Silence, ..self }
    }

    /// The connection stays open, and no byte is sent after the headers.
    pub fn silent_after_headers(self) -> Self {
        Self { fault: Fault::SilenceAfterHead, ..self }
    }

    /// The body is sent one byte at a time, each after this pause.
    pub fn drip(self, pause: Duration) -> Self {
        Self { fault: Fault::Drip(pause), ..self }
    }

    /// The bytes of the reply to a request with this id, up to the point of the fault.
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
            // The length of the whole body, also if a fault cuts it.
            head.push_str(&format!("content-length: {whole}\r\n\r\n"))
        }
        Bytes { head: head.into(), body }
    }
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}
