//! Misbehaving peers of the client: each fault becomes an error of the right code, never a hang, a
//! panic or a false success.

use std::time::Duration;

use faultline::testing::{Peer, Reply};
use faultline_client::{Client, Ending, Error, Reconnect, Retry, text};
use faultline_proto::{json as proto_json, reason::code_name};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Longer than every call of these tests.
const BOUND: Duration = Duration::from_secs(20);

async fn client(peer: &Peer) -> Client {
    let reconnect = Reconnect {
        backoff: Duration::from_millis(1),
        poll: None,
        patience: Duration::from_millis(200),
        ..Reconnect::default()
    };
    let builder = Client::builder(&peer.url()).retry(Retry::never()).reconnect(reconnect);
    builder.connect().await.expect("a peer has a card")
}

fn task(state: &str) -> Value {
    json!({"id": "t", "contextId": "c", "status": {"state": format!("TASK_STATE_{state}")}})
}

fn update(state: &str) -> Value {
    let status = json!({"state": format!("TASK_STATE_{state}")});
    json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": status}})
}

fn chunk(text: &str) -> Value {
    let artifact = json!({"artifactId": "a", "parts": [{"text": text}]});
    json!({"artifactUpdate":
        {"taskId": "t", "contextId": "c", "artifact": artifact, "append": true}})
}

#[tokio::test]
async fn broken_answer_of_a_peer_is_an_error_of_the_right_code() {
    let done = || Reply::task(task("COMPLETED"));
    let details = |data: Value| json!({"code": -31008, "message": "slow down", "data": data});
    let info = json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": 7});
    for (what, reply, code) in [
        ("drop before headers", done().drop_before_headers(), "UNAVAILABLE"),
        ("drop after headers", done().drop_after_headers(), "UNAVAILABLE"),
        ("half an answer", done().cut_after(20), "UNAVAILABLE"),
        ("a proxy's page", Reply::html(502), "UNAVAILABLE"),
        ("a page with 500", Reply::html(500), "INTERNAL"),
        ("a page with 200", Reply::html(200), "INTERNAL"),
        ("a busy peer", Reply::json(429, json!({})), "RESOURCE_EXHAUSTED"),
        ("no task and no message", Reply::result(json!({})), "INTERNAL"),
        (
            "a list of strings as details",
            Reply::error(details(json!(["x", 1]))),
            "RESOURCE_EXHAUSTED",
        ),
        ("details of wrong types", Reply::error(details(json!([info]))), "RESOURCE_EXHAUSTED"),
        ("details that are a string", Reply::error(details(json!("x"))), "RESOURCE_EXHAUSTED"),
        ("an unknown code", Reply::error(json!({"code": 7})), "UNKNOWN"),
    ] {
        let peer = Peer::start([reply]).await.unwrap();
        let sent = timeout(BOUND, client(&peer).await.send(text("x"))).await.expect(what);
        let error = sent.expect_err(what);
        let Error::Call(failure) = &error else { panic!("{what}: {error}") };
        assert_eq!(code_name(failure.code()), code, "{what}: {failure}");
        assert!(!failure.public_message.is_empty(), "{what}");
        assert_eq!(peer.calls().len(), 1, "{what}: retries are off");
    }
}

#[tokio::test]
async fn retry_after_of_a_peer_is_respected() {
    let busy = Reply::json(429, json!({})).header("retry-after", "1");
    let peer = Peer::start([busy, Reply::task(task("COMPLETED"))]).await.unwrap();
    let client = Client::connect(&peer.url()).await.unwrap();
    client.send(text("x")).await.unwrap();
    assert_eq!(peer.methods(), ["SendMessage", "SendMessage"]);
    let gaps = peer.gaps();
    assert!(gaps[0] >= Duration::from_millis(950), "{gaps:?}");
    let ids: Vec<_> =
        peer.calls().iter().map(|c| c.json()["params"]["message"]["messageId"].clone()).collect();
    assert_eq!(ids[0], ids[1], "the retry sends the same message");
}

#[tokio::test]
async fn slow_answer_is_read_to_its_end() {
    let drip = Reply::task(task("COMPLETED")).drip(Duration::from_millis(1));
    let peer = Peer::start([drip]).await.unwrap();
    let answer = client(&peer).await.send(text("x")).await.unwrap();
    assert_eq!(answer.task().unwrap().id, "t");
}

#[tokio::test]
async fn silent_peer_yields_no_answer() {
    for silent in
        [Reply::task(task("COMPLETED")).silent(), Reply::stream([]).silent_after_headers()]
    {
        let peer = Peer::start([silent]).await.unwrap();
        let client = client(&peer).await;
        let waited = timeout(Duration::from_millis(300), client.run(text("x"))).await;
        assert!(waited.is_err(), "a silent peer yields no answer: {waited:?}");
        assert_eq!(peer.calls().len(), 1);
    }
}

#[tokio::test]
async fn broken_stream_is_resumed_without_duplicates() {
    let begun = || vec![json!({"task": task("WORKING")}), chunk("one ")];
    let rest = || vec![chunk("two"), update("COMPLETED")];
    for (what, first) in [
        (
            "half an event",
            Reply::stream([begun(), vec![chunk("two")]].concat()).numbered().cut_in_last_event(),
        ),
        ("no end", Reply::stream(begun()).numbered().without_end()),
        ("an end before the task's", Reply::stream(begun()).numbered()),
    ] {
        // The remaining events have the following numbers.
        let script = move |request: &faultline::testing::Request, call: usize| match call {
            0 => first.clone(),
            _ => {
                assert_eq!(request.method(), "SubscribeToTask");
                assert_eq!(request.header("last-event-id"), Some("2"));
                Reply::stream(rest())
            }
        };
        let peer = Peer::answering(script).await.unwrap();
        let answer = timeout(BOUND, client(&peer).await.run(text("x"))).await.expect(what);
        assert_eq!(answer.expect(what).text(), "one two", "{what}");
    }
}

#[tokio::test]
async fn duplicate_event_is_reported_once() {
    let working = |id: &str| {
        let mut event = update("WORKING");
        let message = json!({"messageId": id, "role": "ROLE_AGENT", "parts": [{"text": "busy"}]});
        event["statusUpdate"]["status"]["message"] = message;
        event
    };
    let artifact = json!({"artifactId": "b", "parts": [{"text": "made"}]});
    let made = json!({"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": artifact}});
    let begun = json!({"task": task("WORKING")});
    // The same text with another message id is another message.
    let whole = [begun, working("m-1"), made, working("m-2"), update("COMPLETED")];
    let twice: Vec<_> = whole.iter().flat_map(|event| [event.clone(), event.clone()]).collect();
    let peer = Peer::start([Reply::stream(twice)]).await.unwrap();
    let mut follow = client(&peer).await.follow(text("x")).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = follow.next().await {
        let event = proto_json::to_string(&event.unwrap().response);
        events.push(serde_json::from_str::<Value>(&event).unwrap());
    }
    assert_eq!(events, whole);
}

#[tokio::test]
async fn stream_that_cannot_be_resumed_is_an_error() {
    let cut = || Reply::stream([json!({"task": task("WORKING")})]).without_end();
    let peer = Peer::answering(move |_, _| cut()).await.unwrap();
    let lost = timeout(BOUND, client(&peer).await.run(text("x"))).await.expect("the call ends");
    match lost.unwrap_err() {
        Error::Reconnect { task_id, attempts, .. } => assert_eq!((&*task_id, attempts), ("t", 3)),
        other => panic!("{other}"),
    }
    assert_eq!(peer.methods()[1..], ["SubscribeToTask"; 3]);
}

#[tokio::test]
async fn failed_task_without_a_message_is_an_error() {
    for streams in [false, true] {
        let reply = if streams {
            Reply::stream([json!({"task": task("FAILED")})])
        } else {
            Reply::task(task("FAILED"))
        };
        let peer = Peer::start([reply]).await.unwrap();
        let client = client(&peer).await;
        let answer = if streams {
            client.run(text("x")).await
        } else {
            client.send(text("x")).await.and_then(|answer| answer.ok())
        };
        let Err(Error::Ended(ended)) = answer else { panic!("{answer:?}") };
        assert_eq!(ended.how, Ending::Failed);
        assert!(!ended.failure.public_message.is_empty() && ended.failure.foreign);
    }
}
