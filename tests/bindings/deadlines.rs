//! Deadlines of tasks, by header, metadata and `grpc-timeout`, and client timeouts.

use faultline_tests::{
    Binding,
    rpc::message,
    task::{self, COMPLETED, FAILED},
    until,
    wait::SOON,
};
use serde_json::{Value, json};

use crate::{on_every_binding, start};

on_every_binding! {
    task_ends_at_the_deadline_of_its_caller
    invalid_deadline_is_refused_by_its_field
    client_timeout_names_the_task_that_goes_on
}

const KEY: &str = "faultline.dev/timeoutMs";
const HEADER: &str = "faultline-timeout-ms";

fn with(place: &str, value: Value) -> Value {
    let mut params = message("sleep 60s");
    match place {
        "message" => params["message"]["metadata"] = json!({ KEY: value }),
        _ => params["metadata"] = json!({ KEY: value }),
    }
    params
}

async fn task_ends_at_the_deadline_of_its_caller(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let timed_out = |sent: Value| {
        let task = &sent["task"];
        assert_eq!(task::state(task), FAILED, "{task}");
        let failure = &task["metadata"]["faultline.dev/failure"];
        assert_eq!(failure["reason"], "TASK_TIMEOUT", "{failure}");
        assert_eq!(failure["origin"]["agent"], "script", "{failure}");
        assert_eq!(failure["retryAfter"], "10s", "{failure}");
    };
    let hasty = script.header(HEADER, 100);
    timed_out(hasty.call("SendMessage", message("sleep 60s")).await.unwrap());
    for (place, value) in [("message", json!(100)), ("request", json!("100"))] {
        timed_out(script.call("SendMessage", with(place, value)).await.unwrap());
    }
    // The smallest deadline counts.
    timed_out(
        script
            .header(HEADER, 60_000)
            .call("SendMessage", with("message", json!(100)))
            .await
            .unwrap(),
    );
    let mut events = hasty.stream("SendStreamingMessage", message("sleep 60s")).await.unwrap();
    let mut last = Value::Null;
    while let Some(event) = events.next().await.unwrap() {
        last = event;
    }
    assert_eq!(task::state(&last["statusUpdate"]), FAILED, "{last}");
    if binding == Binding::Grpc {
        // A blocking call limits its task, which ends before the call does.
        let waits = script.header("grpc-timeout", "1S");
        timed_out(waits.call("SendMessage", message("sleep 60s")).await.unwrap());
        let mut params = message("sleep 1500ms; chunk x");
        params["configuration"] = json!({"returnImmediately": true});
        let sent = waits.call("SendMessage", params).await.unwrap();
        let id = task::id(&sent["task"]).to_owned();
        until("a task of an immediate send goes on", SOON, async || {
            let task = script.call("GetTask", json!({"id": id})).await.unwrap();
            (task::state(&task) == COMPLETED).then_some(())
        })
        .await;
    }
}

async fn invalid_deadline_is_refused_by_its_field(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    for bad in ["0", "-5", "soon", "1.5", "99999999999999"] {
        let refused = script.header(HEADER, bad).call("SendMessage", message("x")).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason().1, "INVALID_PARAMS", "{refused:?}");
        assert_eq!(refused.fields(), ["Faultline-Timeout-Ms"], "{bad}");
    }
    for bad in [json!(0), json!(-5), json!(1.5), json!("1s"), json!([1]), json!(null)] {
        let refused = script.call("SendMessage", with("message", bad.clone())).await.unwrap_err();
        assert_eq!(refused.reason().1, "INVALID_PARAMS", "{refused:?}");
        let field = format!("message.metadata[\"{KEY}\"]");
        assert_eq!(refused.fields(), [field.as_str()], "{bad}");
        let refused = script.stream("SendStreamingMessage", with("request", bad)).await;
        let field = format!("metadata[\"{KEY}\"]");
        assert_eq!(refused.err().unwrap().fields(), [field.as_str()]);
    }
    let listed = script.call("ListTasks", json!({})).await.unwrap();
    assert_eq!(listed["tasks"].as_array().map_or(0, Vec::len), 0, "nothing was started");
}

async fn client_timeout_names_the_task_that_goes_on(binding: Binding) {
    let up = start(binding).await;
    let script = up.agent("script");
    let hasty = script.header("prefer", "wait=1");
    let refused = hasty.call("SendMessage", message("sleep 1500ms; chunk x")).await.unwrap_err();
    assert_eq!(refused.reason().1, "DEADLINE_EXCEEDED", "{refused:?}");
    match binding {
        Binding::JsonRpc => assert_eq!(refused.jsonrpc, Some(-31004)),
        Binding::Rest => assert_eq!(refused.http, Some(504)),
        Binding::Grpc => assert_eq!(refused.status.as_deref(), Some("DEADLINE_EXCEEDED")),
    }
    let id = refused.details[0]["metadata"]["taskId"].as_str().expect("the failure names the task");
    assert!(refused.message.contains("GetTask"), "the message has the remedy: {}", refused.message);
    until("the task has ended", SOON, async || {
        let task = script.call("GetTask", json!({"id": id})).await.unwrap();
        (task::state(&task) == COMPLETED).then_some(())
    })
    .await;
}
