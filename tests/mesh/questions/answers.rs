//! Questions of an agent: the waiting task, its answer, and the slot, which is free meanwhile.

use faultline_tests::{
    rpc::{answer, message},
    task::{self, AUTH_REQUIRED, COMPLETED, Fold, INPUT_REQUIRED, WORKING},
    until,
    wait::SOON,
};
use serde_json::json;

use crate::{start, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn question_is_asked_and_its_answer_used() {
    let up = start().await;
    let task = up.script.send("chunk \"hello \"; ask \"Your name?\"; chunk $answer").await;
    let id = task::id(&task);
    assert_eq!(task::state(&task), INPUT_REQUIRED);
    let question = &task["status"]["message"];
    assert_eq!(task::text(question), "Your name?");
    let interrupt = &question["metadata"]["faultline.dev/interrupt"];
    assert_eq!((&interrupt["kind"], &interrupt["agent"]), (&json!("KIND_INPUT"), &json!("script")));
    assert_eq!(up.rpc.inspect(id).await["interrupts"][0]["prompt"], "Your name?");
    assert_eq!(up.rpc.task(id).await, task);
    let ended = up.script.call("SendMessage", answer(id, "Ada")).await.unwrap();
    let ended = &ended["task"];
    assert_eq!(task::state(ended), COMPLETED);
    assert_eq!(task::artifacts(ended)["output"], "hello Ada");
    let texts: Vec<_> = ended["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(texts[1..], ["Your name?", "Ada"]);
    assert!(up.rpc.inspect(id).await.get("interrupts").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_ends_at_a_question_and_the_answer_opens_the_next() {
    let up = start().await;
    let script = "chunk a; ask \"and?\"; chunk $answer; sleep 10ms; chunk c";
    let asked = up.script.stream("SendStreamingMessage", message(script)).await.unwrap();
    let before = asked.all().await;
    let last = &before[before.len() - 1].body["statusUpdate"];
    assert_eq!(task::state(last), INPUT_REQUIRED);
    let id = task::id(&before[0].body["task"]).to_owned();
    let answered = up.script.stream("SendStreamingMessage", answer(&id, "b")).await.unwrap();
    let after = answered.all().await;
    assert_eq!(after[0].body["task"]["id"], id.as_str(), "the task comes first again");
    let fold = Fold::of(&after);
    assert_eq!((fold.artifacts["output"].as_str(), fold.finals()), ("abc", vec![COMPLETED]));
    assert!(before.last().unwrap().id <= after[0].id, "event numbers continue");
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_request_names_a_url_and_keeps_the_stream_open() {
    let up = start().await;
    let script = "auth https://login.example/x; chunk in";
    let mut stream = up.script.stream("SendStreamingMessage", message(script)).await.unwrap();
    let mut frames = Vec::new();
    let id = loop {
        let frame = stream.next().await.unwrap().expect("the stream is open");
        frames.push(frame.clone());
        let update = &frame.body["statusUpdate"];
        if update["status"]["state"] == AUTH_REQUIRED {
            let interrupt = &update["status"]["message"]["metadata"]["faultline.dev/interrupt"];
            assert_eq!(interrupt["kind"], "KIND_AUTH_URL", "{update}");
            assert_eq!(interrupt["url"], "https://login.example/x", "{update}");
            break update["taskId"].as_str().unwrap().to_owned();
        }
    };
    assert_eq!(task::state(&up.rpc.task(&id).await), AUTH_REQUIRED);
    let done = up.script.call("SendMessage", answer(&id, "done")).await.unwrap();
    assert_eq!(task::state(&done["task"]), COMPLETED);
    frames.extend(stream.all().await);
    assert_eq!(Fold::of(&frames).finals(), [COMPLETED]);
}

#[tokio::test(flavor = "multi_thread")]
async fn message_to_a_task_without_a_question_is_refused() {
    let up = start().await;
    let refused = async |id: &str, code: i32| {
        for method in ["SendMessage", "SendStreamingMessage"] {
            let error = up.script.call(method, answer(id, "x")).await.unwrap_err();
            assert_eq!(error["code"], code, "{method}: {error}");
        }
    };
    let done = up.script.send("chunk a").await;
    refused(task::id(&done), -32004).await;
    let working = up.script.send_immediately("say busy; sleep 60s").await;
    refused(task::id(&working), -32004).await;
    assert_eq!(task::state(&up.rpc.task(task::id(&working)).await), WORKING);
    let waiting = up.script.send("ask \"well?\"").await;
    let mut other_context = answer(task::id(&waiting), "x");
    other_context["message"]["contextId"] = "other".into();
    let error = up.script.call("SendMessage", other_context).await.unwrap_err();
    assert_eq!(error["code"], -32602, "{error}");
    assert!(error["message"].as_str().unwrap().contains("contextId"), "{error}");
    let other = up.rpc.agent("echo").call("SendMessage", answer(task::id(&waiting), "x")).await;
    assert_eq!(other.unwrap_err()["code"], -32001, "the task belongs to another agent");
    let stored = up.rpc.task(task::id(&waiting)).await;
    assert_eq!(stored, waiting, "the task is unchanged");
    let mut right = answer(task::id(&waiting), "x");
    right["message"]["contextId"] = waiting["contextId"].clone();
    let ended = up.script.call("SendMessage", right).await.unwrap();
    assert_eq!(task::state(&ended["task"]), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_answers_are_accepted_once() {
    let up = start().await;
    let task = up.script.send("ask \"which?\"; chunk $answer; sleep 50ms").await;
    let id = task::id(&task);
    let texts = ["a", "b", "c", "d"];
    let answers = texts.map(|text| up.script.call("SendMessage", answer(id, text)));
    let answers = futures::future::join_all(answers).await;
    let taken: Vec<_> = texts.iter().zip(&answers).filter(|(_, a)| a.is_ok()).collect();
    assert_eq!(taken.len(), 1, "{answers:?}");
    let refused = answers.iter().filter_map(|a| a.as_ref().err());
    refused.for_each(|error| assert_eq!(error["code"], -32004, "{error}"));
    let stored = up.rpc.task(id).await;
    assert_eq!(task::artifacts(&stored)["output"], *taken[0].0);
    assert_eq!(stored["history"].as_array().map(Vec::len), Some(3), "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_is_held_while_computing_and_free_while_waiting() {
    let up = start_with(|config| config.worker.slots = 1).await;
    let used = async || {
        let workers = up.rpc.mesh("Workers", json!({})).await;
        workers["workers"][0]["used"].as_u64().unwrap_or(0)
    };
    let asking = up.script.send("chunk a; ask \"well?\"; chunk $answer; sleep 200ms").await;
    let id = task::id(&asking);
    assert_eq!(used().await, 0);
    assert_eq!(task::state(&up.script.send("chunk b").await), COMPLETED);
    // While one task computes, the other waits in the queue, and the answered task goes first.
    let running = up.script.send_immediately("say busy; sleep 300ms").await;
    assert_eq!(used().await, 1);
    let queued = up.script.call("SendMessage", message("chunk late"));
    let answered = up.script.call("SendMessage", answer(id, "c"));
    let (queued, answered) = tokio::join!(queued, answered);
    assert_eq!(task::artifacts(&answered.unwrap()["task"])["output"], "ac");
    assert_eq!(task::state(&queued.unwrap()["task"]), COMPLETED);
    assert_eq!(task::state(&up.rpc.task(task::id(&running)).await), COMPLETED);
    until("the slot is free", SOON, async || (used().await == 0).then_some(())).await;
}
