//! Server-sent events: framing, resuming, failures, backpressure and keep-alive.

use bytes::Bytes;
use faultline_chassis::limits;
use faultline_proto::v1::call;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::{
    net::{TcpSocket, TcpStream},
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Mesh,
    client::{Client, Event, Events, detail, message, request},
    fake::drops,
    soon,
};

const STREAM: &str = "SendStreamingMessage";

#[tokio::test]
async fn every_frame_is_an_event_with_its_id() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let mut events = client.events(&[], STREAM, message("count 2")).await;
    for seq in [1, 2] {
        let (id, data) = events.next_data().await;
        assert_eq!(id, Some(seq));
        assert_eq!((&data["jsonrpc"], &data["id"]), (&json!("2.0"), &json!(1)));
        assert_eq!(data["result"]["task"]["id"], format!("t-{seq}"));
    }
    assert_eq!(soon("the end", events.next()).await, None);
    let mut bare = client.events(&[], STREAM, message("message")).await;
    assert_eq!(bare.next_data().await.0, None, "an event without a number has no id");
    assert_eq!(soon("the end", bare.next()).await, None);
}

#[tokio::test]
async fn stream_resumes_after_the_event_it_names() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let task = json!({"id": "t-1"});
    let resume = [("last-event-id", "41")];
    let mut events = client.events(&resume, "SubscribeToTask", task.clone()).await;
    assert_eq!(events.numbers().await, [42, 43, 44]);
    let mut events = client.events(&[], "SubscribeToTask", task).await;
    assert_eq!(events.numbers().await, [1, 2, 3]);
    match mesh.fake.last_call().await.body {
        Some(call::Body::Subscribe(subscribe)) => assert_eq!(subscribe.after, None),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn invalid_last_event_id_is_rejected_with_advice() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for (method, params, header, advice) in [
        ("SubscribeToTask", json!({"id": "t"}), "yesterday", "id: line"),
        ("SubscribeToTask", json!({"id": "t"}), "-1", "id: line"),
        (STREAM, message("count 1"), "3", "SubscribeToTask"),
        ("SendMessage", message("x"), "3", "SubscribeToTask"),
    ] {
        let headers = [("last-event-id", header)];
        let answer = client.ask("POST", "/", &headers, request(method, params)).await;
        assert_eq!((answer.code(), answer.fields()), (-32602, vec!["Last-Event-ID"]));
        assert!(answer.message().contains(advice), "{answer:?}");
    }
}

#[tokio::test]
async fn failure_before_the_first_event_is_a_plain_answer() {
    let mesh = Mesh::start().await;
    let answer = mesh.client().await.rpc(STREAM, message("fail")).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::OK, -31008));
}

#[tokio::test]
async fn failure_in_the_middle_is_the_last_event() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let mut events = client.events(&[], STREAM, message("break")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let (id, data) = events.next_data().await;
    assert_eq!(id, None);
    assert_eq!((&data["id"], &data["error"]["code"]), (&json!(1), &json!(-31008)));
    assert_eq!(soon("the end", events.next()).await, None);
}

#[tokio::test]
async fn long_stream_arrives_completely_and_returns_its_credit() {
    let mesh = Mesh::start().await;
    let count = u64::from(limits::STREAM_CREDIT) * 20;
    let mut client = mesh.client().await;
    let mut events = client.events(&[], STREAM, message(&format!("count {count}"))).await;
    assert_eq!(events.numbers().await, (1..=count).collect::<Vec<_>>());
    let calls = mesh.fake.until("the recorded calls", |_| true).await;
    let credits = calls.iter().filter(|c| matches!(c.body, Some(call::Body::Credit(_)))).count();
    let sparing = count as usize / 32;
    assert!((1..=sparing).contains(&credits), "{credits} messages for {count} frames");
    assert_eq!(drops(&calls), 0, "an ended stream is not cancelled");
}

#[tokio::test]
async fn coordinator_that_ignores_credit_loses_that_stream_only() {
    let mesh = Mesh::start().await;
    let count = limits::STREAM_CREDIT * 1000;
    let mut client = mesh.client().await;
    let mut events = client.events(&[], STREAM, message(&format!("flood {count}"))).await;
    let last = loop {
        let (id, data) = events.next_data().await;
        if id.is_none() {
            break data;
        }
    };
    assert_eq!(last["error"]["code"], -32603);
    let answer = mesh.client().await.rpc("SendMessage", message("x")).await;
    assert!(answer.body["result"].is_object());
    mesh.fake.until("a drop", |calls| drops(calls) == 1).await;
}

/// With the real clock: small windows make the kernel wait too, and its clock cannot be paused.
#[tokio::test]
async fn slow_reader_gets_a_failure_that_tells_how_to_resume() {
    let mesh = Mesh::start_with(|config| config.reader_stall_ms = 1000).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = Client::over(socket.connect(mesh.address).await.unwrap()).await;
    let mut events = slow.events(&[], STREAM, message("count 1000 20000")).await;
    mesh.fake.until("a drop", |calls| drops(calls) == 1).await;
    let mut last = 0;
    let failure = loop {
        match events.next_data().await {
            (Some(id), _) => {
                last += 1;
                assert_eq!(id, last, "no event is missing");
            }
            (None, data) => break data,
        }
    };
    assert!((1..1000).contains(&last));
    let info = detail(&failure["error"]["data"], "google.rpc.ErrorInfo");
    assert_eq!(info["metadata"]["retryable"], "true", "{failure}");
    let text = failure["error"]["message"].as_str().unwrap();
    assert!(text.contains("resume with SubscribeToTask and Last-Event-ID"), "{text}");
    assert_eq!(soon("the end", events.next()).await, None, "a regular end");
    drop(events);

    // The connection is still usable, and the stream resumes after the last event.
    let resume = [("last-event-id", &*last.to_string())];
    let mut events = slow.events(&resume, "SubscribeToTask", json!({"id": "t-1"})).await;
    assert_eq!(events.numbers().await, [last + 1, last + 2, last + 3]);
}

#[tokio::test(start_paused = true)]
async fn silent_stream_is_kept_alive_from_its_start() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let started = tokio::time::Instant::now();
    let mut events = client.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    for _ in 0..3 {
        assert_eq!(events.next().await, Some(Event::Comment));
    }
    assert!(started.elapsed() >= 3 * limits::SSE_KEEP_ALIVE);
    let mut client = mesh.client().await;
    let mut silent = client.events(&[], STREAM, message("hang")).await;
    assert_eq!(silent.next().await, Some(Event::Comment), "headers do not wait for an event");
}

/// The HTTP/2 connection is alive, so only the full window of the stream shows the stall.
#[tokio::test(start_paused = true)]
async fn unread_stream_is_reset_over_http2_too() {
    let mesh = Mesh::start().await;
    let (mut sender, response, _connection) = unread(&mesh).await;
    sleep(limits::READER_STALL / 2).await;
    mesh.fake.until("no drop", |calls| drops(calls) == 0).await;
    sleep(limits::READER_STALL).await;
    mesh.fake.until("a drop", |calls| drops(calls) == 1).await;
    sleep(limits::READER_RETURN_TIMEOUT).await;
    assert!(response.into_body().collect().await.is_err(), "the stream was reset");
    let other = Request::get(format!("http://{}/healthz", mesh.address));
    let other = sender.send_request(other.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(other.status(), StatusCode::OK, "only the stream was reset");
}

#[tokio::test]
async fn reader_that_returns_soon_is_told_how_to_resume() {
    let mesh = Mesh::start_with(|config| config.reader_stall_ms = 1000).await;
    let (_sender, response, _connection) = unread(&mesh).await;
    mesh.fake.until("a drop", |calls| drops(calls) == 1).await;
    let mut events = Events::of(response);
    let mut last = 0;
    let failure = loop {
        match events.next().await {
            Some(Event::Data { id: Some(id), .. }) => last = id,
            Some(Event::Data { id: None, data }) => break data,
            Some(Event::Comment) => {}
            other => panic!("no final event: {other:?}"),
        }
    };
    assert!((1..3000).contains(&last));
    let text = failure["error"]["message"].as_str().unwrap();
    assert!(text.contains("resume with SubscribeToTask and Last-Event-ID"), "{text}");
    assert_eq!(events.next().await, None, "a regular end");
}

/// A stream over HTTP/2 of which only the head is read.
async fn unread(
    mesh: &Mesh,
) -> (SendRequest<Full<Bytes>>, Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(mesh.address).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1024);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let body = request("SendStreamingMessage", message("count 3000"));
    let opening = Request::post(format!("http://{}/", mesh.address))
        .header("a2a-version", "1.0")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = sender.send_request(opening).await.unwrap();
    (sender, response, connection)
}
