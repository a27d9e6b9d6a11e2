//! Timeouts of a call: each layer provoked alone by a misbehaving server on a socket.

mod script;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use faultline_client::{Binding, Builder, Client, Error, Reconnect, Retry, Timeouts, text};
use faultline_proto::{Failure, reason, v1::Plane};
use script::{Server, result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};

const TASK: &str = r#"{"id":"t-1","status":{"state":"TASK_STATE_COMPLETED"}}"#;
/// Much shorter than any layer that is not under test.
const SHORT: Duration = Duration::from_millis(300);

fn builder(address: SocketAddr, timeouts: Timeouts) -> Builder {
    Client::builder(&format!("http://{address}")).retry(Retry::never()).timeouts(timeouts)
}

/// Asserts that the layer under test expired after about its time, and returns that time.
fn assert_ran_out<T: std::fmt::Debug>(
    result: Result<T, Error>,
    row: &'static reason::Reason,
    began: Instant,
) {
    let took = began.elapsed();
    let failure = Failure::from(result.expect_err("it is given up"));
    assert_eq!((failure.row(), failure.plane()), (row, Plane::Transport), "{failure}");
    assert!(failure.public_message.contains("300ms"), "{failure}");
    assert!(took >= SHORT && took < 10 * SHORT, "{}: {took:?}", row.name);
}

/// Starts a server that runs `serve` for each connection.
async fn server<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback works");
    let address = listener.local_addr().expect("loopback works");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    address
}

/// A listener with a full queue: further connections are neither accepted nor refused.
async fn black_hole() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("loopback works");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any).expect("loopback works");
    let listener = socket.listen(1).expect("loopback works");
    let address = listener.local_addr().expect("loopback works");
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = timeout(SHORT, TcpStream::connect(address)).await {
        queued.push(stream);
    }
    (address, listener, queued)
}

#[tokio::test]
async fn connect_timeout_ends_a_connection_that_is_not_accepted() {
    let (address, _listener, _queued) = black_hole().await;
    for binding in Binding::ALL {
        let timeouts = Timeouts { connect: Some(SHORT), ..Timeouts::none() };
        let client = builder(address, timeouts).binding(binding).direct().unwrap();
        let began = Instant::now();
        assert_ran_out(client.send("hi").await, &reason::CONNECT_TIMEOUT, began);
    }
}

#[tokio::test]
async fn write_timeout_ends_a_request_that_is_not_read() {
    // Keeps the connection and reads no byte.
    let address = server(|socket| async move {
        sleep(Duration::from_secs(60)).await;
        drop(socket);
    })
    .await;
    let timeouts = Timeouts { write: Some(SHORT), ..Timeouts::none() };
    let client = builder(address, timeouts).direct().unwrap();
    let began = Instant::now();
    // More than the operating system buffers in between.
    let large = text("x".repeat(32 * 1024 * 1024));
    let given_up = timeout(Duration::from_secs(20), client.send(large)).await.unwrap();
    assert_ran_out(given_up, &reason::WRITE_TIMEOUT, began);
}

#[tokio::test]
async fn read_timeout_ends_a_call_without_a_response() {
    let (closed, mut saw_it_close) = tokio::sync::mpsc::channel(8);
    let address = server(move |mut socket| {
        let closed = closed.clone();
        async move {
            let mut taken = vec![0; 1024];
            while socket.read(&mut taken).await.is_ok_and(|n| n > 0) {}
            let _ = closed.send(()).await;
        }
    })
    .await;
    for binding in [Binding::JsonRpc, Binding::HttpJson] {
        let timeouts = Timeouts { read: Some(SHORT), ..Timeouts::none() };
        let client = builder(address, timeouts).binding(binding).direct().unwrap();
        let began = Instant::now();
        assert_ran_out(client.task("t").await, &reason::READ_TIMEOUT, began);
        saw_it_close.recv().await.unwrap();
        let began = Instant::now();
        assert_ran_out(client.send_streaming("hi").await, &reason::READ_TIMEOUT, began);
        saw_it_close.recv().await.unwrap();
    }
    // On gRPC the connection is shared by other calls and stays open.
    let timeouts = Timeouts { read: Some(SHORT), ..Timeouts::none() };
    let client = builder(address, timeouts).binding(Binding::Grpc).direct().unwrap();
    let began = Instant::now();
    assert_ran_out(client.task("t").await, &reason::READ_TIMEOUT, began);
    let began = Instant::now();
    assert_ran_out(client.send_streaming("hi").await, &reason::READ_TIMEOUT, began);
}

/// Sends a byte every 50 ms; on a stream, a comment.
async fn drip(mut socket: TcpStream) {
    let mut request = vec![0; 64 * 1024];
    let read = socket.read(&mut request).await.unwrap_or(0);
    let streams = String::from_utf8_lossy(&request[..read]).contains("SendStreamingMessage");
    let head = if streams {
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    } else {
        "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"
    };
    let drop: &[u8] = if streams { b":\n\n" } else { b" " };
    let mut sent = socket.write_all(head.as_bytes()).await;
    while sent.is_ok() {
        sleep(Duration::from_millis(50)).await;
        sent = socket.write_all(drop).await;
    }
}

#[tokio::test]
async fn total_timeout_ends_a_slow_response() {
    let address = server(drip).await;
    let timeouts = Timeouts { read: Some(SHORT), total: Some(SHORT), ..Timeouts::none() };
    let client = builder(address, timeouts).direct().unwrap();
    let began = Instant::now();
    assert_ran_out(client.task("t").await, &reason::CALL_TIMEOUT, began);
    // Comments are bytes, and a stream has no total timeout.
    let mut stream = client.send_streaming("hi").await.unwrap();
    assert!(timeout(4 * SHORT, stream.next()).await.is_err(), "the stream stays open");
}

#[tokio::test]
async fn read_timeout_ends_a_silent_stream() {
    let address = server(|mut socket| async move {
        let mut taken = vec![0; 64 * 1024];
        let _ = socket.read(&mut taken).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n:\n\n";
        let _ = socket.write_all(head.as_bytes()).await;
        sleep(Duration::from_secs(60)).await;
    })
    .await;
    let timeouts = Timeouts { read: Some(SHORT), ..Timeouts::none() };
    let client = builder(address, timeouts).direct().unwrap();
    let mut stream = client.send_streaming("hi").await.unwrap();
    let began = Instant::now();
    let silent = stream.next().await.unwrap().map_err(Error::from);
    assert_ran_out(silent, &reason::READ_TIMEOUT, began);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn pool_timeout_ends_a_call_without_a_permit_before_it_is_sent() {
    let server = Server::start([result(TASK)]).await;
    let address = server.url.trim_start_matches("http://").parse().unwrap();
    let silent = self::server(drip).await;
    let timeouts = Timeouts { pool: Some(SHORT), ..Timeouts::none() };
    let client = builder(silent, timeouts).max_calls(1).direct().unwrap();
    let stream = client.send_streaming("hi").await.unwrap();
    let began = Instant::now();
    assert_ran_out(client.clone().task("t").await, &reason::POOL_TIMEOUT, began);
    // Dropping the stream returns its permit.
    drop(stream);
    assert!(timeout(SHORT, client.send_streaming("hi")).await.unwrap().is_ok());
    // Other clients have permits of their own.
    let other = builder(address, timeouts).max_calls(1).direct().unwrap();
    other.task("t-1").await.unwrap();
    let nothing = builder(address, timeouts).max_calls(0).direct();
    let refused = Failure::from(nothing.unwrap_err());
    assert!(refused.public_message.contains("max_calls"), "{refused}");
}

#[tokio::test]
async fn task_may_outlive_every_call_timeout() {
    let working =
        r#"{"task":{"id":"t-1","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}"#;
    let address = server(move |mut socket| async move {
        let mut request = vec![0; 64 * 1024];
        let read = socket.read(&mut request).await.unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..read]).into_owned();
        let answer = if request.contains("\"GetTask\"") {
            result(TASK)
        } else {
            // Every stream stops sending after its first event.
            let event = if request.contains("SendStreamingMessage") {
                format!("data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{working}}}")
            } else {
                ":".to_owned()
            };
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{event}\n\n")
        };
        let _ = socket.write_all(answer.as_bytes()).await;
        sleep(Duration::from_secs(60)).await;
    })
    .await;
    let timeouts = Timeouts { read: Some(SHORT), total: Some(SHORT), ..Timeouts::none() };
    let backoff = Duration::from_millis(10);
    let reconnect = Reconnect { backoff, backoff_max: backoff, ..Reconnect::default() };
    let client = builder(address, timeouts).reconnect(reconnect).direct().unwrap();
    let answer = timeout(Duration::from_secs(20), client.run("hi")).await.unwrap().unwrap();
    assert_eq!(answer.task().map(|task| task.id.as_str()), Some("t-1"));
}

#[test]
fn all_layers_have_default_timeouts() {
    let Timeouts { connect, write, pool, read, total } = Timeouts::default();
    let seconds = [connect, write, pool, read, total].map(|layer| layer.unwrap().as_secs());
    assert_eq!(seconds, [5, 5, 10, 60, 90]);
}
