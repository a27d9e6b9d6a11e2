//! Retries of the client: exponential backoff, connection errors, one retry budget for connection
//! and call, and renewal of expired tokens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use faultline::testing::{Peer, Reply, Request};
use faultline_client::{Client, Error, Reconnect, text};
use faultline_proto::reason;
use faultline_tests::{cluster::free_address, log::Log, until, wait::SOON};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

fn task(state: &str) -> Value {
    json!({"id": "t", "contextId": "c", "status": {"state": format!("TASK_STATE_{state}")}})
}

fn done() -> Reply {
    Reply::task(task("COMPLETED"))
}

/// The trace id of a call.
fn trace_of(call: &Request) -> String {
    let parent = call.header("traceparent").expect("every call is in a trace");
    parent.split('-').nth(1).expect("a traceparent has a trace id").to_owned()
}

/// Both retry counters of each retry in the log: after connection errors and after error answers.
fn retries(log: &Log) -> Vec<(u64, u64)> {
    let is_retry = |line: &Value| line["message"] == "retrying a call";
    let counts = |line: &Value| {
        let count = |key: &str| line[key].as_u64().expect("a counter");
        (count("wire_retries"), count("call_retries"))
    };
    log.lines().iter().filter(|line| is_retry(line)).map(counts).collect()
}

#[tokio::test]
async fn failing_peer_is_retried_with_backoff_in_one_trace() {
    let peer = Peer::start([Reply::html(503), Reply::html(502), Reply::html(503), done()]);
    let peer = peer.await.unwrap();
    let client = Client::connect(&peer.url()).await.unwrap();
    let answer = client.send(text("x").idempotent()).await.unwrap();
    assert_eq!(answer.task().unwrap().id, "t");
    let gaps = peer.gaps();
    assert_eq!(gaps.len(), 3);
    for (gap, least) in gaps.iter().zip([200, 400, 800]) {
        assert!(*gap >= Duration::from_millis(least), "{gaps:?}");
    }
    let calls = peer.calls();
    assert!(calls.iter().all(|call| trace_of(call) == trace_of(&calls[0])), "one trace");
    let messages = calls.iter().map(|call| call.json()["params"].clone());
    assert!(messages.clone().all(|params| params == calls[0].json()["params"]), "one message");
}

#[tokio::test]
async fn port_that_opens_late_is_reached() {
    let log = Log::capture();
    let address = free_address();
    let client = Client::new(&format!("http://{address}")).unwrap();
    let opens = async {
        until("two calls issue failed", SOON, async || (retries(&log).len() == 2).then_some(()))
            .await;
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let (mut socket, _) = listener.accept().await.expect("the client connects");
        let mut request = vec![0; 64 * 1024];
        let read = socket.read(&mut request).await.expect("a request");
        let body = json!({"jsonrpc": "2.0", "id": 1, "result": {"task": task("COMPLETED")}});
        let body = body.to_string();
        let kind = "content-type: application/json";
        let head = format!("HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all((head + &body).as_bytes()).await.expect("the client reads");
        String::from_utf8_lossy(&request[..read]).into_owned()
    };
    let (sent, request) = tokio::join!(client.send(text("hello")), opens);
    assert_eq!(sent.unwrap().task().unwrap().id, "t");
    assert!(request.contains("hello"), "{request}");
    assert_eq!(retries(&log), [(1, 0), (2, 0)], "the third call succeeds");
}

#[tokio::test]
async fn closed_port_is_reported_with_the_number_of_retries() {
    let log = Log::capture();
    let client = Client::new(&format!("http://{}", free_address())).unwrap();
    let error = client.send(text("hello")).await.unwrap_err();
    let failure = error.failure().expect("the call failed");
    assert_eq!(failure.row(), &reason::UNAVAILABLE, "{failure}");
    assert!(
        failure.public_message.contains("the connection was refused"),
        "the last error: {failure}"
    );
    assert_eq!(failure.retries_spent, 3, "four calls in all: {failure}");
    assert_eq!(retries(&log), [(1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn connection_and_call_retries_are_counted_separately_and_share_one_budget() {
    let log = Log::capture();
    let busy = json!({"code": -31008, "message": "slow down", "data": [
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMITED",
         "domain": "faultline.dev"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.01s"}]});
    let replies = || [Reply::html(503), Reply::error(busy.clone()), done().drop_before_headers()];
    let peer = Peer::start(replies().into_iter().chain([done()])).await.unwrap();
    let client = Client::connect(&peer.url()).await.unwrap();
    client.send(text("x").idempotent()).await.unwrap();
    assert_eq!(retries(&log), [(1, 0), (1, 1), (2, 1)]);
    // A fourth retry is not made: both kinds share one budget.
    let peer = Peer::start(replies().into_iter().chain([Reply::error(busy.clone()), done()]));
    let peer = peer.await.unwrap();
    let client = Client::connect(&peer.url()).await.unwrap();
    let error = client.send(text("x").idempotent()).await.unwrap_err();
    let failure = error.failure().expect("the call failed");
    assert_eq!((failure.row(), failure.retries_spent), (&reason::RATE_LIMITED, 3), "{failure}");
    assert_eq!(peer.calls().len(), 4);
}

/// A peer that accepts the second token only, and a client whose token source counts its tokens.
async fn second_token(accepted: impl Fn(&Request) -> Reply + Send + 'static) -> (Peer, Client) {
    let answers = move |request: &Request, _: usize| match request.header("authorization") {
        Some("Bearer token-2") => accepted(request),
        _ => Reply::json(401, json!({})),
    };
    let peer = Peer::answering(answers).await.expect("a port is free");
    let issued = Arc::new(AtomicU32::new(0));
    let issue = move || {
        let token = issued.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok(format!("token-{token}")) }
    };
    let builder = Client::builder(&peer.url()).bearer_from(issue);
    let client = builder.direct().expect("a peer has a good URL");
    (peer, client)
}

fn tokens(peer: &Peer) -> Vec<String> {
    let token = |call: &Request| call.header("authorization").unwrap_or_default().to_owned();
    peer.calls().iter().map(token).collect()
}

#[tokio::test]
async fn expired_token_is_renewed_once() {
    let (peer, client) = second_token(|_| done()).await;
    // A 401 proves that nothing was done, so a send is repeated even without a key.
    client.send(text("x")).await.unwrap();
    client.send(text("y")).await.unwrap();
    let expected = ["Bearer token-1", "Bearer token-2", "Bearer token-2"];
    assert_eq!(tokens(&peer), expected, "a valid token is kept");
    // The token is renewed once per call.
    let (peer, client) = second_token(|_| Reply::json(401, json!({}))).await;
    let error = client.send(text("x")).await.unwrap_err();
    assert_eq!(error.failure().unwrap().row(), &reason::UNAUTHENTICATED);
    assert_eq!(tokens(&peer), ["Bearer token-1", "Bearer token-2"]);
}

#[tokio::test]
async fn token_that_expires_during_a_stream_is_renewed() {
    let events = |last: &str| vec![json!({"task": task("WORKING")}), json!({"task": task(last)})];
    let calls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&calls);
    let peer = Peer::answering(move |request, _| {
        let call = seen.fetch_add(1, Ordering::SeqCst);
        match (call, request.header("authorization")) {
            (0, Some("Bearer token-1")) => {
                Reply::stream(events("WORKING")).numbered().without_end()
            }
            (1, Some("Bearer token-1")) => Reply::json(401, json!({})),
            (2, Some("Bearer token-2")) => Reply::stream(events("COMPLETED")),
            (call, token) => panic!("call {call} with {token:?}"),
        }
    })
    .await
    .unwrap();
    let issued = AtomicU32::new(0);
    let issue = move || {
        let token = issued.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok(format!("token-{token}")) }
    };
    let reconnect = Reconnect { backoff: Duration::from_millis(1), ..Reconnect::default() };
    let builder = Client::builder(&peer.url()).bearer_from(issue).reconnect(reconnect);
    let answer = builder.direct().unwrap().run(text("x")).await.unwrap();
    assert_eq!(answer.task().unwrap().id, "t");
    assert_eq!(peer.methods(), ["SendStreamingMessage", "SubscribeToTask", "SubscribeToTask"]);
    let traces: Vec<_> = peer.calls().iter().map(trace_of).collect();
    assert!(traces.iter().all(|trace| *trace == traces[0]), "one trace: {traces:?}");
}

#[tokio::test]
async fn missing_token_prevents_the_call() {
    let peer = Peer::start([]).await.unwrap();
    let retry = faultline_client::Retry::never();
    let builder = Client::builder(&peer.url()).retry(retry);
    let client = builder.bearer_from(|| async { Err("no such file".into()) }).direct().unwrap();
    let error = client.send(text("x")).await.unwrap_err();
    let Error::Call(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.public_message, "there is no token to call the server with");
    assert_eq!(failure.private().unwrap().for_log(), "no such file");
    assert!(peer.calls().is_empty());
}
