//! A minimal receiver of push notifications: it records each request and answers 200.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// The head of a request, in lower case, and its body.
pub type Received = Arc<Mutex<Vec<(String, serde_json::Value)>>>;

/// Listens on a free port until the process ends.
pub async fn listen() -> std::io::Result<(String, Received)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/hook", listener.local_addr()?);
    let received = Received::default();
    let kept = received.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, kept.clone()));
        }
    });
    Ok((url, received))
}

async fn serve(stream: TcpStream, received: Received) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|l| l.strip_prefix("content-length:"));
        let length = length.and_then(|l| l.trim().parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        received.lock().expect("no thread panics while it holds the lock").push((head, body));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}
