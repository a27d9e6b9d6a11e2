//! Calls that are made again: how often, after how long, with what, and what is told when it was in
//! vain.

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

/// What of the traceparent is the same in all of one trace.
fn trace_of(call: &Request) -> String {
    let parent = call.header("traceparent").expect("every call is in a trace");
    parent.split('-').nth(1).expect("it has an id").to_owned()
}

/// How often a call was made again, for the wire and for what the peer said, each time.
fn retries(log: &Log) -> Vec<(u64, u64)> {
    let again = |line: &Value| line["message"] == "a call is made again";
    let counts = |line: &Value| {
        let count = |key: &str| line[key].as_u64().expect("it is counted");
        (count("wire_retries"), count("call_retries"))
    };
    log.lines().iter().filter(|line| again(line)).map(counts).collect()
}

#[tokio::test]
async fn a_peer_that_fails_is_called_again_after_growing_pauses_and_it_is_one_call() {
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
async fn a_port_that_opens_late_is_reached() {
    let log = Log::capture();
    let address = free_address();
    let client = Client::new(&format!("http://{address}")).unwrap();
    let opens = async {
        until("two calls have failed", SOON, async || (retries(&log).len() == 2).then_some(()))
            .await;
        let listener = TcpListener::bind(address).await.expect("it was free");
        let (mut socket, _) = listener.accept().await.expect("somebody calls");
        let mut request = vec![0; 64 * 1024];
        let read = socket.read(&mut request).await.expect("it is a request");
        let body = json!({"jsonrpc": "2.0", "id": 1, "result": {"task": task("COMPLETED")}});
        let body = body.to_string();
        let kind = "content-type: application/json";
        let head = format!("HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all((head + &body).as_bytes()).await.expect("it listens");
        String::from_utf8_lossy(&request[..read]).into_owned()
    };
    let (sent, request) = tokio::join!(client.send(text("hello")), opens);
    assert_eq!(sent.unwrap().task().unwrap().id, "t");
    assert!(request.contains("hello"), "{request}");
    assert_eq!(retries(&log), [(1, 0), (2, 0)], "the third was taken");
}

#[tokio::test]
async fn a_port_that_never_opens_is_told_with_what_was_tried() {
    let log = Log::capture();
    let client = Client::new(&format!("http://{}", free_address())).unwrap();
    let error = client.send(text("hello")).await.unwrap_err();
    let failure = error.failure().expect("the call failed");
    assert_eq!(failure.row(), &reason::UNAVAILABLE, "{failure}");
    assert!(failure.public_message.contains("nobody listens there"), "the last error: {failure}");
    assert_eq!(failure.retries_spent, 3, "four calls in all: {failure}");
    assert_eq!(retries(&log), [(1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn what_the_wire_did_and_what_the_peer_said_are_counted_apart_and_allowed_together() {
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
    // A fourth is not made, whatever the three were for.
    let peer = Peer::start(replies().into_iter().chain([Reply::error(busy.clone()), done()]));
    let peer = peer.await.unwrap();
    let client = Client::connect(&peer.url()).await.unwrap();
    let error = client.send(text("x").idempotent()).await.unwrap_err();
    let failure = error.failure().expect("the call failed");
    assert_eq!((failure.row(), failure.retries_spent), (&reason::RATE_LIMITED, 3), "{failure}");
    assert_eq!(peer.calls().len(), 4);
}

/// A peer that takes no token but the second that is had, and a client that has one after another.
async fn second_token(taken: impl Fn(&Request) -> Reply + Send + 'static) -> (Peer, Client) {
    let answers = move |request: &Request, _: usize| match request.header("authorization") {
        Some("Bearer token-2") => taken(request),
        _ => Reply::json(401, json!({})),
    };
    let peer = Peer::answering(answers).await.expect("a port is free");
    let had = Arc::new(AtomicU32::new(0));
    let have = move || {
        let token = had.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok(format!("token-{token}")) }
    };
    let builder = Client::builder(&peer.url()).bearer_from(have);
    let client = builder.direct().expect("a peer has a good URL");
    (peer, client)
}

fn tokens(peer: &Peer) -> Vec<String> {
    let token = |call: &Request| call.header("authorization").unwrap_or_default().to_owned();
    peer.calls().iter().map(token).collect()
}

#[tokio::test]
async fn a_token_that_expired_is_had_anew_once() {
    let (peer, client) = second_token(|_| done()).await;
    // Nothing was done under the old token, so a send is sent again, key or no key.
    client.send(text("x")).await.unwrap();
    client.send(text("y")).await.unwrap();
    let seen = ["Bearer token-1", "Bearer token-2", "Bearer token-2"];
    assert_eq!(tokens(&peer), seen, "what is good is kept");
    // A token that does not help is not asked for for ever.
    let (peer, client) = second_token(|_| Reply::json(401, json!({}))).await;
    let error = client.send(text("x")).await.unwrap_err();
    assert_eq!(error.failure().unwrap().row(), &reason::UNAUTHENTICATED);
    assert_eq!(tokens(&peer), ["Bearer token-1", "Bearer token-2"]);
}

#[tokio::test]
async fn a_token_that_expires_while_a_stream_is_read_is_had_anew() {
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
    let had = AtomicU32::new(0);
    let have = move || {
        let token = had.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok(format!("token-{token}")) }
    };
    let reconnect = Reconnect { backoff: Duration::from_millis(1), ..Reconnect::default() };
    let builder = Client::builder(&peer.url()).bearer_from(have).reconnect(reconnect);
    let answer = builder.direct().unwrap().run(text("x")).await.unwrap();
    assert_eq!(answer.task().unwrap().id, "t");
    assert_eq!(peer.methods(), ["SendStreamingMessage", "SubscribeToTask", "SubscribeToTask"]);
    let traces: Vec<_> = peer.calls().iter().map(trace_of).collect();
    assert!(traces.iter().all(|trace| *trace == traces[0]), "one trace: {traces:?}");
}

#[tokio::test]
async fn a_token_that_cannot_be_had_is_no_call() {
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
