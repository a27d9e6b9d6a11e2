//! Push notifications, to webhooks that work, fail, hang and lie about where they are.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use faultline_tests::{
    Plan, Rpc,
    rpc::{answer, message},
    task::{self, COMPLETED, INPUT_REQUIRED, WORKING},
    until,
    wait::SOON,
    webhook::Webhook,
};
use serde_json::{Value, json};

use crate::{Running, start_with};

/// A mesh that may call webhooks on this machine and does not wait long between attempts.
async fn start() -> Running {
    start_with(|config| {
        config.coordinator.push.allow_private = true;
        config.coordinator.push.pause_ms = 20;
    })
    .await
}

/// The parameters of a send that returns at once, with a configuration in it.
fn notifying(text: &str, config: Value) -> Value {
    let mut params = message(text);
    params["configuration"] =
        json!({"returnImmediately": true, "taskPushNotificationConfig": config});
    params
}

async fn send(rpc: &Rpc, text: &str, config: Value) -> String {
    let sent = rpc.call("SendMessage", notifying(text, config)).await;
    task::id(&sent.expect("the message is taken")["task"]).to_owned()
}

async fn create(rpc: &Rpc, id: &str, mut config: Value) -> Result<Value, Value> {
    config["taskId"] = id.into();
    rpc.call("CreateTaskPushNotificationConfig", config).await
}

/// Every status that the task ever had, from the task itself.
async fn statuses(rpc: &Rpc, id: &str) -> Vec<Value> {
    let all = rpc.header("last-event-id", 0).stream("SubscribeToTask", json!({"id": id})).await;
    let frames = all.expect("an ended task shows its events").all().await;
    let updates = frames.into_iter().map(|frame| frame.body["statusUpdate"].clone());
    updates.filter(|update| !update.is_null()).collect()
}

async fn took_the_end(webhook: &Webhook) {
    until("the webhook takes the end", SOON, async || {
        webhook.states().iter().any(|state| task::is_final(state)).then_some(())
    })
    .await;
}

fn field(error: &Value) -> &str {
    let details = error["data"].as_array().into_iter().flatten();
    let mut violations = details.filter_map(|d| d["fieldViolations"][0]["field"].as_str());
    violations.next().unwrap_or_else(|| panic!("no field is named: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_status_is_sent_in_order_and_as_configured() {
    let up = start().await;
    let webhook = Webhook::start().await;
    let script = "say one; chunk x; sleep 20ms; ask \"and?\"; say $answer";
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traced = up.script.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    let authentication = json!({"scheme": "Bearer", "credentials": "s3cret"});
    let config = json!({"url": webhook.url(), "token": "mine", "authentication": authentication});
    let id = send(&traced, script, config).await;
    until("the task asks", SOON, async || {
        webhook.states().iter().any(|s| s == INPUT_REQUIRED).then_some(())
    })
    .await;
    // What follows an answer belongs to the trace of whoever answered.
    traced.call("SendMessage", answer(&id, "two")).await.expect("the answer is taken");
    took_the_end(&webhook).await;
    assert_eq!(webhook.accepted(), statuses(&up.script, &id).await);
    let expected = [WORKING, WORKING, INPUT_REQUIRED, WORKING, WORKING, COMPLETED];
    assert_eq!(webhook.states(), expected);
    for notification in webhook.received() {
        let header = |name: &str| notification.headers[name].to_str().expect("text").to_owned();
        assert_eq!(header("content-type"), "application/a2a+json");
        assert_eq!(header("authorization"), "Bearer s3cret");
        assert_eq!(header("x-a2a-notification-token"), "mine");
        assert_eq!(header("a2a-version"), "1.0");
        assert!(header("traceparent").contains(trace), "{}", header("traceparent"));
        assert_eq!(notification.body["statusUpdate"]["taskId"], id.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_fails_is_tried_again_until_it_takes_each() {
    let webhook = Webhook::answering(|nth| Some(if nth < 3 { 503 } else { 200 })).await;
    let up = start().await;
    let id = send(&up.script, "say one; say two", json!({"url": webhook.url()})).await;
    took_the_end(&webhook).await;
    assert_eq!(webhook.accepted(), statuses(&up.script, &id).await);
    let bodies: Vec<_> = webhook.received().into_iter().map(|n| n.body).collect();
    assert!(bodies[..4].iter().all(|body| *body == bodies[0]), "none overtakes: {bodies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_and_a_webhook_are_told_the_same() {
    let up = start().await;
    let webhook = Webhook::start().await;
    let params = notifying("say one; chunk x; fail ABORTED", json!({"url": webhook.url()}));
    let stream = up.script.stream("SendStreamingMessage", params).await.expect("it streams");
    let frames = stream.all().await.into_iter().map(|frame| frame.body["statusUpdate"].clone());
    took_the_end(&webhook).await;
    let streamed: Vec<_> = frames.filter(|update| !update.is_null()).collect();
    assert_eq!(webhook.accepted(), streamed);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_to_be_notified_of_a_task_is_given_one() {
    let up = start().await;
    let webhook = Webhook::start().await;
    let bare = up.script.call("SendMessage", message("message hello")).await.expect("it is taken");
    assert_eq!(task::text(&bare["message"]), "hello");
    let id = send(&up.script, "message hello", json!({"url": webhook.url()})).await;
    took_the_end(&webhook).await;
    assert_eq!(webhook.states(), [WORKING, COMPLETED]);
    assert_eq!(webhook.accepted(), statuses(&up.script, &id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_fails_for_too_long_is_given_up_and_the_log_says_so() {
    let is_up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_up);
    let failing =
        Webhook::answering(move |_| Some(if answers.load(SeqCst) { 200 } else { 500 })).await;
    let other = Webhook::start().await;
    let plan = Plan::default().with("push.allow_private = true").with("push.pause_ms = 20");
    let cluster = plan.with("push.give_up_ms = 300").start().await;
    let rpc = cluster.rpc().agent("script");
    let authentication = json!({"scheme": "Bearer", "credentials": "canary"});
    let config = json!({"url": failing.url(), "token": "canary", "authentication": authentication});
    let id = send(&rpc, "ask \"go on?\"; say one", config).await;
    let given_up = "the webhook is given up";
    until("it is given up", SOON, async || cluster.coordinators[0].log().find(given_up)).await;
    is_up.store(true, SeqCst);
    create(&rpc, &id, json!({"url": other.url()})).await.expect("another one is taken");
    rpc.call("SendMessage", answer(&id, "yes")).await.expect("the answer is taken");
    took_the_end(&other).await;
    assert_eq!(failing.accepted(), [] as [Value; 0]);
    assert!(failing.received().len() > 1, "it was tried more than once");
    let log = cluster.coordinators[0].log();
    assert_eq!(log.matches(given_up).count(), 1, "{log}");
    assert!(log.contains(&id) && !log.contains("canary"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_leaves_without_waiting_for_webhooks() {
    let is_up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_up);
    let webhook = Webhook::answering(move |_| answers.load(SeqCst).then_some(200)).await;
    let mut cluster = Plan::default().with("push.allow_private = true").start().await;
    let rpc = cluster.rpc().agent("script");
    let id = send(&rpc, "say one", json!({"url": webhook.url()})).await;
    until("the webhook hangs", SOON, async || webhook.received().first().cloned()).await;
    cluster.coordinators[0].terminate().await;
    let left = cluster.coordinators[0].exit_within(Duration::from_secs(5)).await;
    assert!(left.is_some_and(|status| status.success()), "{}", cluster.coordinators[0].log());
    is_up.store(true, SeqCst);
    cluster.coordinators[0].restart().await;
    took_the_end(&webhook).await;
    assert_eq!(webhook.accepted(), statuses(&rpc, &id).await, "the next one takes over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_gone_is_left_alone() {
    let webhook = Webhook::answering(|_| Some(410)).await;
    let other = Webhook::start().await;
    let up = start().await;
    let id = send(&up.script, "ask \"go on?\"; say one", json!({"url": webhook.url()})).await;
    create(&up.script, &id, json!({"url": other.url()})).await.expect("a second one is taken");
    until("the first is sent", SOON, async || webhook.received().first().cloned()).await;
    up.script.call("SendMessage", answer(&id, "yes")).await.expect("the answer is taken");
    took_the_end(&other).await;
    assert_eq!(webhook.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_dies_owes_nothing_when_it_is_back() {
    let is_up = Arc::new(AtomicBool::new(true));
    let answers = Arc::clone(&is_up);
    let webhook = Webhook::answering(move |_| Some(if answers.load(SeqCst) { 200 } else { 503 }));
    let webhook = webhook.await;
    let plan = Plan::default().with("push.allow_private = true").with("push.pause_ms = 20");
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let script = "say one; ask \"first?\"; say two; ask \"second?\"; say three";
    let id = send(&rpc, script, json!({"url": webhook.url()})).await;
    let asked = async |count: usize| {
        until("the webhook sees the question", SOON, async || {
            let asked = webhook.states().iter().filter(|s| *s == INPUT_REQUIRED).count();
            (asked >= count).then_some(())
        })
        .await
    };
    asked(1).await;
    // What is owed while the webhook is down is neither lost nor overtaken.
    is_up.store(false, SeqCst);
    rpc.call("SendMessage", answer(&id, "yes")).await.expect("the answer is taken");
    cluster.coordinators[0].kill().await;
    is_up.store(true, SeqCst);
    cluster.coordinators[0].restart().await;
    asked(2).await;
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    until("the answer is taken", SOON, async || {
        rpc.try_call("SendMessage", answer(&id, "yes")).await.ok()?.ok()
    })
    .await;
    took_the_end(&webhook).await;
    let mut taken = webhook.accepted();
    taken.dedup();
    assert_eq!(taken, statuses(&rpc, &id).await, "all, in order, some perhaps twice in a row");
    let log = cluster.coordinators[0].log();
    assert!(!log.contains("canary"), "URLs may hold secrets: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_hangs_delays_neither_the_task_nor_another_webhook() {
    let hanging = Webhook::answering(|_| None).await;
    let working = Webhook::start().await;
    let up = start().await;
    let id = send(&up.script, "ask \"go on?\"; say one", json!({"url": hanging.url()})).await;
    create(&up.script, &id, json!({"url": working.url()})).await.expect("a second one is taken");
    until("the webhook hangs", SOON, async || hanging.received().first().cloned()).await;
    let patient = up.script.within(Duration::from_secs(5));
    let done = patient.call("SendMessage", answer(&id, "yes")).await.expect("it is taken");
    assert_eq!(task::state(&done["task"]), COMPLETED);
    took_the_end(&working).await;
    assert_eq!(hanging.received().len(), 1, "in order: nothing is sent past the one that hangs");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_on_the_public_internet_is_refused_unless_allowed() {
    let up = start_with(|config| config.coordinator.push.allow_private = false).await;
    let task = up.script.send("ask \"?\"").await;
    let inside = ["http://127.0.0.1:9/", "http://localhost:9/", "http://[::1]/", "http://10.1.2.3"];
    // The same machine, written as an address of the new internet.
    let mapped =
        ["http://[::ffff:127.0.0.1]:9/", "http://[::ffff:a9fe:a9fe]/", "http://[64:ff9b::7f00:1]/"];
    let others = ["http://169.254.169.254/", "ftp://example.org/", "x"];
    for url in inside.into_iter().chain(mapped).chain(others) {
        let refused = create(&up.script, task::id(&task), json!({"url": url})).await;
        let error = refused.expect_err("it is refused");
        assert_eq!((error["code"].as_i64(), field(&error)), (Some(-32602), "url"), "{url}");
        let sent = up.script.call("SendMessage", notifying("say x", json!({"url": url}))).await;
        let error = sent.expect_err("it is refused inside a message too");
        assert_eq!(field(&error), "configuration.taskPushNotificationConfig.url", "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_configuration_is_sent_nothing_and_may_be_deleted_again() {
    let deleted = Webhook::start().await;
    let kept = Webhook::start().await;
    let up = start().await;
    let id = send(&up.script, "ask \"go on?\"; say one", json!({"url": deleted.url()})).await;
    until("the task asks", SOON, async || {
        deleted.states().iter().any(|s| s == INPUT_REQUIRED).then_some(())
    })
    .await;
    create(&up.script, &id, json!({"url": kept.url()})).await.expect("a second one is taken");
    let list = up.script.call("ListTaskPushNotificationConfigs", json!({"taskId": id})).await;
    let configs = list.expect("they are listed")["configs"].clone();
    let first = configs.as_array().expect("a list").iter().find(|c| c["url"] == deleted.url());
    let name = json!({"taskId": id, "id": first.expect("the first is listed")["id"]});
    for _ in 0..2 {
        let gone = up.script.call("DeleteTaskPushNotificationConfig", name.clone()).await;
        assert!(gone.is_ok(), "{gone:?}");
        let missing = up.script.call("GetTaskPushNotificationConfig", name.clone()).await;
        assert_eq!(missing.expect_err("it is gone")["code"], -32001);
    }
    let before = deleted.received().len();
    up.script.call("SendMessage", answer(&id, "yes")).await.expect("the answer is taken");
    took_the_end(&kept).await;
    assert_eq!(deleted.received().len(), before);
    let foreign = json!({"taskId": "00000000-0000-7000-8000-000000000000", "id": "x"});
    let unknown = up.script.call("DeleteTaskPushNotificationConfig", foreign).await;
    assert_eq!(unknown.expect_err("there is no such task")["code"], -32001);
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_read_back_and_are_paged_replaced_and_bounded() {
    let old = Webhook::start().await;
    let new = Webhook::start().await;
    let up = start().await;
    let id =
        send(&up.script, "ask \"go on?\"; say one", json!({"url": old.url(), "id": "c00"})).await;
    until("the task asks", SOON, async || (old.states().len() == 2).then_some(())).await;
    let whole = json!({
        "url": new.url(), "id": "c00", "taskId": id, "token": "t",
        "authentication": {"scheme": "Basic", "credentials": "dTpw"},
    });
    assert_eq!(create(&up.script, &id, whole.clone()).await.expect("it replaces"), whole);
    let name = json!({"taskId": id, "id": "c00"});
    let read = up.script.call("GetTaskPushNotificationConfig", name).await;
    assert_eq!(read.expect("it is there"), whole);
    for n in 1..16 {
        let config = json!({"url": old.url(), "id": format!("c{n:02}")});
        create(&up.script, &id, config).await.expect("there is a place");
    }
    let full = create(&up.script, &id, json!({"url": old.url()})).await;
    assert_eq!(full.expect_err("sixteen are enough")["code"], -32602);
    let mut ids = Vec::new();
    let mut token = String::new();
    loop {
        let page = json!({"taskId": id, "pageSize": 5, "pageToken": token});
        let page = up.script.call("ListTaskPushNotificationConfigs", page).await.expect("a page");
        ids.extend(page["configs"].as_array().expect("a list").iter().map(|c| c["id"].clone()));
        token = page["nextPageToken"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, (0..16).map(|n| json!(format!("c{n:02}"))).collect::<Vec<_>>());
    up.script.call("SendMessage", answer(&id, "yes")).await.expect("the answer is taken");
    took_the_end(&new).await;
    assert_eq!(new.states(), [WORKING, WORKING, COMPLETED], "only what came after");
    let late = create(&up.script, &id, json!({"url": new.url(), "id": "c01"})).await;
    assert!(late.is_ok(), "an ended task has nothing to send, but may have one: {late:?}");
}
