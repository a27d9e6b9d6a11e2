//! Idempotency keys: a repeated send or answer with the same key has one effect.

use faultline_tests::{
    Binding,
    rpc::{answer, message},
    task::{self, COMPLETED},
};
use serde_json::json;

use crate::{on_every_binding, start};

on_every_binding! {
    repeated_send_is_one_task
    concurrent_sends_with_one_key_are_one_task
    key_belongs_to_one_body
    sends_without_a_key_are_separate_tasks
    repeated_answer_has_one_effect
}

async fn repeated_send_is_one_task(binding: Binding) {
    let up = start(binding).await;
    let endpoint = up.agent("script").header("idempotency-key", "k-1");
    let params = message("chunk once");
    let first = endpoint.call("SendMessage", params.clone()).await.unwrap();
    let again = endpoint.call("SendMessage", params.clone()).await.unwrap();
    assert_eq!(first, again);
    let streamed = endpoint.stream("SendStreamingMessage", params).await.unwrap().all().await;
    assert_eq!(streamed[0]["task"]["id"], first["task"]["id"], "{streamed:?}");
    let list = up.endpoint.call("ListTasks", json!({})).await.unwrap();
    assert_eq!(list["totalSize"], 1, "{list}");
    // The key may also be in the metadata of the message.
    let mut inside = message("chunk twice");
    inside["message"]["metadata"] = json!({"faultline.dev/idempotencyKey": "k-2"});
    let script = up.agent("script");
    let first = script.call("SendMessage", inside.clone()).await.unwrap();
    let again = script.call("SendMessage", inside).await.unwrap();
    assert_eq!(first["task"]["id"], again["task"]["id"]);
    let bare = up.agent("script").header("idempotency-key", "k-3");
    let params = message("message hi");
    let first = bare.call("SendMessage", params.clone()).await.unwrap();
    let again = bare.call("SendMessage", params).await.unwrap();
    assert!(first["message"].is_object(), "{first}");
    assert_eq!(first, again, "the stored message is returned although no task exists");
}

async fn concurrent_sends_with_one_key_are_one_task(binding: Binding) {
    let up = start(binding).await;
    let endpoint = up.agent("script").header("idempotency-key", "at once");
    let params = message("sleep 100ms; chunk once");
    let calls = (0..8).map(|_| endpoint.call("SendMessage", params.clone()));
    let all = futures::future::join_all(calls).await;
    let ids: Vec<_> = all.into_iter().map(|sent| sent.unwrap()["task"]["id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let list = up.endpoint.call("ListTasks", json!({})).await.unwrap();
    assert_eq!(list["totalSize"], 1, "{list}");
}

async fn key_belongs_to_one_body(binding: Binding) {
    let up = start(binding).await;
    let endpoint = up.agent("script").header("idempotency-key", "k");
    endpoint.call("SendMessage", message("chunk one")).await.unwrap();
    let other = endpoint.call("SendMessage", message("chunk two")).await.unwrap_err();
    assert_eq!(other.reason(), ("faultline.dev", "ALREADY_EXISTS"), "{other:?}");
    // A key is scoped to its agent.
    let echo = up.agent("echo").header("idempotency-key", "k");
    let sent = echo.call("SendMessage", message("three")).await.unwrap();
    assert_eq!(task::state(&sent["task"]), COMPLETED);
    let long = up.agent("echo").header("idempotency-key", "k".repeat(300));
    let refused = long.call("SendMessage", message("four")).await.unwrap_err();
    assert_eq!(refused.fields(), ["Idempotency-Key"], "{refused:?}");
}

async fn sends_without_a_key_are_separate_tasks(binding: Binding) {
    let up = start(binding).await;
    let params = message("the same message id");
    let first = up.agent("echo").call("SendMessage", params.clone()).await.unwrap();
    let again = up.agent("echo").call("SendMessage", params).await.unwrap();
    assert_ne!(first["task"]["id"], again["task"]["id"]);
}

async fn repeated_answer_has_one_effect(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let asked = script.call("SendMessage", message("ask \"who?\"; chunk $answer")).await.unwrap();
    let id = task::id(&asked["task"]).to_owned();
    let params = answer(&id, "me");
    let endpoint = script.header("idempotency-key", "answer");
    let first = endpoint.call("SendMessage", params.clone()).await.unwrap();
    let again = endpoint.call("SendMessage", params).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(task::artifacts(&again["task"])["output"], "me");
}
