//! Scripted server: the n-th connection receives the n-th script as raw bytes.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// A received request and its time.
pub(crate) struct Seen {
    pub(crate) request: String,
    pub(crate) at: Instant,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Sends one script per connection and closes it; a connection after the last script is closed
    /// without a response.
    pub(crate) async fn start(scripts: impl IntoIterator<Item = String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback works");
        let url = format!("http://{}", listener.local_addr().expect("loopback works"));
        let server = Self { url, seen: Arc::default() };
        let seen = Arc::clone(&server.seen);
        let mut scripts = scripts.into_iter().collect::<Vec<_>>().into_iter();
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.expect("loopback works");
                let request = read(&mut socket).await;
                let at = Instant::now();
                seen.lock().expect("no test panics here").push(Seen { request, at });
                let script = scripts.next().unwrap_or_default();
                let _ = socket.write_all(script.as_bytes()).await;
            }
        });
        server
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        let seen = self.seen.lock().expect("no test panics here");
        seen.iter().map(|seen| seen.request.clone()).collect()
    }

    /// The first line of each request, without the HTTP version.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |request: String| request.lines().next().unwrap_or_default().to_owned();
        let lines = self.seen().into_iter().map(line);
        lines.map(|line| line.trim_end_matches(" HTTP/1.1").to_owned()).collect()
    }

    /// The time between each request and the next.
    pub(crate) fn gaps(&self) -> Vec<Duration> {
        let seen = self.seen.lock().expect("no test panics here");
        seen.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }
}

async fn read(socket: &mut tokio::net::TcpStream) -> String {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let header = |line: &str| line.strip_prefix("content-length: ").map(str::to_owned);
            let length = head.lines().find_map(header).and_then(|n| n.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return text;
        }
    }
}

pub(crate) fn plain(status: &str, body: &str) -> String {
    answer(status, "", body)
}

/// A response with further headers, each ended by a line break.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    // `connection: close` makes the client open another connection, for the next script.
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// The response to a JSON-RPC call.
pub(crate) fn result(result: &str) -> String {
    plain("200 OK", &format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#))
}

/// A chunked stream, which breaks off unless `whole`. Zero stands for an event without a number.
pub(crate) fn stream(events: &[(u64, &str)], whole: bool) -> String {
    let mut out =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\
         connection: close\r\n\r\n"
            .to_owned();
    for (id, result) in events {
        let result = result.replace('\n', " ");
        let id = if *id > 0 { format!("id: {id}\n") } else { String::new() };
        let data =
            format!("{id}data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{result}}}\n\n:\n\n");
        out.push_str(&format!("{:x}\r\n{data}\r\n", data.len()));
    }
    if whole {
        out.push_str("0\r\n\r\n");
    }
    out
}
