//! Server-sent events: framing, resuming, failing, keeping alive.

use faultline_chassis::limits;
use faultline_proto::v1::call;
use http::StatusCode;
use serde_json::json;

use crate::{
    Mesh,
    client::{Event, message, request},
    fake::drops,
    soon,
};

const STREAM: &str = "SendStreamingMessage";

#[tokio::test]
async fn every_frame_is_an_event_with_its_number() {
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
    assert_eq!(bare.next_data().await.0, None, "what has no number cannot be resumed from");
    assert_eq!(soon("the end", bare.next()).await, None);
}

#[tokio::test]
async fn a_stream_resumes_after_the_event_it_names() {
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
async fn a_resume_that_makes_no_sense_says_what_to_do() {
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
async fn a_failure_before_the_first_event_is_a_plain_answer() {
    let mesh = Mesh::start().await;
    let answer = mesh.client().await.rpc(STREAM, message("fail")).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::OK, -31008));
}

#[tokio::test]
async fn a_failure_in_the_middle_is_the_last_event() {
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
async fn a_long_stream_arrives_whole_and_gives_its_credit_back() {
    let mesh = Mesh::start().await;
    let count = u64::from(limits::STREAM_CREDIT) * 20;
    let mut client = mesh.client().await;
    let mut events = client.events(&[], STREAM, message(&format!("count {count}"))).await;
    assert_eq!(events.numbers().await, (1..=count).collect::<Vec<_>>());
    let calls = mesh.fake.until("a look", |_| true).await;
    let credits = calls.iter().filter(|c| matches!(c.body, Some(call::Body::Credit(_)))).count();
    let sparing = count as usize / 32;
    assert!((1..=sparing).contains(&credits), "{credits} messages for {count} frames");
    assert_eq!(drops(&calls), 0, "a stream that ended is not dropped");
}

#[tokio::test]
async fn a_coordinator_that_ignores_credit_loses_that_stream_only() {
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

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_is_kept_alive_from_its_start() {
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
