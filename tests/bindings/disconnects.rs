//! Callers that go away: by real connections, on each binding, in the middle of a blocking send and
//! of a stream.

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
    a_task_goes_on_without_its_caller
    a_task_is_cancelled_with_its_caller_if_that_was_wished
    whoever_comes_back_within_the_grace_saves_the_task
    a_question_is_no_reason_to_cancel
    a_policy_that_cannot_be_is_refused_by_its_name
}

const KEY: &str = "faultline.dev/onDisconnect";

/// A message in a context of its own, by which its task is found.
fn said(script: &str, policy: Option<&str>) -> (Value, String) {
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

async fn reaches(endpoint: &A2aEndpoint, context: &str, state: &str) -> Value {
    until(&format!("the task is {state}"), SOON, async || {
        found(endpoint, context).await.filter(|task| task::state(task) == state)
    })
    .await
}

/// Sends, waits until the task works, and hangs up.
async fn send_and_leave(
    endpoint: &A2aEndpoint,
    script: &str,
    policy: Option<&str>,
    streams: bool,
) -> String {
    let (params, context) = said(script, policy);
    if streams {
        let mut events = endpoint.stream("SendStreamingMessage", params).await.unwrap();
        events.next().await.unwrap().expect("a first event");
        reaches(endpoint, &context, WORKING).await;
    } else {
        let sending = endpoint.call("SendMessage", params);
        tokio::select! {
            sent = sending => panic!("it should still be at work: {sent:?}"),
            _ = reaches(endpoint, &context, WORKING) => {}
        }
    }
    context
}

async fn a_task_goes_on_without_its_caller(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    for (streams, policy) in [(false, None), (true, None), (false, Some("detach"))] {
        let work = "say on it; sleep 700ms; chunk done";
        let context = send_and_leave(&script, work, policy, streams).await;
        reaches(&script, &context, COMPLETED).await;
    }
}

async fn a_task_is_cancelled_with_its_caller_if_that_was_wished(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    for (streams, policy) in [(false, "cancel"), (true, "cancel"), (false, "grace=100ms")] {
        let work = "delegate script { say on it; sleep 60s }";
        let context = send_and_leave(&script, work, Some(policy), streams).await;
        let task = reaches(&script, &context, CANCELED).await;
        let failure = &task["metadata"]["faultline.dev/failure"];
        let said = failure["publicMessage"].as_str().unwrap_or_default();
        assert!(
            ["cancelled because its caller went away", "the calling task ended"].contains(&said)
        );
        assert_eq!(failure["errorType"], "cancelled", "{failure}");
        until("nothing of it is left", SOON, async || {
            let listed = script.call("ListTasks", json!({"contextId": context})).await.unwrap();
            let tasks = listed["tasks"].as_array().unwrap();
            tasks.iter().all(|t| task::state(t) == CANCELED).then_some(())
        })
        .await;
    }
}

async fn whoever_comes_back_within_the_grace_saves_the_task(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let work = "say on it; sleep 3s; chunk done";
    let context = send_and_leave(&script, work, Some("grace=1s"), true).await;
    let task = found(&script, &context).await.unwrap();
    let again = script.stream("SubscribeToTask", json!({"id": task::id(&task)})).await.unwrap();
    let last = again.all().await.pop().unwrap();
    assert_eq!(task::state(&last["statusUpdate"]), COMPLETED, "{last}");
}

async fn a_question_is_no_reason_to_cancel(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let (params, context) = said("ask \"well?\"", Some("cancel"));
    script.call("SendMessage", params).await.unwrap();
    let (params, streamed) = said("ask \"well?\"", Some("cancel"));
    script.stream("SendStreamingMessage", params).await.unwrap().all().await;
    // What is waited for is that nothing happens.
    sleep(Duration::from_millis(300)).await;
    for context in [context, streamed] {
        let task = found(&script, &context).await.unwrap();
        assert_eq!(task::state(&task), task::INPUT_REQUIRED, "{task}");
    }
}

async fn a_policy_that_cannot_be_is_refused_by_its_name(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    for bad in ["stop", "grace=5", "grace=two days", ""] {
        let (params, context) = said("chunk x", Some(bad));
        let refused = script.call("SendMessage", params).await.unwrap_err();
        assert_eq!(refused.reason().1, "INVALID_PARAMS", "{refused:?}");
        let field = format!("message.metadata[\"{KEY}\"]");
        assert_eq!(refused.fields(), [field.as_str()], "{bad}");
        assert_eq!(found(&script, &context).await, None);
    }
}
