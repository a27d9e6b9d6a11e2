//! An HTTP client that sends exactly the given requests, and parses answers and events.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinHandle};

use crate::soon;

/// One connection, closed on drop.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// An answer in JSON.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> i64 {
        self.body["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    pub(crate) fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    /// The details of an error of JSON-RPC or REST.
    pub(crate) fn details(&self) -> &Value {
        let error = &self.body["error"];
        if error["data"].is_array() { &error["data"] } else { &error["details"] }
    }

    pub(crate) fn reason(&self) -> &str {
        detail(self.details(), "google.rpc.ErrorInfo")["reason"].as_str().unwrap()
    }

    /// The fields of the BadRequest.
    pub(crate) fn fields(&self) -> Vec<&str> {
        let violations = detail(self.details(), "google.rpc.BadRequest");
        let violations = violations["fieldViolations"].as_array();
        violations.unwrap().iter().map(|v| v["field"].as_str().unwrap()).collect()
    }
}

/// The detail of one type.
pub(crate) fn detail<'a>(details: &'a Value, name: &str) -> &'a Value {
    let url = format!("type.googleapis.com/{name}");
    let mut found = details.as_array().unwrap().iter().filter(|d| d["@type"] == url.as_str());
    found.next().unwrap_or_else(|| panic!("no {name} in {details}"))
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(soon("connect", TcpStream::connect(address)).await.unwrap()).await
    }

    pub(crate) async fn over(stream: TcpStream) -> Self {
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { sender, connection }
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<Incoming> {
        let mut request = Request::builder().method(method).uri(path);
        // Default headers, unless the test sets them.
        let defaults =
            [("host", "localhost"), ("a2a-version", "1.0"), ("content-type", "application/json")];
        for (name, value) in defaults {
            if !headers.iter().any(|(known, _)| *known == name) {
                request = request.header(name, value);
            }
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        soon("ready", self.sender.ready()).await.unwrap();
        soon("an answer", self.sender.send_request(request)).await.unwrap()
    }

    /// Sends a request and reads the answer, which must be JSON.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let response = self.send(method, path, headers, body).await;
        let (head, body) = response.into_parts();
        let kind = &head.headers["content-type"];
        assert!(kind == "application/json" || kind == "application/a2a+json", "{kind:?}");
        let bytes = soon("the body", body.collect()).await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap();
        Answer { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.ask("POST", path, &[], body).await
    }

    pub(crate) async fn rpc(&mut self, method: &str, params: Value) -> Answer {
        self.post("/", request(method, params)).await
    }

    /// Opens a stream and reads its events one by one.
    pub(crate) async fn events(
        &mut self,
        headers: &[(&str, &str)],
        method: &str,
        params: Value,
    ) -> Events {
        Events::of(self.send("POST", "/", headers, request(method, params)).await)
    }

    pub(crate) async fn until_healthy(&mut self) {
        let healthy = async {
            while self.ask("GET", "/healthz", &[], "").await.status != StatusCode::OK {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        soon("a healthy gateway", healthy).await;
    }
}

pub(crate) fn request(method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

/// A message whose text is a command to the fake coordinator.
pub(crate) fn message(text: &str) -> Value {
    let part = json!({"text": text});
    json!({"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [part]}})
}

/// The events of a stream, parsed one by one.
pub(crate) struct Events {
    body: Incoming,
    unread: String,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    Data {
        id: Option<u64>,
        data: Value,
    },
    /// An event of the type `error`.
    Failure {
        data: Value,
    },
    Comment,
}

impl Events {
    pub(crate) fn of(response: http::Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        assert_eq!(head.status, StatusCode::OK);
        assert_eq!(head.headers["content-type"], "text/event-stream");
        assert_eq!(head.headers["cache-control"], "no-store");
        assert_eq!(head.headers["x-accel-buffering"], "no");
        Events { body, unread: String::new() }
    }

    /// The next event or comment; `None` at a regular end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        while !self.unread.contains("\n\n") {
            let frame = match self.body.frame().await {
                Some(frame) => frame.expect("the stream ended irregularly"),
                None => {
                    assert_eq!(self.unread, "", "half an event at the end");
                    return None;
                }
            };
            self.unread.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
        let (event, rest) = self.unread.split_once("\n\n").unwrap();
        let event = event.to_owned();
        let rest = rest.to_owned();
        self.unread = rest;
        if event.starts_with(':') {
            return Some(Event::Comment);
        }
        let mut id = None;
        let mut data = Value::Null;
        let mut is_failure = false;
        for line in event.lines() {
            match line.split_once(": ").unwrap() {
                ("id", number) => id = Some(number.parse().unwrap()),
                ("data", text) => data = serde_json::from_str(text).unwrap(),
                ("event", "error") => is_failure = true,
                other => panic!("unknown field {other:?}"),
            }
        }
        Some(if is_failure { Event::Failure { data } } else { Event::Data { id, data } })
    }

    pub(crate) async fn next_data(&mut self) -> (Option<u64>, Value) {
        loop {
            match soon("an event", self.next()).await {
                Some(Event::Data { id, data }) => return (id, data),
                Some(Event::Comment) => {}
                other => panic!("no event: {other:?}"),
            }
        }
    }

    /// The ids of all events up to the end.
    pub(crate) async fn numbers(&mut self) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(event) = soon("the end", self.next()).await {
            match event {
                Event::Data { id, .. } => numbers.push(id.unwrap()),
                Event::Comment => {}
                Event::Failure { data } => panic!("{data}"),
            }
        }
        numbers
    }
}
