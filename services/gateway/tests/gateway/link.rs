//! The link to the coordinator: reconnection, retries, cancellation by clients, and draining.

use std::{net::SocketAddr, time::Duration};

use faultline_chassis::Drain;
use faultline_gateway::Config;
use faultline_proto::{
    a2a::SendMessageRequest,
    v1::{Call, call},
};
use http::StatusCode;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

use crate::{
    Mesh,
    client::{Client, Event, detail, message, request},
    fake::{Fake, drops},
    soon,
};

const STREAM: &str = "SendStreamingMessage";

#[tokio::test]
async fn lost_link_fails_its_calls_and_reconnects() {
    let mesh = Mesh::start().await;
    let mut one = mesh.client().await;
    let mut other = mesh.client().await;
    let mut events = one.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let hanging = tokio::spawn(async move { other.rpc("SendMessage", message("hang")).await });
    mesh.fake.until("both calls", |calls| calls.len() == 2).await;
    mesh.fake.cut();
    let answer = soon("an answer", hanging).await.unwrap();
    assert_eq!(answer.code(), -31014);
    assert!(answer.message().contains("goes on"), "{answer:?}");
    let info = detail(&answer.body["error"]["data"], "google.rpc.ErrorInfo");
    assert_eq!(info["reason"], "OUTCOME_UNKNOWN", "the send may have been executed");
    assert_eq!(info["metadata"]["retryable"], "false");
    let record = detail(&answer.body["error"]["data"], "faultline.v1.Failure");
    assert_eq!(record["plane"], "PLANE_TRANSPORT");
    assert_eq!(events.numbers().await, [2, 3, 4], "the stream resumes by itself");
    // No wait for health: a call waits for the link by itself.
    let answer = mesh.client().await.rpc("SendMessage", message("x")).await;
    assert!(answer.body["result"].is_object(), "{answer:?}");
}

#[tokio::test]
async fn interrupted_call_gets_advice_by_its_retry_safety() {
    let mesh = Mesh::start_with(|config| config.resume_ms = 0).await;
    let mut watcher = mesh.client().await;
    let mut events = watcher.events(&[], "SubscribeToTask", json!({"id": "open"})).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let mut reader = mesh.client().await;
    let mut sender = mesh.client().await;
    let reading = tokio::spawn(async move { reader.rpc("GetTask", json!({"id": "hang"})).await });
    let key = [("idempotency-key", "k-1")];
    let sending = request("SendMessage", message("hang"));
    let sending = tokio::spawn(async move { sender.ask("POST", "/", &key, sending).await });
    mesh.fake.until("all calls", |calls| calls.len() == 3).await;
    mesh.fake.cut();
    // The gateway repeats both calls once. A second interruption fails them.
    mesh.fake.until("both repeated calls", |calls| calls.len() == 5).await;
    mesh.fake.cut();
    for (call, advice) in [(reading, "ask again"), (sending, "the same Idempotency-Key")] {
        let answer = soon("an answer", call).await.unwrap();
        assert_eq!((answer.code(), answer.reason()), (-31014, "UNAVAILABLE"), "{answer:?}");
        let info = detail(answer.details(), "google.rpc.ErrorInfo");
        assert_eq!(info["metadata"]["retryable"], "true");
        assert_eq!(detail(answer.details(), "google.rpc.RetryInfo")["retryDelay"], "1s");
        assert!(answer.message().contains(advice), "{answer:?}");
        let step = detail(answer.details(), "faultline.v1.Advice")["text"].as_str().unwrap();
        let keyed = step.starts_with("wait 1s, then send again with the same Idempotency-Key");
        assert_eq!(keyed, advice.contains("Key"), "{step}");
    }
    let (_, last) = events.next_data().await;
    assert!(last["error"]["message"].as_str().unwrap().contains("resume with Last-Event-ID"));
    let info = detail(&last["error"]["data"], "google.rpc.ErrorInfo");
    assert_eq!(
        (&info["reason"], &info["metadata"]["retryable"]),
        (&"UNAVAILABLE".into(), &"true".into())
    );
    assert_eq!(soon("the end", events.next()).await, None);
}

/// A gateway without a coordinator, and the address of the missing one.
async fn gateway_without_coordinator() -> (Client, SocketAddr) {
    let missing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        coordinator: missing.to_string(),
        ..Config::default()
    };
    let service = config.bind().await.unwrap();
    let address = service.addr();
    tokio::spawn(service.run(Drain::new()));
    (Client::connect(address).await, missing)
}

#[tokio::test]
async fn call_waits_for_a_late_coordinator() {
    let (mut client, coordinator) = gateway_without_coordinator().await;
    let ((), answer) = tokio::join!(
        async {
            let fake = Fake::start_at(coordinator).await;
            fake.last_call().await;
        },
        client.rpc("SendMessage", message("x")),
    );
    assert!(answer.body["result"].is_object(), "{answer:?}");
}

#[tokio::test]
async fn call_fails_soon_and_health_is_503_without_a_coordinator() {
    let (mut client, _) = gateway_without_coordinator().await;
    let health = client.ask("GET", "/healthz", &[], "").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    let answer = client.rpc("SendMessage", message("x")).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::OK, -31014));
    assert!(answer.message().contains("nothing was sent"), "{answer:?}");
    assert_eq!(detail(answer.details(), "google.rpc.RetryInfo")["retryDelay"], "1s");
    let headers = [("content-type", "application/a2a+json")];
    let answer = client.ask("POST", "/message:send", &headers, message("x").to_string()).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test]
async fn disconnected_client_cancels_its_call_at_the_coordinator() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let mut events = client.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    drop((client, events));
    let calls = mesh.fake.until("a drop", |calls| drops(calls) == 1).await;
    assert_eq!(calls[0].id, calls[1].id, "the drop names the call");
    let mut stream = TcpStream::connect(mesh.address).await.unwrap();
    stream.write_all(raw("SendMessage", "hang").as_bytes()).await.unwrap();
    mesh.fake.until("the call", |calls| calls.len() == 3).await;
    drop(stream);
    mesh.fake.until("a second drop", |calls| drops(calls) == 2).await;
}

fn raw(method: &str, text: &str) -> String {
    let body = request(method, message(text));
    let length = body.len();
    format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\na2a-version: 1.0\r\n\
         content-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

fn hanging(calls: &[Call]) -> usize {
    let has_command = |request: &SendMessageRequest| format!("{request:?}").contains("hang");
    let is_hanging = |call: &&Call| match &call.body {
        Some(call::Body::Send(request) | call::Body::Stream(request)) => has_command(request),
        _ => false,
    };
    calls.iter().filter(is_hanging).count()
}

#[tokio::test]
async fn killed_clients_do_not_disturb_others() {
    const STORM: usize = 400;
    let mesh = Mesh::start().await;
    let mut steady = mesh.client().await;
    let mut events = steady.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let mut other = mesh.client().await;
    for round in 0..STORM {
        let mut stream = TcpStream::connect(mesh.address).await.unwrap();
        let method = if round % 2 == 0 { "SendMessage" } else { STREAM };
        stream.write_all(raw(method, "hang").as_bytes()).await.unwrap();
        if round % 10 == 0 {
            let answer = other.rpc("SendMessage", message("x")).await;
            assert!(answer.body["result"].is_object(), "round {round}: {answer:?}");
        }
        mesh.fake.until("the call", |calls| hanging(calls) == round + 1).await;
        // A TCP reset instead of a regular close.
        stream.set_zero_linger().unwrap();
        drop(stream);
    }
    mesh.fake.until("every drop", |calls| drops(calls) == STORM).await;
    assert!(other.rpc("GetTask", json!({"id": "t"})).await.body["result"].is_object());
    mesh.fake.cut();
    assert_eq!(events.next_data().await.0, Some(2), "the stream stayed open and resumes");
}

#[tokio::test(start_paused = true)]
async fn draining_gateway_ends_open_streams_with_a_failure() {
    let mesh = Mesh::start().await;
    let mut one = mesh.client().await;
    let mut other = mesh.client().await;
    let mut events = one.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let hanging = tokio::spawn(async move { other.rpc("SendMessage", message("hang")).await });
    mesh.fake.until("both calls", |calls| calls.len() == 2).await;
    let started = tokio::time::Instant::now();
    mesh.drain.start();
    let last = loop {
        match events.next().await {
            Some(Event::Data { data, .. }) => break data,
            Some(Event::Comment) => {}
            other => panic!("no final event: {other:?}"),
        }
    };
    assert_eq!(last["error"]["code"], -31014);
    assert!(last["error"]["message"].as_str().unwrap().contains("resume with Last-Event-ID"));
    assert_eq!(events.next().await, None);
    assert!(started.elapsed() >= Duration::from_secs(8));
    assert_eq!(hanging.await.unwrap().code(), -31014);
    mesh.running.await.unwrap();
    assert!(started.elapsed() <= Duration::from_secs(11));
    assert!(TcpStream::connect(mesh.address).await.is_err());
}
