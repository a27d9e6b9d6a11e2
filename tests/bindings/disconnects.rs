//! Disconnects of callers during blocking sends and streams, over real connections, with each
//! `onDisconnect` policy.

use std::time::Duration;

use faultline_tests::{
    A2aEndpoint, Binding,
    rpc::message,
    task::{self, CANCELED, COMPLETED, WORKING},
    until,
    wait::SOON,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{on_every_binding, start};

on_every_binding! {
    task_continues_without_its_caller
    task_is_cancelled_with_its_caller_if_requested
    reconnect_within_the_grace_keeps_the_task
    question_does_not_count_as_a_disconnect
    invalid_policy_is_refused_by_its_field
}

const KEY: &str = "faultline.dev/onDisconnect";

/// A message in a new context, by which the test finds its task.
fn message_in_context(script: &str, policy: Option<&str>) -> (Value, String) {
    let context = format!("c-{:016x}", rand::random::<u64>());
    let mut params = message(script);
    params["message"]["contextId"] = context.clone().into();
    if let Some(policy) = policy {
        params["message"]["metadata"] = json!({ KEY: policy });
    }
    (params, context)
}

async fn found(endpoint: &A2aEndpoint, context: &str) -> Option<Value> {
    let listed = endpoint.call("ListTasks", json!({"contextId": context})).await.expect("a list");
    listed["tasks"].as_array().and_then(|tasks| tasks.first().cloned())
}

async fn until_state(endpoint: &A2aEndpoint, context: &str, state: &str) -> Value {
    until(&format!("the task is {state}"), SOON, async || {
        found(endpoint, context).await.filter(|task| task::state(task) == state)
    })
    .await
}

/// Sends, waits until the task works, and disconnects.
async fn send_and_leave(
    endpoint: &A2aEndpoint,
    script: &str,
    policy: Option<&str>,
    streams: bool,
) -> String {
    let (params, context) = message_in_context(script, policy);
    if streams {
        let mut events = endpoint.stream("SendStreamingMessage", params).await.unwrap();
        events.next().await.unwrap().expect("a first event");
        until_state(endpoint, &context, WORKING).await;
    } else {
        let sending = endpoint.call("SendMessage", params);
        tokio::select! {
            sent = sending => panic!("the task ended before the disconnect: {sent:?}"),
            _ = until_state(endpoint, &context, WORKING) => {}
        }
    }
    context
}

async fn task_continues_without_its_caller(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    for (streams, policy) in [(false, None), (true, None), (false, Some("detach"))] {
        let work = "say on it; sleep 700ms; chunk done";
        let context = send_and_leave(&script, work, policy, streams).await;
        until_state(&script, &context, COMPLETED).await;
    }
}

async fn task_is_cancelled_with_its_caller_if_requested(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    for (streams, policy) in [(false, "cancel"), (true, "cancel"), (false, "grace=100ms")] {
        let work = "delegate script { say on it; sleep 60s }";
        let context = send_and_leave(&script, work, Some(policy), streams).await;
        let task = until_state(&script, &context, CANCELED).await;
        let failure = &task["metadata"]["faultline.dev/failure"];
        let text = failure["publicMessage"].as_str().unwrap_or_default();
        assert!(
            ["cancelled because its caller went away", "the calling task ended"].contains(&text)
        );
        assert_eq!(failure["errorType"], "cancelled", "{failure}");
        until("all tasks of the context are canceled", SOON, async || {
            let listed = script.call("ListTasks", json!({"contextId": context})).await.unwrap();
            let tasks = listed["tasks"].as_array().unwrap();
            tasks.iter().all(|t| task::state(t) == CANCELED).then_some(())
        })
        .await;
    }
}

async fn reconnect_within_the_grace_keeps_the_task(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let work = "say on it; sleep 3s; chunk done";
    let context = send_and_leave(&script, work, Some("grace=1s"), true).await;
    let task = found(&script, &context).await.unwrap();
    let again = script.stream("SubscribeToTask", json!({"id": task::id(&task)})).await.unwrap();
    let last = again.all().await.pop().unwrap();
    assert_eq!(task::state(&last["statusUpdate"]), COMPLETED, "{last}");
}

async fn question_does_not_count_as_a_disconnect(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let (params, context) = message_in_context("ask \"well?\"", Some("cancel"));
    script.call("SendMessage", params).await.unwrap();
    let (params, streamed) = message_in_context("ask \"well?\"", Some("cancel"));
    script.stream("SendStreamingMessage", params).await.unwrap().all().await;
    // Nothing may happen in this time.
    sleep(Duration::from_millis(300)).await;
    for context in [context, streamed] {
        let task = found(&script, &context).await.unwrap();
        assert_eq!(task::state(&task), task::INPUT_REQUIRED, "{task}");
    }
}

async fn invalid_policy_is_refused_by_its_field(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    for bad in ["stop", "grace=5", "grace=two days", ""] {
        let (params, context) = message_in_context("chunk x", Some(bad));
        let refused = script.call("SendMessage", params).await.unwrap_err();
        assert_eq!(refused.reason().1, "INVALID_PARAMS", "{refused:?}");
        let field = format!("message.metadata[\"{KEY}\"]");
        assert_eq!(refused.fields(), [field.as_str()], "{bad}");
        assert_eq!(found(&script, &context).await, None);
    }
}
