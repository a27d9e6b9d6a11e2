//! The operations of the official Rust client, on every binding.

use std::time::Duration;

use a2a::*;
use futures::StreamExt;

use crate::{
    Check, Checked, Client, Clients, answer, artifacts, at_once, card_of, checks, collect, ensure,
    env, get, message, send, text, until, webhook,
};

pub const CHECKS: &[(&str, Check)] = checks! {
    "card" => card,
    "extended card" => extended_card,
    "send" => send_and_wait,
    "bare message" => bare_message,
    "return immediately" => return_immediately,
    "stream" => stream,
    "failed task" => failed_task,
    "get" => get_one,
    "list" => list,
    "cancel" => cancel,
    "subscribe" => subscribe,
    "input required" => input_required,
    "push" => push,
    "push configs" => push_configs,
    "required extension" => required_extension,
    "bearer token" => bearer_token,
};

async fn card(clients: Clients) -> Checked {
    let card = card_of("echo").await?;
    let listed = card.supported_interfaces.iter().any(|i| i.protocol_binding == clients.binding());
    ensure!(listed, "{:?}", card.supported_interfaces);
    ensure!(card.capabilities.streaming == Some(true), "{:?}", card.capabilities);
    Ok(())
}

async fn extended_card(clients: Clients) -> Checked {
    let (shown, client) = (card_of("script").await?, clients.of("script").await?);
    let request = GetExtendedAgentCardRequest { tenant: None };
    let extended = client.get_extended_agent_card(&request).await.map_err(|e| e.to_string())?;
    ensure!(extended.skills.len() > shown.skills.len(), "{:?}", extended.skills);
    Ok(())
}

async fn send_and_wait(clients: Clients) -> Checked {
    let task = send(&clients.of("echo").await?, &message("hello")).await?;
    ensure!(task.status.state == TaskState::Completed, "{task:?}");
    ensure!(artifacts(&task) == ["hello"], "{task:?}");
    Ok(())
}

async fn bare_message(clients: Clients) -> Checked {
    let sent = clients.of("script").await?.send_message(&message("message hi")).await;
    let text = match &sent {
        Ok(SendMessageResponse::Message(message)) => text(&message.parts),
        _ => String::new(),
    };
    ensure!(text == "hi", "{sent:?}");
    Ok(())
}

async fn return_immediately(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let task = send(&client, &at_once("sleep 300ms; artifact done yes")).await?;
    ensure!(!task.status.state.is_terminal(), "{task:?}");
    let task = until(&client, &task.id, TaskState::Completed).await?;
    ensure!(artifacts(&task) == ["yes"], "{task:?}");
    Ok(())
}

async fn stream(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let request = message("say thinking; chunk \"one \"; sleep 100ms; chunk two");
    let events = collect(client.send_streaming_message(&request).await).await;
    let events = events.map_err(|e| e.to_string())?;
    ensure!(matches!(events.first(), Some(StreamResponse::Task(_))), "{events:?}");
    ensure!(written(&events) == "one two", "{events:?}");
    ensure!(completes(&events), "{events:?}");
    Ok(())
}

fn written(events: &[StreamResponse]) -> String {
    let mut written = String::new();
    for event in events {
        if let StreamResponse::ArtifactUpdate(update) = event {
            if update.append != Some(true) {
                written.clear();
            }
            written.push_str(&text(&update.artifact.parts));
        }
    }
    written
}

fn completes(events: &[StreamResponse]) -> bool {
    let last = events.last();
    matches!(last, Some(StreamResponse::StatusUpdate(u)) if u.status.state == TaskState::Completed)
}

async fn failed_task(clients: Clients) -> Checked {
    let request = message("fail RATE_LIMITED text=\"slow down\"");
    let task = send(&clients.of("script").await?, &request).await?;
    ensure!(task.status.state == TaskState::Failed, "{task:?}");
    let failure = task.metadata.as_ref().and_then(|m| m.get("faultline.dev/failure"));
    ensure!(failure.is_some_and(|f| f["reason"] == "RATE_LIMITED"), "{task:?}");
    Ok(())
}

async fn get_one(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let sent = send(&client, &message("say one; artifact a b")).await?;
    let task = get(&client, &sent.id).await?;
    ensure!(task.artifacts == sent.artifacts && task.context_id == sent.context_id, "{task:?}");
    let request = GetTaskRequest { id: sent.id, history_length: Some(1), tenant: None };
    let short = client.get_task(&request).await.map_err(|e| e.to_string())?;
    ensure!(short.history.as_ref().is_some_and(|h| h.len() == 1), "{short:?}");
    Ok(())
}

async fn list(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let (context, mut ids) = (uuid::Uuid::new_v4().to_string(), Vec::new());
    for script in ["artifact a b", "artifact a b", "fail UNAVAILABLE"] {
        let mut request = message(script);
        request.message.context_id = Some(context.clone());
        ids.insert(0, send(&client, &request).await?.id);
    }
    let all = ListTasksRequest {
        context_id: Some(context),
        status: None,
        page_size: Some(2),
        page_token: None,
        history_length: None,
        status_timestamp_after: None,
        include_artifacts: None,
        tenant: None,
    };
    let first = client.list_tasks(&all).await.map_err(|e| e.to_string())?;
    ensure!((first.total_size, first.tasks.len()) == (3, 2), "{first:?}");
    let rest = ListTasksRequest { page_token: Some(first.next_page_token), ..all.clone() };
    let rest = client.list_tasks(&rest).await.map_err(|e| e.to_string())?;
    ensure!(rest.next_page_token.is_empty(), "{rest:?}");
    let listed: Vec<_> = first.tasks.iter().chain(&rest.tasks).map(|t| t.id.clone()).collect();
    ensure!(listed == ids, "{listed:?}, not {ids:?}");
    let done = ListTasksRequest {
        status: Some(TaskState::Completed),
        include_artifacts: Some(true),
        ..all
    };
    let done = client.list_tasks(&done).await.map_err(|e| e.to_string())?;
    ensure!(done.tasks.len() == 2 && done.tasks.iter().all(|t| artifacts(t) == ["b"]), "{done:?}");
    Ok(())
}

async fn cancel(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let task = send(&client, &at_once("sleep 1m")).await?;
    let request = CancelTaskRequest { id: task.id, metadata: None, tenant: None };
    let task = client.cancel_task(&request).await.map_err(|e| e.to_string())?;
    ensure!(task.status.state == TaskState::Canceled, "{task:?}");
    Ok(())
}

/// A task that waits for input.
async fn asking(client: &Client, request: SendMessageRequest) -> Result<Task, String> {
    let task = send(client, &request).await?;
    until(client, &task.id, TaskState::InputRequired).await
}

async fn subscribe(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let script = at_once("ask \"go?\"; chunk one; sleep 50ms; chunk two");
    let task = asking(&client, script).await?;
    let request = SubscribeToTaskRequest { id: task.id.clone(), tenant: None };
    let mut stream = client.subscribe_to_task(&request).await.map_err(|e| e.to_string())?;
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        if events.is_empty() {
            send(&client, &answer(&task, "go")).await?;
        }
        events.push(event.map_err(|e| e.to_string())?);
    }
    ensure!(matches!(&events[0], StreamResponse::Task(t) if t.id == task.id), "{events:?}");
    ensure!(written(&events) == "onetwo" && completes(&events), "{events:?}");
    Ok(())
}

async fn input_required(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let script = message("ask \"which?\"; artifact choice \"got $answer\"");
    let asked = send(&client, &script).await?;
    ensure!(asked.status.state == TaskState::InputRequired, "{asked:?}");
    let done = send(&client, &answer(&asked, "green")).await?;
    ensure!(done.status.state == TaskState::Completed, "{done:?}");
    ensure!(artifacts(&done) == ["got green"], "{done:?}");
    Ok(())
}

fn config(task: &str, url: &str) -> TaskPushNotificationConfig {
    TaskPushNotificationConfig {
        url: url.to_owned(),
        id: None,
        task_id: task.to_owned(),
        token: Some("a-token".to_owned()),
        authentication: Some(AuthenticationInfo {
            scheme: "Bearer".to_owned(),
            credentials: Some("secret".to_owned()),
        }),
        tenant: None,
    }
}

async fn push(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let (url, received) = webhook::listen().await.map_err(|e| e.to_string())?;
    let task = asking(&client, at_once("ask \"go?\"; artifact a b")).await?;
    let made = client.create_push_config(&config(&task.id, &url)).await;
    made.map_err(|e| e.to_string())?;
    send(&client, &answer(&task, "go")).await?;
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let received = received.lock().expect("no thread panics while it holds the lock");
        let Some((_, last)) = received.last() else { continue };
        if last["statusUpdate"]["status"]["state"] != "TASK_STATE_COMPLETED" {
            continue;
        }
        for (head, _) in received.iter() {
            ensure!(head.contains("authorization: bearer secret"), "{head}");
            ensure!(head.contains("x-a2a-notification-token: a-token"), "{head}");
        }
        return Ok(());
    }
}

async fn push_configs(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let task = send(&client, &at_once("sleep 1m")).await?;
    let made = client.create_push_config(&config(&task.id, "http://127.0.0.1:9/hook")).await;
    let made = made.map_err(|e| e.to_string())?;
    let id = made.id.clone().unwrap_or_default();
    ensure!(!id.is_empty() && made.task_id == task.id, "{made:?}");
    let one = GetTaskPushNotificationConfigRequest {
        task_id: task.id.clone(),
        id: id.clone(),
        tenant: None,
    };
    let found = client.get_push_config(&one).await.map_err(|e| e.to_string())?;
    ensure!(found.url == made.url, "{found:?}");
    let all = ListTaskPushNotificationConfigsRequest {
        task_id: task.id.clone(),
        page_size: None,
        page_token: None,
        tenant: None,
    };
    let listed = client.list_push_configs(&all).await.map_err(|e| e.to_string())?;
    ensure!(listed.configs.len() == 1, "{listed:?}");
    let gone =
        DeleteTaskPushNotificationConfigRequest { task_id: task.id.clone(), id, tenant: None };
    client.delete_push_config(&gone).await.map_err(|e| e.to_string())?;
    let listed = client.list_push_configs(&all).await.map_err(|e| e.to_string())?;
    ensure!(listed.configs.is_empty(), "{listed:?}");
    let request = CancelTaskRequest { id: task.id, metadata: None, tenant: None };
    client.cancel_task(&request).await.map_err(|e| e.to_string())?;
    Ok(())
}

async fn required_extension(clients: Clients) -> Checked {
    let extension = "https://example.org/ext/strict/v1";
    let client = clients.with("strict", SVC_PARAM_EXTENSIONS, extension).await?;
    let task = send(&client, &message("hello")).await?;
    ensure!(task.status.state == TaskState::Completed, "{task:?}");
    Ok(())
}

async fn bearer_token(clients: Clients) -> Checked {
    let client = clients.of_locked("echo", &env("FAULTLINE_TOKEN")?).await?;
    let task = send(&client, &message("hello")).await?;
    ensure!(task.status.state == TaskState::Completed, "{task:?}");
    Ok(())
}
