//! Tests of push configurations and deliveries in one process; whole meshes are tested in
//! `tests/mesh`.

use std::sync::Arc;

use faultline_proto::{
    a2a::{
        AgentCapabilities, AgentCard, DeleteTaskPushNotificationConfigRequest as Delete,
        GetTaskPushNotificationConfigRequest as Get,
        ListTaskPushNotificationConfigsRequest as List, SendMessageConfiguration,
        SendMessageRequest, TaskPushNotificationConfig,
    },
    v1::AgentOffer,
};

use crate::webhooks::Push;
use crate::{
    Config,
    calls::caller::Caller,
    error::Error,
    store::{PushKey, Scope},
    testing::{Bench, answering, at_once, principal, refusal_of, request, soon, task_of},
};

/// An agent whose card says whether it notifies.
fn offer(name: &str, push: bool) -> AgentOffer {
    let capabilities = AgentCapabilities { push_notifications: Some(push), ..Default::default() };
    let card = AgentCard { capabilities: Some(capabilities), ..AgentCard::default() };
    AgentOffer { name: name.into(), card: Some(card), ..AgentOffer::default() }
}

async fn bench() -> Bench {
    // Nobody listens where these point to, and nobody asks whether they may.
    let push = Push { allow_private: true, ..Push::default() };
    let config = Config { push, ..Config::default() };
    let offers = vec![offer("loud", true), offer("quiet", false)];
    Bench::start_in(tempfile::tempdir().unwrap(), config, offers).await
}

fn config(task_id: &str) -> TaskPushNotificationConfig {
    TaskPushNotificationConfig {
        id: "a".into(),
        task_id: task_id.into(),
        url: "http://127.0.0.1:9/".into(),
        ..Default::default()
    }
}

fn notifying(request: SendMessageRequest, task_id: &str) -> SendMessageRequest {
    let task_push_notification_config = Some(config(task_id));
    let return_immediately = true;
    let configuration = SendMessageConfiguration {
        task_push_notification_config,
        return_immediately,
        ..Default::default()
    };
    SendMessageRequest { configuration: Some(configuration), ..request }
}

/// The results of the four operations.
async fn tried(bench: &Bench, task_id: &str, caller: &Caller) -> Vec<Result<(), Error>> {
    let (core, task_id, id) = (&bench.core, task_id.to_owned(), "a".to_owned());
    let get = Get { task_id: task_id.clone(), id: id.clone(), ..Get::default() };
    let list = List { task_id: task_id.clone(), ..List::default() };
    let delete = Delete { task_id: task_id.clone(), id, ..Delete::default() };
    vec![
        core.create_push(config(&task_id), caller).await.map(drop),
        core.get_push(get, caller).await.map(drop),
        core.list_push(list, caller).await.map(drop),
        core.delete_push(delete, caller).await,
    ]
}

#[tokio::test]
async fn push_config_of_another_principal_is_not_found() {
    let bench = bench().await;
    let (ann, bob) = (principal("ann"), principal("bob"));
    let task = task_of(bench.send(at_once(request("loud", "hi")), &ann)).await;
    for refused in tried(&bench, &task.id, &bob).await {
        assert!(matches!(refused, Err(Error::TaskNotFound(_))), "{refused:?}");
    }
    let answer = notifying(answering(request("", "hi"), &task.id), &task.id);
    assert_eq!(refusal_of(bench.send(answer, &bob)).await.reason, "TASK_NOT_FOUND");
    for done in tried(&bench, &task.id, &ann).await {
        assert!(done.is_ok(), "{done:?}");
    }
}

#[tokio::test]
async fn agent_without_the_push_capability_rejects_configs() {
    let bench = bench().await;
    let ann = principal("ann");
    let task = task_of(bench.send(at_once(request("quiet", "hi")), &ann)).await;
    for refused in tried(&bench, &task.id, &ann).await {
        assert!(matches!(refused, Err(Error::NoPush(_))), "{refused:?}");
    }
    let sent = bench.send(notifying(request("quiet", "hi"), ""), &ann);
    assert_eq!(refusal_of(sent).await.reason, "PUSH_NOTIFICATION_NOT_SUPPORTED");
}

#[tokio::test]
async fn push_config_in_a_message_belongs_to_its_task() {
    let bench = bench().await;
    let ann = principal("ann");
    let other = task_of(bench.send(at_once(request("loud", "hi")), &ann)).await;
    let foreign = refusal_of(bench.send(notifying(request("loud", "hi"), &other.id), &ann)).await;
    let record = format!("{:?}", foreign.into_record());
    assert!(record.contains("configuration.taskPushNotificationConfig.taskId"), "{record}");
    let task = task_of(bench.send(notifying(request("loud", "hi"), ""), &ann)).await;
    let get = Get { task_id: task.id.clone(), id: "a".into(), ..Get::default() };
    let made = bench.core.get_push(get, &ann).await.unwrap();
    assert_eq!(made, config(&task.id));
}

#[tokio::test]
async fn task_end_during_push_config_creation_is_delivered() {
    let mut bench = bench().await;
    let ann = principal("ann");
    let task = task_of(bench.send(at_once(request("loud", "hi")), &ann)).await;
    let assign = bench.assigned().await;
    bench.hold_writes().await;
    bench.complete(&assign, 1);
    let core = Arc::clone(&bench.core);
    let creating = tokio::spawn(async move { core.create_push(config(&task.id), &ann).await });
    soon(async {
        while bench.core.lock().queue.writes.len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    bench.write_on();
    let made = soon(creating).await.unwrap().unwrap();
    let id = made.task_id.parse().unwrap();
    let stored = bench.core.store.task(id, Scope::default()).await.unwrap().unwrap();
    let row = bench.core.store.push(PushKey { task: id, id: made.id }).await.unwrap().unwrap();
    assert!(stored.task.is_final());
    assert!(!row.done && row.sent < stored.task.seq, "{row:?}");
}
