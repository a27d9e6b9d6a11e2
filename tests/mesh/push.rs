//! Push notifications: order, retries with backoff, hanging webhooks, and the SSRF guard for the
//! URLs of webhooks.

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

/// A mesh that may call webhooks on loopback and retries quickly.
async fn start() -> Running {
    start_with(|config| {
        config.coordinator.push.allow_private = true;
        config.coordinator.push.pause_ms = 20;
    })
    .await
}

/// The parameters of an immediate send with a push configuration.
fn notifying(text: &str, config: Value) -> Value {
    let mut params = message(text);
    params["configuration"] =
        json!({"returnImmediately": true, "taskPushNotificationConfig": config});
    params
}

async fn send(rpc: &Rpc, text: &str, config: Value) -> String {
    let sent = rpc.call("SendMessage", notifying(text, config)).await;
    task::id(&sent.expect("the message is accepted")["task"]).to_owned()
}

async fn create(rpc: &Rpc, id: &str, mut config: Value) -> Result<Value, Value> {
    config["taskId"] = id.into();
    rpc.call("CreateTaskPushNotificationConfig", config).await
}

/// Every status of a task, from its replayed stream.
async fn statuses(rpc: &Rpc, id: &str) -> Vec<Value> {
    let all = rpc.header("last-event-id", 0).stream("SubscribeToTask", json!({"id": id})).await;
    let frames = all.expect("an ended task shows its events").all().await;
    let updates = frames.into_iter().map(|frame| frame.body["statusUpdate"].clone());
    updates.filter(|update| !update.is_null()).collect()
}

async fn until_final_accepted(webhook: &Webhook) {
    until("the webhook accepts the final status", SOON, async || {
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
async fn statuses_are_sent_in_order_with_the_configured_headers() {
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
    // Events after an answer belong to the trace of the answering caller.
    traced.call("SendMessage", answer(&id, "two")).await.expect("the answer is accepted");
    until_final_accepted(&webhook).await;
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
async fn failing_webhook_is_retried_until_it_accepts_each_status() {
    let webhook = Webhook::answering(|nth| Some(if nth < 3 { 503 } else { 200 })).await;
    let up = start().await;
    let id = send(&up.script, "say one; say two", json!({"url": webhook.url()})).await;
    until_final_accepted(&webhook).await;
    assert_eq!(webhook.accepted(), statuses(&up.script, &id).await);
    let bodies: Vec<_> = webhook.received().into_iter().map(|n| n.body).collect();
    assert!(
        bodies[..4].iter().all(|body| *body == bodies[0]),
        "no notification overtakes another: {bodies:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_and_webhook_receive_the_same_statuses() {
    let up = start().await;
    let webhook = Webhook::start().await;
    let params = notifying("say one; chunk x; fail ABORTED", json!({"url": webhook.url()}));
    let stream = up.script.stream("SendStreamingMessage", params).await.expect("the stream opens");
    let frames = stream.all().await.into_iter().map(|frame| frame.body["statusUpdate"].clone());
    until_final_accepted(&webhook).await;
    let streamed: Vec<_> = frames.filter(|update| !update.is_null()).collect();
    assert_eq!(webhook.accepted(), streamed);
}

#[tokio::test(flavor = "multi_thread")]
async fn push_configuration_turns_a_message_answer_into_a_task() {
    let up = start().await;
    let webhook = Webhook::start().await;
    let bare = up
        .script
        .call("SendMessage", message("message hello"))
        .await
        .expect("the answer is accepted");
    assert_eq!(task::text(&bare["message"]), "hello");
    let id = send(&up.script, "message hello", json!({"url": webhook.url()})).await;
    until_final_accepted(&webhook).await;
    assert_eq!(webhook.states(), [WORKING, COMPLETED]);
    assert_eq!(webhook.accepted(), statuses(&up.script, &id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_is_abandoned_after_the_time_limit_with_a_log_line() {
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
    let given_up = "the delivery to the webhook was abandoned";
    until("the log reports the end of the retries", SOON, async || {
        cluster.coordinators[0].log().find(given_up)
    })
    .await;
    is_up.store(true, SeqCst);
    create(&rpc, &id, json!({"url": other.url()}))
        .await
        .expect("a second configuration is accepted");
    rpc.call("SendMessage", answer(&id, "yes")).await.expect("the answer is accepted");
    until_final_accepted(&other).await;
    assert_eq!(failing.accepted(), [] as [Value; 0]);
    assert!(failing.received().len() > 1, "the webhook was retried");
    let log = cluster.coordinators[0].log();
    assert_eq!(log.matches(given_up).count(), 1, "{log}");
    assert!(log.contains(&id) && !log.contains("canary"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_drain_does_not_wait_for_webhooks() {
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
    until_final_accepted(&webhook).await;
    assert_eq!(
        webhook.accepted(),
        statuses(&rpc, &id).await,
        "the restarted coordinator sends the rest"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_that_answers_410_gets_no_more_notifications() {
    let webhook = Webhook::answering(|_| Some(410)).await;
    let other = Webhook::start().await;
    let up = start().await;
    let id = send(&up.script, "ask \"go on?\"; say one", json!({"url": webhook.url()})).await;
    create(&up.script, &id, json!({"url": other.url()}))
        .await
        .expect("a second configuration is accepted");
    until("the first is sent", SOON, async || webhook.received().first().cloned()).await;
    up.script.call("SendMessage", answer(&id, "yes")).await.expect("the answer is accepted");
    until_final_accepted(&other).await;
    assert_eq!(webhook.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_crash_loses_no_notification() {
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
    // Notifications that are due while the webhook is down are neither lost nor reordered.
    is_up.store(false, SeqCst);
    rpc.call("SendMessage", answer(&id, "yes")).await.expect("the answer is accepted");
    cluster.coordinators[0].kill().await;
    is_up.store(true, SeqCst);
    cluster.coordinators[0].restart().await;
    asked(2).await;
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    until("the answer is accepted", SOON, async || {
        rpc.try_call("SendMessage", answer(&id, "yes")).await.ok()?.ok()
    })
    .await;
    until_final_accepted(&webhook).await;
    let mut taken = webhook.accepted();
    taken.dedup();
    assert_eq!(
        taken,
        statuses(&rpc, &id).await,
        "all in order; consecutive duplicates are allowed"
    );
    let log = cluster.coordinators[0].log();
    assert!(!log.contains("canary"), "URLs may hold secrets: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_webhook_delays_neither_the_task_nor_other_webhooks() {
    let hanging = Webhook::answering(|_| None).await;
    let working = Webhook::start().await;
    let up = start().await;
    let id = send(&up.script, "ask \"go on?\"; say one", json!({"url": hanging.url()})).await;
    create(&up.script, &id, json!({"url": working.url()}))
        .await
        .expect("a second configuration is accepted");
    until("the webhook hangs", SOON, async || hanging.received().first().cloned()).await;
    let patient = up.script.within(Duration::from_secs(5));
    let done =
        patient.call("SendMessage", answer(&id, "yes")).await.expect("the answer is accepted");
    assert_eq!(task::state(&done["task"]), COMPLETED);
    until_final_accepted(&working).await;
    assert_eq!(hanging.received().len(), 1, "later notifications wait behind the hanging one");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_at_internal_addresses_are_refused_unless_allowed() {
    let up = start_with(|config| config.coordinator.push.allow_private = false).await;
    let task = up.script.send("ask \"?\"").await;
    let inside = ["http://127.0.0.1:9/", "http://localhost:9/", "http://[::1]/", "http://10.1.2.3"];
    // Internal addresses in IPv4-mapped and NAT64 form.
    let mapped =
        ["http://[::ffff:127.0.0.1]:9/", "http://[::ffff:a9fe:a9fe]/", "http://[64:ff9b::7f00:1]/"];
    let others = ["http://169.254.169.254/", "ftp://example.org/", "x"];
    for url in inside.into_iter().chain(mapped).chain(others) {
        let refused = create(&up.script, task::id(&task), json!({"url": url})).await;
        let error = refused.expect_err("the URL is refused");
        assert_eq!((error["code"].as_i64(), field(&error)), (Some(-32602), "url"), "{url}");
        let sent = up.script.call("SendMessage", notifying("say x", json!({"url": url}))).await;
        let error = sent.expect_err("the URL is refused inside a message too");
        assert_eq!(field(&error), "configuration.taskPushNotificationConfig.url", "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_configuration_receives_nothing_and_deletion_is_idempotent() {
    let deleted = Webhook::start().await;
    let kept = Webhook::start().await;
    let up = start().await;
    let id = send(&up.script, "ask \"go on?\"; say one", json!({"url": deleted.url()})).await;
    until("the task asks", SOON, async || {
        deleted.states().iter().any(|s| s == INPUT_REQUIRED).then_some(())
    })
    .await;
    create(&up.script, &id, json!({"url": kept.url()}))
        .await
        .expect("a second configuration is accepted");
    let list = up.script.call("ListTaskPushNotificationConfigs", json!({"taskId": id})).await;
    let configs = list.expect("configurations are listed")["configs"].clone();
    let first = configs.as_array().expect("a list").iter().find(|c| c["url"] == deleted.url());
    let name = json!({"taskId": id, "id": first.expect("the first is listed")["id"]});
    for _ in 0..2 {
        let gone = up.script.call("DeleteTaskPushNotificationConfig", name.clone()).await;
        assert!(gone.is_ok(), "{gone:?}");
        let missing = up.script.call("GetTaskPushNotificationConfig", name.clone()).await;
        assert_eq!(missing.expect_err("the configuration is deleted")["code"], -32001);
    }
    let before = deleted.received().len();
    up.script.call("SendMessage", answer(&id, "yes")).await.expect("the answer is accepted");
    until_final_accepted(&kept).await;
    assert_eq!(deleted.received().len(), before);
    let foreign = json!({"taskId": "00000000-0000-7000-8000-000000000000", "id": "x"});
    let unknown = up.script.call("DeleteTaskPushNotificationConfig", foreign).await;
    assert_eq!(unknown.expect_err("the task is unknown")["code"], -32001);
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_are_read_paged_replaced_and_bounded() {
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
    assert_eq!(
        create(&up.script, &id, whole.clone()).await.expect("the configuration is replaced"),
        whole
    );
    let name = json!({"taskId": id, "id": "c00"});
    let read = up.script.call("GetTaskPushNotificationConfig", name).await;
    assert_eq!(read.expect("the configuration exists"), whole);
    for n in 1..16 {
        let config = json!({"url": old.url(), "id": format!("c{n:02}")});
        create(&up.script, &id, config).await.expect("the limit is not reached");
    }
    let full = create(&up.script, &id, json!({"url": old.url()})).await;
    assert_eq!(full.expect_err("sixteen is the limit")["code"], -32602);
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
    up.script.call("SendMessage", answer(&id, "yes")).await.expect("the answer is accepted");
    until_final_accepted(&new).await;
    assert_eq!(new.states(), [WORKING, WORKING, COMPLETED], "only later statuses");
    let late = create(&up.script, &id, json!({"url": new.url(), "id": "c01"})).await;
    assert!(late.is_ok(), "an ended task accepts a configuration: {late:?}");
}
