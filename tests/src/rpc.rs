//! JSON-RPC client for tests: one connection per call, no retry, answers as plain JSON, streams
//! with the number of each event.

use std::{io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpSocket, time};
use tokio_util::task::AbortOnDropHandle;

/// Longer than every intended wait of a test.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Rpc {
    address: SocketAddr,
    path: String,
    headers: Vec<(&'static str, String)>,
    timeout: Duration,
    receive_bytes: Option<u32>,
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("a body is JSON, not {:?}: {e}", self.body))
    }
}

/// The result of a call, or its error object.
pub type Outcome = Result<Value, Value>;

impl Rpc {
    pub fn at(address: SocketAddr) -> Self {
        Self::bare(address).header("a2a-version", "1.0")
    }

    /// A client that sends no A2A version.
    pub fn bare(address: SocketAddr) -> Self {
        let path = "/".to_owned();
        let headers = Vec::new();
        Self { address, path, headers, timeout: TIMEOUT, receive_bytes: None }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn agent(&self, name: &str) -> Self {
        Self { path: format!("/agents/{name}"), ..self.clone() }
    }

    pub fn path(&self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    pub fn header(&self, name: &'static str, value: impl ToString) -> Self {
        let mut with = self.clone();
        with.headers.push((name, value.to_string()));
        with
    }

    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// With a small receive buffer, so that an unread answer causes backpressure at the server.
    pub fn with_small_buffer(&self) -> Self {
        Self { receive_bytes: Some(4096), ..self.clone() }
    }

    // Calls that may fail on the connection.

    pub async fn request(&self, request: Request<Full<Bytes>>) -> io::Result<Reply> {
        let whole = async {
            let (response, _connection) = self.open(request).await?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            Ok(Reply { status: head.status, headers: head.headers, body })
        };
        time::timeout(self.timeout, whole).await?
    }

    pub async fn try_post(&self, body: impl Into<Bytes>) -> io::Result<Reply> {
        self.request(self.build(body.into())).await
    }

    pub async fn try_call(&self, method: &str, params: Value) -> io::Result<Outcome> {
        Ok(outcome(self.try_post(envelope(method, params)).await?.json()))
    }

    pub async fn try_stream(
        &self,
        method: &str,
        params: Value,
    ) -> io::Result<Result<Frames, Value>> {
        let opened = self.open(self.build(envelope(method, params).into()));
        let (response, connection) = time::timeout(self.timeout, opened).await??;
        if is_stream(&response) {
            return Ok(Ok(Frames::of(response, connection, self.timeout, outcome)));
        }
        let body = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        let answer = serde_json::from_slice(&body).map_err(io::Error::other)?;
        Ok(Err(outcome(answer).expect_err("an answer that is not a stream is an error")))
    }

    /// Opens a stream whose events have no JSON-RPC envelope; an answer that is not a stream is the
    /// error.
    pub async fn bare_stream(
        &self,
        request: Request<Full<Bytes>>,
    ) -> io::Result<Result<Frames, Reply>> {
        let (response, connection) = time::timeout(self.timeout, self.open(request)).await??;
        if is_stream(&response) {
            return Ok(Ok(Frames::of(response, connection, self.timeout, bare)));
        }
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        Ok(Err(Reply { status: head.status, headers: head.headers, body }))
    }

    // Calls that must reach the gateway.

    pub async fn post(&self, body: impl Into<Bytes>) -> Reply {
        self.try_post(body).await.expect("the gateway answers")
    }

    pub async fn get(&self) -> Reply {
        let mut request = Request::get(&self.path).header("host", self.address.to_string());
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::default()).expect("a request can be built");
        self.request(request).await.expect("the gateway answers")
    }

    pub async fn call(&self, method: &str, params: Value) -> Outcome {
        self.try_call(method, params).await.expect("the gateway answers")
    }

    pub async fn stream(&self, method: &str, params: Value) -> Result<Frames, Value> {
        self.try_stream(method, params).await.expect("the gateway answers")
    }

    /// Sends a text, waits, and returns the task.
    pub async fn send(&self, text: &str) -> Value {
        let sent = self.call("SendMessage", message(text)).await;
        sent.unwrap_or_else(|e| panic!("'{text}' is refused: {e}"))["task"].clone()
    }

    /// Sends a text and returns its task at once.
    pub async fn send_immediately(&self, text: &str) -> Value {
        let mut params = message(text);
        params["configuration"] = json!({"returnImmediately": true});
        let sent = self.call("SendMessage", params).await;
        sent.unwrap_or_else(|e| panic!("'{text}' is refused: {e}"))["task"].clone()
    }

    pub async fn task(&self, id: &str) -> Value {
        let found = self.call("GetTask", json!({"id": id})).await;
        found.unwrap_or_else(|e| panic!("task {id} is not found: {e}"))
    }

    /// Calls a method of the operator API.
    pub async fn mesh(&self, method: &str, request: Value) -> Value {
        let reply = self.path(&format!("/mesh/{method}")).post(request.to_string()).await;
        assert_eq!(reply.status, 200, "{method}: {:?}", reply.body);
        reply.json()
    }

    pub async fn inspect(&self, id: &str) -> Value {
        self.mesh("Inspect", json!({"taskId": id})).await
    }

    /// Opens a watch of the operator API.
    pub async fn watch(&self, request: Value) -> Result<Frames, Reply> {
        let watch = self.path("/mesh/Watch");
        let opened = watch.bare_stream(watch.build(request.to_string().into())).await;
        opened.expect("the gateway answers")
    }

    // HTTP.

    fn build(&self, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::post(&self.path)
            .header("host", self.address.to_string())
            .header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(Full::new(body)).expect("a request can be built")
    }

    async fn open(
        &self,
        request: Request<Full<Bytes>>,
    ) -> io::Result<(Response<Incoming>, AbortOnDropHandle<()>)> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = self.receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // The reader of the answer sees an error of the connection.
            let _ = connection.await;
        }));
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        Ok((response, connection))
    }
}

pub fn envelope(method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()
}

fn outcome(mut answer: Value) -> Outcome {
    assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
    match answer.get_mut("error") {
        Some(error) => Err(error.take()),
        None => Ok(answer["result"].take()),
    }
}

fn bare(mut event: Value) -> Outcome {
    match event.get_mut("error") {
        Some(error) => Err(error.take()),
        None => Ok(event),
    }
}

fn is_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get("content-type");
    kind.is_some_and(|kind| kind.as_bytes() == b"text/event-stream")
}

/// The parameters of a send: one message with one text.
pub fn message(text: &str) -> Value {
    let id = format!("{:032x}", rand::random::<u128>());
    json!({"message": {"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]}})
}

/// [`message`] as an answer to a waiting task.
pub fn answer(task_id: &str, text: &str) -> Value {
    let mut params = message(text);
    params["message"]["taskId"] = task_id.into();
    params
}

/// One event of a stream: its number and its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub id: Option<u64>,
    pub body: Value,
}

/// The end of a stream before its final event.
#[derive(Clone, Debug)]
pub enum Broken {
    /// The connection ended without an error event.
    Cut(String),
    /// The last event is an error.
    Error(Value),
}

/// Reads the events of one connection, in order. The drop closes the connection.
pub struct Frames {
    body: Incoming,
    buffer: Vec<u8>,
    /// Length of the buffer prefix that holds no end of an event.
    searched: usize,
    timeout: Duration,
    /// Removes the envelope of an event.
    open: fn(Value) -> Outcome,
    pub headers: HeaderMap,
    _connection: AbortOnDropHandle<()>,
}

impl Frames {
    fn of(
        response: Response<Incoming>,
        connection: AbortOnDropHandle<()>,
        timeout: Duration,
        open: fn(Value) -> Outcome,
    ) -> Self {
        let (head, body) = response.into_parts();
        let buffer = Vec::new();
        let searched = 0;
        let headers = head.headers;
        Self { body, buffer, searched, timeout, open, headers, _connection: connection }
    }

    /// The next event; `None` when the server has ended the stream.
    pub async fn next(&mut self) -> Result<Option<Frame>, Broken> {
        loop {
            let rest = &self.buffer[self.searched..];
            if let Some(end) = rest.windows(2).position(|w| w == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..self.searched + end + 2).collect();
                self.searched = 0;
                match read(&event, self.open)? {
                    Some(frame) => return Ok(Some(frame)),
                    None => continue,
                }
            }
            self.searched = self.buffer.len().saturating_sub(1);
            match time::timeout(self.timeout, self.body.frame()).await {
                Err(_) => return Err(Broken::Cut("silence".to_owned())),
                Ok(Some(Err(error))) => return Err(Broken::Cut(error.to_string())),
                Ok(None) if self.buffer.is_empty() => return Ok(None),
                Ok(None) => return Err(Broken::Cut("in the middle of an event".to_owned())),
                Ok(Some(Ok(frame))) => {
                    self.buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |d| d));
                }
            }
        }
    }

    /// All events to the end.
    pub async fn all(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await.expect("the stream ends without an error") {
            frames.push(frame);
        }
        frames
    }
}

/// Parses one event; `None` for a comment, which only keeps the connection alive.
fn read(event: &[u8], open: fn(Value) -> Outcome) -> Result<Option<Frame>, Broken> {
    let text = std::str::from_utf8(event).expect("a stream is UTF-8");
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    let Some(data) = field("data:") else { return Ok(None) };
    let id = field("id:").map(|id| id.parse().expect("the id of an event is a number"));
    let answer: Value = serde_json::from_str(data).expect("an event is JSON");
    match open(answer) {
        Ok(body) => Ok(Some(Frame { id, body })),
        Err(error) => Err(Broken::Error(error)),
    }
}
