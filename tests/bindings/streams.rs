//! Streams: the task first, then every event in order, identical for all readers, and a final event
//! with the state.

use faultline_tests::{
    Binding,
    a2a_endpoint::Events,
    rpc::{answer, message},
    task::{self, AUTH_REQUIRED, COMPLETED, INPUT_REQUIRED, WORKING},
};
use serde_json::{Value, json};

use crate::{on_every_binding, start};

on_every_binding! {
    stream_begins_with_the_task_and_ends_with_its_final_status
    message_without_a_task_is_the_whole_stream
    streaming_send_closes_at_a_question
    credential_request_keeps_the_stream_open
    subscription_stays_open_through_questions
    subscribers_see_the_same_events
    ended_task_has_no_stream
    refused_stream_is_a_plain_answer
}

fn states(events: &[Value]) -> Vec<&str> {
    let of = |event: &Value| event.get("task").or(event.get("statusUpdate")).cloned();
    let mut states = Vec::new();
    for event in events {
        if let Some(status) = of(event) {
            let state = task::state(&status).to_owned();
            let known = [COMPLETED, INPUT_REQUIRED, AUTH_REQUIRED, WORKING];
            states.push(known.into_iter().find(|k| *k == state).unwrap_or("SUBMITTED"));
        }
    }
    states
}

async fn stream_begins_with_the_task_and_ends_with_its_final_status(binding: Binding) {
    let up = start(binding).await;
    let script = "say on it; chunk one; chunk two; say nearly";
    let events = up.agent("script").stream("SendStreamingMessage", message(script)).await;
    let events = events.unwrap().all().await;
    assert!(events[0].get("task").is_some(), "{events:?}");
    assert!(events[1..].iter().all(|e| e.get("task").is_none()), "{events:?}");
    let last = &events.last().unwrap()["statusUpdate"];
    assert_eq!(task::state(last), COMPLETED, "{events:?}");
    let texts: Vec<_> = events
        .iter()
        .filter_map(|e| e.get("artifactUpdate"))
        .map(|update| {
            (update["append"].as_bool().unwrap_or(false), task::text(&update["artifact"]))
        })
        .collect();
    assert_eq!(texts, [(false, "one".to_owned()), (true, "two".to_owned())], "{events:?}");
    for event in &events[1..] {
        let update = event.get("statusUpdate").or(event.get("artifactUpdate")).unwrap();
        assert_eq!(update["taskId"], events[0]["task"]["id"]);
        assert_eq!(update["contextId"], events[0]["task"]["contextId"]);
    }
}

async fn message_without_a_task_is_the_whole_stream(binding: Binding) {
    let up = start(binding).await;
    let events = up.agent("script").stream("SendStreamingMessage", message("message hi")).await;
    let events = events.unwrap().all().await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(task::text(&events[0]["message"]), "hi");
}

async fn streaming_send_closes_at_a_question(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let asked = script.stream("SendStreamingMessage", message("ask \"who?\"; chunk $answer")).await;
    let asked = asked.unwrap().all().await;
    assert_eq!(states(&asked).last(), Some(&INPUT_REQUIRED), "{asked:?}");
    let id = task::id(&asked[0]["task"]).to_owned();
    let done = script.stream("SendStreamingMessage", answer(&id, "me")).await.unwrap().all().await;
    assert!(done[0].get("task").is_some(), "{done:?}");
    assert_eq!(states(&done).last(), Some(&COMPLETED), "{done:?}");
}

async fn credential_request_keeps_the_stream_open(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let wants = message("auth https://login.example.org; chunk in");
    let mut events = script.stream("SendStreamingMessage", wants).await.unwrap();
    let mut seen = until_state(&mut events, AUTH_REQUIRED).await;
    let id = task::id(&seen[0]["task"]).to_owned();
    script.call("SendMessage", answer(&id, "done")).await.unwrap();
    seen.extend(events.all().await);
    assert_eq!(states(&seen).last(), Some(&COMPLETED), "{seen:?}");
}

/// Reads up to the first event with this state.
async fn until_state(events: &mut Events, state: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    while let Some(event) = events.next().await.expect("the stream goes on") {
        seen.push(event);
        if states(&seen).last() == Some(&state) {
            return seen;
        }
    }
    panic!("the stream ended before {state}: {seen:?}");
}

async fn subscription_stays_open_through_questions(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let asked = script.call("SendMessage", message("ask \"who?\"; ask \"sure?\"")).await.unwrap();
    let id = task::id(&asked["task"]).to_owned();
    let mut events = up.endpoint.stream("SubscribeToTask", json!({"id": id})).await.unwrap();
    let first = events.next().await.unwrap().expect("a snapshot");
    assert_eq!(task::state(&first["task"]), INPUT_REQUIRED, "{first}");
    script.call("SendMessage", answer(&id, "me")).await.unwrap();
    script.call("SendMessage", answer(&id, "yes")).await.unwrap();
    let rest = events.all().await;
    assert_eq!(states(&rest), [WORKING, INPUT_REQUIRED, WORKING, COMPLETED], "{rest:?}");
}

async fn subscribers_see_the_same_events(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let asked = script.call("SendMessage", message("ask go; chunk a; say b; chunk c")).await;
    let id = task::id(&asked.unwrap()["task"]).to_owned();
    let mut readers = Vec::new();
    for other in Binding::ALL {
        let endpoint = faultline_tests::A2aEndpoint::new(other, up.mesh.gateway_addr());
        for _ in 0..3 {
            let mut events = endpoint.stream("SubscribeToTask", json!({"id": id})).await.unwrap();
            events.next().await.unwrap().expect("a snapshot");
            readers.push(tokio::spawn(events.all()));
        }
    }
    // One reader disconnects.
    drop(up.endpoint.stream("SubscribeToTask", json!({"id": id})).await.unwrap());
    script.call("SendMessage", answer(&id, "go")).await.unwrap();
    let mut all = Vec::new();
    for reader in readers {
        all.push(reader.await.expect("a reader reads"));
    }
    assert!(all[0].len() >= 5, "{:?}", all[0]);
    assert!(all.iter().all(|seen| *seen == all[0]), "{all:?}");
}

async fn ended_task_has_no_stream(binding: Binding) {
    let up = start(binding).await;
    let sent = up.agent("echo").call("SendMessage", message("x")).await.unwrap();
    let ended = up.endpoint.stream("SubscribeToTask", json!({"id": sent["task"]["id"]})).await;
    assert_eq!(refused(ended).reason(), ("a2a-protocol.org", "UNSUPPORTED_OPERATION"));
    let nobody = up.endpoint.stream("SubscribeToTask", json!({"id": "nobody"})).await;
    assert_eq!(refused(nobody).reason(), ("a2a-protocol.org", "TASK_NOT_FOUND"));
}

async fn refused_stream_is_a_plain_answer(binding: Binding) {
    let up = start(binding).await;
    let nobody = up.agent("nobody").stream("SendStreamingMessage", message("x")).await;
    assert_eq!(refused(nobody).reason(), ("faultline.dev", "AGENT_NOT_FOUND"));
    let mute = up.agent("mute").stream("SendStreamingMessage", message("x")).await;
    assert_eq!(refused(mute).reason(), ("a2a-protocol.org", "UNSUPPORTED_OPERATION"));
}

fn refused<T>(
    result: Result<T, faultline_tests::a2a_endpoint::Refusal>,
) -> faultline_tests::a2a_endpoint::Refusal {
    match result {
        Ok(_) => panic!("the stream is not refused"),
        Err(refusal) => refusal,
    }
}
