//! The errors of the official Rust client, each by its code.

use a2a::*;

use crate::{Check, Checked, Clients, answer, checks, collect, ensure, env, message, send};

pub const CHECKS: &[(&str, Check)] = checks! {
    "TaskNotFound" => task_not_found,
    "TaskNotCancelable" => task_not_cancelable,
    "UnsupportedOperation" => unsupported_operation,
    "capability not offered" => unsupported_capability,
    "PushNotificationNotSupported" => push_not_supported,
    "ContentTypeNotSupported" => content_type_not_supported,
    "ExtendedAgentCardNotConfigured" => extended_card_not_configured,
    "ExtensionSupportRequired" => extension_required,
    "VersionNotSupported" => version_not_supported,
    "InvalidParams" => invalid_params,
    "unauthenticated" => unauthenticated,
    "forbidden" => forbidden,
};

const NOBODY: &str = "01a1e2ea-0000-7000-8000-000000000000";

/// Fails unless the call returns this code.
fn fails<T: std::fmt::Debug>(code: i32, answer: Result<T, A2AError>) -> Checked {
    match answer {
        Err(error) if error.code == code => Ok(()),
        other => Err(format!("not {} ({code}): {other:?}", error_reason(code))),
    }
}

fn cancelling(id: &str) -> CancelTaskRequest {
    CancelTaskRequest { id: id.to_owned(), metadata: None, tenant: None }
}

async fn task_not_found(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let one = GetTaskRequest { id: NOBODY.to_owned(), history_length: None, tenant: None };
    fails(error_code::TASK_NOT_FOUND, client.get_task(&one).await)?;
    fails(error_code::TASK_NOT_FOUND, client.cancel_task(&cancelling(NOBODY)).await)?;
    let followed = SubscribeToTaskRequest { id: NOBODY.to_owned(), tenant: None };
    let followed = collect(client.subscribe_to_task(&followed).await).await;
    fails(error_code::TASK_NOT_FOUND, followed)
}

async fn task_not_cancelable(clients: Clients) -> Checked {
    let client = clients.of("echo").await?;
    let task = send(&client, &message("hello")).await?;
    let again = client.cancel_task(&cancelling(&task.id)).await;
    fails(error_code::TASK_NOT_CANCELABLE, again)
}

async fn unsupported_operation(clients: Clients) -> Checked {
    let client = clients.of("echo").await?;
    let task = send(&client, &message("hello")).await?;
    let more = client.send_message(&answer(&task, "x")).await;
    fails(error_code::UNSUPPORTED_OPERATION, more)
}

/// Calls that the card does not offer.
async fn unsupported_capability(clients: Clients) -> Checked {
    let plain = clients.of("plain").await?;
    let streamed = collect(plain.send_streaming_message(&message("hello")).await).await;
    fails(error_code::UNSUPPORTED_OPERATION, streamed)?;
    let card = plain.get_extended_agent_card(&GetExtendedAgentCardRequest { tenant: None }).await;
    fails(error_code::UNSUPPORTED_OPERATION, card)
}

async fn push_not_supported(clients: Clients) -> Checked {
    let client = clients.of("plain").await?;
    let task = send(&client, &message("hello")).await?;
    let config = TaskPushNotificationConfig {
        url: "http://127.0.0.1:9/hook".to_owned(),
        id: None,
        task_id: task.id,
        token: None,
        authentication: None,
        tenant: None,
    };
    let made = client.create_push_config(&config).await;
    fails(error_code::PUSH_NOTIFICATION_NOT_SUPPORTED, made)
}

async fn content_type_not_supported(clients: Clients) -> Checked {
    let mut request = message("");
    request.message.parts = vec![Part::raw(vec![0x89, 0x50]).with_media_type("image/png")];
    let sent = clients.of("script").await?.send_message(&request).await;
    fails(error_code::CONTENT_TYPE_NOT_SUPPORTED, sent)
}

async fn extended_card_not_configured(clients: Clients) -> Checked {
    let client = clients.of("promises").await?;
    let card = client.get_extended_agent_card(&GetExtendedAgentCardRequest { tenant: None }).await;
    fails(error_code::EXTENDED_CARD_NOT_CONFIGURED, card)
}

async fn extension_required(clients: Clients) -> Checked {
    let sent = clients.of("strict").await?.send_message(&message("hello")).await;
    fails(error_code::EXTENSION_SUPPORT_REQUIRED, sent)
}

async fn version_not_supported(clients: Clients) -> Checked {
    let client = clients.with("echo", SVC_PARAM_VERSION, "2.0").await?;
    fails(error_code::VERSION_NOT_SUPPORTED, client.send_message(&message("hello")).await)
}

async fn invalid_params(clients: Clients) -> Checked {
    let client = clients.of("script").await?;
    let mut request = message("");
    request.message.parts.clear();
    let sent = client.send_message(&request).await;
    ensure!(sent.as_ref().is_err_and(|e| e.message.contains("parts")), "{sent:?}");
    fails(error_code::INVALID_PARAMS, sent)
}

/// A2A has no code for these errors: the code of the mesh where the binding has numbers, else the
/// general code of the client.
fn refused<T: std::fmt::Debug>(
    clients: Clients,
    code: i32,
    answer: Result<T, A2AError>,
) -> Checked {
    match clients.binding() {
        TRANSPORT_PROTOCOL_JSONRPC => fails(code, answer),
        _ => fails(error_code::INTERNAL_ERROR, answer),
    }
}

async fn unauthenticated(clients: Clients) -> Checked {
    let client = clients.of_locked("echo", "wrong").await?;
    refused(clients, -31016, client.send_message(&message("hello")).await)
}

async fn forbidden(clients: Clients) -> Checked {
    let client = clients.of_locked("script", &env("FAULTLINE_TOKEN")?).await?;
    refused(clients, -31007, client.send_message(&message("say hi")).await)
}
