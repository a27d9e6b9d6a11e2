//! SendMessage and GetTask: answers, questions, contexts, history, parts and extended cards.

use faultline_tests::{
    Binding,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, is_final},
    until,
    wait::SOON,
};
use serde_json::{Value, json};

use crate::{on_every_binding, start};

on_every_binding! {
    message_becomes_a_task_that_can_be_read
    agent_may_answer_with_a_message
    immediate_send_does_not_wait
    question_is_answered_by_a_message_to_its_task
    answer_names_its_question_and_may_decline
    context_is_kept_inferred_and_checked
    history_length_limits_the_history
    task_is_cancelled_once
    failed_task_is_a_successful_call
    parts_of_every_kind_are_returned_unchanged
    known_agent_without_a_worker_fails_as_unavailable
    extended_card_is_served
    active_extensions_are_named_in_the_answer
}

async fn message_becomes_a_task_that_can_be_read(binding: Binding) {
    let up = start(binding).await;
    let sent = up.agent("echo").call("SendMessage", message("hello")).await.unwrap();
    let task = &sent["task"];
    assert_eq!(task::state(task), COMPLETED, "{sent}");
    assert_eq!(task::artifacts(task)["echo"], "hello");
    let stamp = task["status"]["timestamp"].as_str().expect("a status has a time");
    assert!(stamp.ends_with('Z'), "{stamp}");
    let read = up.endpoint.call("GetTask", json!({"id": task["id"]})).await.unwrap();
    assert_eq!(&read, task);
    let own = up.agent("echo").call("GetTask", json!({"id": task["id"]})).await.unwrap();
    assert_eq!(&own, task);
    let other_agent = up.agent("script").call("GetTask", json!({"id": task["id"]})).await;
    assert_eq!(other_agent.unwrap_err().reason().1, "TASK_NOT_FOUND");
    let root = up.endpoint.call("SendMessage", message("to whom it may concern")).await.unwrap();
    assert_eq!(task::artifacts(&root["task"])["echo"], "to whom it may concern");
}

async fn agent_may_answer_with_a_message(binding: Binding) {
    let up = start(binding).await;
    let sent = up.agent("script").call("SendMessage", message("message \"just this\"")).await;
    let sent = sent.unwrap();
    assert!(sent.get("task").is_none(), "{sent}");
    assert_eq!(task::text(&sent["message"]), "just this");
    assert!(!sent["message"]["contextId"].as_str().unwrap_or_default().is_empty(), "{sent}");
}

async fn immediate_send_does_not_wait(binding: Binding) {
    let up = start(binding).await;
    let mut params = message("say on it; sleep 300ms; chunk done");
    params["configuration"] = json!({"returnImmediately": true});
    let sent = up.agent("script").call("SendMessage", params).await.unwrap();
    assert!(!is_final(task::state(&sent["task"])), "{sent}");
    let id = sent["task"]["id"].clone();
    let ended = until("the task has ended", SOON, async || {
        let task = up.endpoint.call("GetTask", json!({"id": id})).await.unwrap();
        is_final(task::state(&task)).then_some(task)
    });
    assert_eq!(task::artifacts(&ended.await)["output"], "done");
}

async fn question_is_answered_by_a_message_to_its_task(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let asked = script.call("SendMessage", message("ask \"who?\"; chunk $answer")).await.unwrap();
    assert_eq!(task::state(&asked["task"]), INPUT_REQUIRED, "{asked}");
    let id = task::id(&asked["task"]).to_owned();
    let done = script.call("SendMessage", answer(&id, "me")).await.unwrap();
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
    assert_eq!(task::artifacts(&done["task"])["output"], "me");
    let late = script.call("SendMessage", answer(&id, "me again")).await.unwrap_err();
    assert_eq!(late.reason().1, "UNSUPPORTED_OPERATION", "{late:?}");
    let unknown = "018f0000-0000-7000-8000-000000000000";
    let nobody = script.call("SendMessage", answer(unknown, "hello?")).await.unwrap_err();
    assert_eq!(nobody.reason().1, "TASK_NOT_FOUND", "{nobody:?}");
    let mut busy = message("sleep 5s");
    busy["configuration"] = json!({"returnImmediately": true});
    let busy = script.call("SendMessage", busy).await.unwrap();
    let refused = script.call("SendMessage", answer(task::id(&busy["task"]), "now?")).await;
    assert_eq!(refused.unwrap_err().reason().1, "UNSUPPORTED_OPERATION");
}

async fn answer_names_its_question_and_may_decline(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let reply = |id: &str, record: Value| {
        let mut reply = answer(id, "no");
        reply["message"]["metadata"] = json!({"faultline.dev/answer": record});
        reply
    };
    let asked = script.call("SendMessage", message("ask \"who?\"; chunk $answer")).await.unwrap();
    let id = task::id(&asked["task"]);
    let metadata = &asked["task"]["status"]["message"]["metadata"];
    assert_eq!(metadata["faultline.dev/interrupt"]["key"], "ask-1", "{asked}");
    let at = "message.metadata.faultline.dev/answer";
    for (record, field) in [
        (json!({"interruptId": "ask-2"}), format!("{at}.interruptId")),
        (json!({"action": "expire"}), format!("{at}.action")),
        (json!("no"), at.to_owned()),
    ] {
        let refused = script.call("SendMessage", reply(id, record)).await.unwrap_err();
        assert_eq!(refused.reason().1, "INVALID_PARAMS", "{refused:?}");
        assert_eq!(refused.fields(), [field.as_str()]);
    }
    let record = json!({"interruptId": "ask-1", "action": "decline"});
    let done = script.call("SendMessage", reply(id, record)).await.unwrap();
    assert_eq!(task::artifacts(&done["task"])["output"], "declined", "{done}");
}

async fn context_is_kept_inferred_and_checked(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let mut params = message("ask \"who?\"");
    params["message"]["contextId"] = "journey-7".into();
    let asked = script.call("SendMessage", params).await.unwrap();
    assert_eq!(asked["task"]["contextId"], "journey-7");
    let id = task::id(&asked["task"]).to_owned();
    let mut wrong = answer(&id, "me");
    wrong["message"]["contextId"] = "another".into();
    let refused = script.call("SendMessage", wrong).await.unwrap_err();
    assert_eq!(refused.reason().1, "INVALID_PARAMS", "{refused:?}");
    assert_eq!(refused.fields(), ["message.contextId"]);
    let done = script.call("SendMessage", answer(&id, "me")).await.unwrap();
    assert_eq!(done["task"]["contextId"], "journey-7", "the context comes from the task");
    let first = script.call("SendMessage", message("chunk x")).await.unwrap();
    let other = script.call("SendMessage", message("chunk x")).await.unwrap();
    let made = first["task"]["contextId"].as_str().expect("a context is created");
    assert!(!made.is_empty() && other["task"]["contextId"] != made, "{first} {other}");
}

async fn history_length_limits_the_history(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let asked = script.call("SendMessage", message("ask \"first?\"; ask \"second?\"")).await;
    let id = task::id(&asked.unwrap()["task"]).to_owned();
    script.call("SendMessage", answer(&id, "one")).await.unwrap();
    let history = async |length: Option<i32>| {
        let mut params = json!({"id": id});
        if let Some(length) = length {
            params["historyLength"] = length.into();
        }
        let task = up.endpoint.call("GetTask", params).await.unwrap();
        task.get("history")
            .map(|h| h.as_array().unwrap().iter().map(task::text).collect::<Vec<_>>())
    };
    assert_eq!(history(Some(0)).await, None, "the field is absent");
    assert_eq!(history(Some(2)).await.unwrap(), ["one", "second?"], "the latest are kept");
    assert_eq!(history(Some(99)).await.unwrap().len(), 4);
    assert_eq!(history(None).await.unwrap().len(), 4);
    let negative = up.endpoint.call("GetTask", json!({"id": id, "historyLength": -1})).await;
    assert_eq!(negative.unwrap_err().fields(), ["historyLength"]);
}

async fn task_is_cancelled_once(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let asked = script.call("SendMessage", message("ask \"who?\"")).await.unwrap();
    let id = asked["task"]["id"].clone();
    let cancelled = up.endpoint.call("CancelTask", json!({"id": id})).await.unwrap();
    assert_eq!(task::state(&cancelled), CANCELED, "{cancelled}");
    let again = up.endpoint.call("CancelTask", json!({"id": id})).await.unwrap_err();
    assert_eq!(again.reason(), ("a2a-protocol.org", "TASK_NOT_CANCELABLE"));
    let nobody = up.endpoint.call("CancelTask", json!({"id": "nobody"})).await.unwrap_err();
    assert_eq!(nobody.reason(), ("a2a-protocol.org", "TASK_NOT_FOUND"));
}

async fn failed_task_is_a_successful_call(binding: Binding) {
    let up = crate::start_with(binding, |config| config.coordinator.retries = 0).await;
    let script = "chunk half; fail RATE_LIMITED code=QUOTA text=\"slow down\"";
    let sent = up.agent("script").call("SendMessage", message(script)).await.unwrap();
    let task = &sent["task"];
    assert_eq!(task::state(task), FAILED, "{sent}");
    assert_eq!(task::artifacts(task)["output"], "half", "the output is kept");
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["reason"], "RATE_LIMITED", "{task}");
    assert_eq!(failure["businessCode"], "QUOTA", "{task}");
}

async fn parts_of_every_kind_are_returned_unchanged(binding: Binding) {
    let up = start(binding).await;
    let parts = json!([
        {"text": "a text", "metadata": {"n": 1.5, "deep": {"list": [null, true, "x"]}}},
        {"raw": "AAEC/w==", "mediaType": "application/octet-stream", "filename": "four.bin"},
        {"url": "https://example.org/file.pdf", "mediaType": "application/pdf"},
        {"data": {"a": [1.0, {"b": null}]}, "mediaType": "application/json"},
        {"data": null}
    ]);
    let mut params = message("");
    params["message"]["parts"] = parts.clone();
    let sent = up.agent("echo").call("SendMessage", params).await.unwrap();
    let echoed = &sent["task"]["artifacts"][0]["parts"];
    assert_eq!(normal(echoed), normal(&parts), "{sent}");
    assert_eq!(normal(&sent["task"]["history"][0]["parts"]), normal(&parts));
}

/// Numbers as numbers: 1 and 1.0 are the same JSON.
fn normal(value: &Value) -> Value {
    match value {
        Value::Number(n) => json!(n.as_f64()),
        Value::Array(all) => all.iter().map(normal).collect(),
        Value::Object(all) => {
            Value::Object(all.iter().map(|(k, v)| (k.clone(), normal(v))).collect())
        }
        other => other.clone(),
    }
}

async fn known_agent_without_a_worker_fails_as_unavailable(binding: Binding) {
    let mut up = crate::start_with(binding, |config| {
        config.coordinator.wait_for_worker_ms = 300;
        config.coordinator.reattach_grace_ms = 300;
    })
    .await;
    // The restricted agents are gone with their worker.
    up.mesh.detach().await.expect("a worker leaves");
    let sent = up.agent("mute").call("SendMessage", message("anybody?")).await.unwrap();
    assert_eq!(task::state(&sent["task"]), FAILED, "{sent}");
    let failure = &sent["task"]["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["reason"], "AGENT_UNAVAILABLE", "{sent}");
    assert_eq!(failure["retryable"], true, "{sent}");
    let never = up.agent("never-seen").call("SendMessage", message("anybody?")).await;
    assert_eq!(never.unwrap_err().reason(), ("faultline.dev", "AGENT_NOT_FOUND"));
}

async fn extended_card_is_served(binding: Binding) {
    let up = start(binding).await;
    let card = up.agent("script").call("GetExtendedAgentCard", json!({})).await.unwrap();
    assert_eq!(card["name"], "script", "{card}");
    let skills = card["skills"].as_array().expect("skills").len();
    assert!(skills > 1, "the extended card has more skills: {card}");
    assert!(card["supportedInterfaces"][0]["url"].as_str().unwrap().ends_with("/agents/script"));
    let none = up.agent("mute").call("GetExtendedAgentCard", json!({})).await.unwrap_err();
    assert_eq!(none.reason(), ("a2a-protocol.org", "UNSUPPORTED_OPERATION"));
}

async fn active_extensions_are_named_in_the_answer(binding: Binding) {
    let up = start(binding).await;
    let known = "https://faultline.dev/a2a/ext/failure/v1";
    let declared = format!("https://example.org/unknown/v1, {known}");
    let endpoint = up.agent("echo").header("a2a-extensions", declared);
    let answer = endpoint.exchange("SendMessage", message("x")).await.unwrap();
    assert_eq!(answer.headers["a2a-extensions"], known, "{answer:?}");
    let events = endpoint.stream("SendStreamingMessage", message("x")).await.unwrap();
    assert_eq!(events.headers()["a2a-extensions"], known);
    let plain = up.agent("echo").exchange("SendMessage", message("x")).await.unwrap();
    assert!(!plain.headers.contains_key("a2a-extensions"), "no extension was requested: {plain:?}");
}
