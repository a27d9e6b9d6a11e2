//! The eleven operations of A2A, each of them once. A binding gives the request of one; here it is
//! addressed, checked and turned into a call to the coordinator. It knows no binding.

use std::time::Duration;

use faultline_chassis::{deadline::parse_grpc_timeout, telemetry::Calling};
use faultline_proto::{
    Failure,
    a2a::{
        ListTasksResponse, SendMessageRequest, SendMessageResponse, Task,
        send_message_response::Payload,
    },
    json::{self, ProtoJson},
    v1::{Caller, Subscribe, call, reply},
    wish,
};
use prost_types::{Struct, value::Kind};

use crate::{
    auth::Scope, card, extensions, http::Exchange, link::Answer, links::FrameStream, validate,
};

const LAST_EVENT_ID: &str = "last-event-id";
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// The same as metadata, for clients that cannot set headers.
const IDEMPOTENCY_METADATA: &str = "faultline.dev/idempotencyKey";
/// The longest wait a caller may ask for.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
    CreateTaskPushNotificationConfig,
    GetTaskPushNotificationConfig,
    ListTaskPushNotificationConfigs,
    GetExtendedAgentCard,
    DeleteTaskPushNotificationConfig,
}

impl Operation {
    pub(crate) const ALL: [Operation; 11] = [
        Operation::SendMessage,
        Operation::SendStreamingMessage,
        Operation::GetTask,
        Operation::ListTasks,
        Operation::CancelTask,
        Operation::SubscribeToTask,
        Operation::CreateTaskPushNotificationConfig,
        Operation::GetTaskPushNotificationConfig,
        Operation::ListTaskPushNotificationConfigs,
        Operation::GetExtendedAgentCard,
        Operation::DeleteTaskPushNotificationConfig,
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::SendMessage => "SendMessage",
            Operation::SendStreamingMessage => "SendStreamingMessage",
            Operation::GetTask => "GetTask",
            Operation::ListTasks => "ListTasks",
            Operation::CancelTask => "CancelTask",
            Operation::SubscribeToTask => "SubscribeToTask",
            Operation::CreateTaskPushNotificationConfig => "CreateTaskPushNotificationConfig",
            Operation::GetTaskPushNotificationConfig => "GetTaskPushNotificationConfig",
            Operation::ListTaskPushNotificationConfigs => "ListTaskPushNotificationConfigs",
            Operation::GetExtendedAgentCard => "GetExtendedAgentCard",
            Operation::DeleteTaskPushNotificationConfig => "DeleteTaskPushNotificationConfig",
        }
    }

    /// What a caller must be allowed to do.
    pub(crate) fn scope(self) -> Scope {
        match self {
            Operation::SendMessage
            | Operation::SendStreamingMessage
            | Operation::CancelTask
            // Also to read them: they hold what a webhook is to be told as a secret.
            | Operation::CreateTaskPushNotificationConfig
            | Operation::GetTaskPushNotificationConfig
            | Operation::ListTaskPushNotificationConfigs
            | Operation::DeleteTaskPushNotificationConfig => Scope::Send,
            Operation::GetTask
            | Operation::ListTasks
            | Operation::SubscribeToTask
            | Operation::GetExtendedAgentCard => Scope::Read,
        }
    }

    /// Whether many answers follow, or one.
    pub(crate) fn streams(self) -> bool {
        matches!(self, Operation::SendStreamingMessage | Operation::SubscribeToTask)
    }

    /// The call that a request in JSON asks for, not checked yet.
    pub(crate) fn read(self, json: &str) -> Result<call::Body, Failure> {
        Ok(match self {
            Operation::SendMessage => call::Body::Send(parse(json)?),
            Operation::SendStreamingMessage => call::Body::Stream(parse(json)?),
            Operation::GetTask => call::Body::Get(parse(json)?),
            Operation::ListTasks => call::Body::List(parse(json)?),
            Operation::CancelTask => call::Body::Cancel(parse(json)?),
            Operation::SubscribeToTask => {
                call::Body::Subscribe(Subscribe { request: Some(parse(json)?), after: None })
            }
            Operation::CreateTaskPushNotificationConfig => call::Body::CreatePush(parse(json)?),
            Operation::GetTaskPushNotificationConfig => call::Body::GetPush(parse(json)?),
            Operation::ListTaskPushNotificationConfigs => call::Body::ListPush(parse(json)?),
            Operation::GetExtendedAgentCard => call::Body::ExtendedCard(parse(json)?),
            Operation::DeleteTaskPushNotificationConfig => call::Body::DeletePush(parse(json)?),
        })
    }
}

fn parse<T: ProtoJson>(json: &str) -> Result<T, Failure> {
    json::from_str(json).map_err(|error| validate::not_the_message(&error))
}

/// A call that may be sent on.
pub(crate) struct Admitted {
    calling: Calling,
    caller: Caller,
    call: call::Body,
}

/// Lets a call through, whichever binding it came by: the caller may do this, and all is right
/// with it that can be known without the coordinator. It is addressed to the agent of its path, if
/// that names one.
pub(crate) fn admit(
    exchange: &Exchange,
    operation: Operation,
    agent: Option<&str>,
    mut call: call::Body,
) -> Result<Admitted, Failure> {
    exchange.may(operation.scope())?;
    resume(exchange, &mut call)?;
    validate::call(&call)?;
    if let Some(tenant) = tenant(&mut call) {
        address(tenant, agent)?;
    }
    let mut caller = exchange.caller(patience(exchange, &call));
    if let call::Body::Send(request) | call::Body::Stream(request) = &call {
        caller.idempotency_key = idempotency_key(exchange, request)?;
        caller.task_timeout_ms = task_timeout_ms(exchange, request, caller.timeout_ms)?;
        let grace = wish::on_disconnect(request)?;
        caller.cancel_after_ms = grace.map(|grace| grace.as_millis() as u32);
    }
    caller.extensions = extensions::declared(&exchange.head.headers)?;
    let calling = exchange.gateway.calling(operation.name(), &exchange.trace);
    caller.traceparent = calling.context().to_string();
    calling.context().state().clone_into(&mut caller.tracestate);
    Ok(Admitted { calling, caller, call })
}

impl Admitted {
    /// Whether it is a list that shows what its tasks made.
    pub(crate) fn lists_artifacts(&self) -> bool {
        matches!(&self.call, call::Body::List(request) if request.include_artifacts == Some(true))
    }
}

/// Sends a call that has one answer. Only the gateway knows where an agent is reached, so it has
/// to complete an extended card.
pub(crate) async fn once(exchange: &Exchange, admitted: Admitted) -> Result<Answer, Failure> {
    let Admitted { mut calling, caller, call } = admitted;
    let agent = match &call {
        call::Body::ExtendedCard(request) => Some(request.tenant.clone()),
        _ => None,
    };
    let asked = exchange.gateway.links.ask(caller, call).await;
    let task = asked.as_ref().map(|answer| task(&answer.body));
    exchange.span.with(|span| {
        if let Ok(Some(task)) = task {
            span.task(task);
        }
    });
    calling.ended(task);
    let mut answer = asked?;
    if let reply::Body::Card(card) = &mut answer.body {
        let agent = agent.filter(|agent| !agent.is_empty());
        card::complete(exchange, agent.as_deref(), card);
    }
    Ok(answer)
}

/// The task that an answer is, if it is one.
fn task(answer: &reply::Body) -> Option<&Task> {
    match answer {
        reply::Body::Task(task) => Some(task),
        reply::Body::Sent(SendMessageResponse { payload: Some(Payload::Task(task)) }) => Some(task),
        _ => None,
    }
}

/// Opens a call that has many answers.
pub(crate) async fn stream(
    exchange: &Exchange,
    admitted: Admitted,
) -> Result<FrameStream, Failure> {
    let Admitted { mut calling, caller, call } = admitted;
    match exchange.gateway.links.stream(caller, call).await {
        Ok(frames) => Ok(frames.traced(calling, exchange.span.clone())),
        Err(failure) => {
            calling.ended(Err(&failure));
            Err(failure)
        }
    }
}

/// Appends the JSON of an answer, if it is one to an operation.
pub(crate) fn write(answer: &reply::Body, out: &mut Vec<u8>) -> Result<(), Failure> {
    match answer {
        reply::Body::Sent(sent) => json::write(sent, out),
        reply::Body::Task(task) => json::write(task, out),
        reply::Body::List(list) => json::write(list, out),
        reply::Body::Push(config) => json::write(config, out),
        reply::Body::Pushes(configs) => json::write(configs, out),
        reply::Body::Card(card) => json::write(card, out),
        reply::Body::Deleted(_) => out.extend_from_slice(b"{}"),
        reply::Body::Frame(_)
        | reply::Body::Failure(_)
        | reply::Body::End(_)
        | reply::Body::Agents(_)
        | reply::Body::Workers(_)
        | reply::Body::Inspect(_)
        | reply::Body::Tasks(_)
        | reply::Body::Events(_)
        | reply::Body::Activity(_)
        | reply::Body::Failures(_)
        | reply::Body::AgentRemoved(_)
        | reply::Body::Moved(_) => return Err(validate::wrong_answer()),
    }
    Ok(())
}

/// The same of a list whose tasks show what they made, which is an empty list where that is
/// nothing: in protobuf this is the same as not to be shown, in JSON it is not.
pub(crate) fn write_with_artifacts(list: &ListTasksResponse, out: &mut Vec<u8>) {
    const EMPTY: &[u8] = br#"{"tasks":[]"#;
    let around = ListTasksResponse {
        tasks: Vec::new(),
        next_page_token: list.next_page_token.clone(),
        ..*list
    };
    let around = json::to_vec(&around);
    let rest = around.strip_prefix(EMPTY).expect("the tasks are required and come first");
    out.extend_from_slice(&EMPTY[..EMPTY.len() - 1]);
    for task in &list.tasks {
        json::write(task, out);
        if task.artifacts.is_empty() {
            out.pop();
            out.extend_from_slice(br#","artifacts":[]}"#);
        }
        out.push(b',');
    }
    if !list.tasks.is_empty() {
        out.pop();
    }
    out.push(b']');
    out.extend_from_slice(rest);
}

fn tenant(call: &mut call::Body) -> Option<&mut String> {
    Some(match call {
        call::Body::Send(request) | call::Body::Stream(request) => &mut request.tenant,
        call::Body::Get(request) => &mut request.tenant,
        call::Body::List(request) => &mut request.tenant,
        call::Body::Cancel(request) => &mut request.tenant,
        call::Body::Subscribe(subscribe) => &mut subscribe.request.get_or_insert_default().tenant,
        call::Body::CreatePush(config) => &mut config.tenant,
        call::Body::GetPush(request) => &mut request.tenant,
        call::Body::ListPush(request) => &mut request.tenant,
        call::Body::DeletePush(request) => &mut request.tenant,
        call::Body::ExtendedCard(request) => &mut request.tenant,
        call::Body::Agents(_)
        | call::Body::Workers(_)
        | call::Body::Inspect(_)
        | call::Body::Tasks(_)
        | call::Body::Events(_)
        | call::Body::Activity(_)
        | call::Body::Failures(_)
        | call::Body::Watch(_)
        | call::Body::OperatorCancel(_)
        | call::Body::OperatorAnswer(_)
        | call::Body::RemoveAgent(_)
        | call::Body::Wait(_)
        | call::Body::Credit(_)
        | call::Body::Drop(_) => return None,
    })
}

/// The agent of the path is the tenant; a request that names another is mistaken about one.
pub(crate) fn address(tenant: &mut String, agent: Option<&str>) -> Result<(), Failure> {
    match agent {
        None => Ok(()),
        Some(agent) if tenant.is_empty() || tenant == agent => {
            agent.clone_into(tenant);
            Ok(())
        }
        Some(_) => Err(validate::violation("tenant", "is not the agent of the path")),
    }
}

/// `Last-Event-ID` resumes a subscription, and goes with nothing else that streams.
fn resume(exchange: &Exchange, call: &mut call::Body) -> Result<(), Failure> {
    let Some(seen) = exchange.header(LAST_EVENT_ID) else { return Ok(()) };
    match call {
        call::Body::Subscribe(subscribe) => {
            let number = seen.trim().parse().map_err(|_| {
                let text = "must be the number of the last event seen, as its id: line gave it; \
                            leave the header out to start from a snapshot";
                validate::violation("Last-Event-ID", text)
            })?;
            subscribe.after = Some(number);
            Ok(())
        }
        call::Body::Send(_) | call::Body::Stream(_) => {
            let text = "does not go with a send: use SubscribeToTask to resume a stream";
            Err(validate::violation("Last-Event-ID", text))
        }
        _ => Ok(()),
    }
}

/// How long the caller is willing to wait for a task to end. Zero is for as long as it takes.
fn patience(exchange: &Exchange, call: &call::Body) -> Duration {
    let call::Body::Send(request) = call else { return Duration::ZERO };
    if request.configuration.as_ref().is_some_and(|c| c.return_immediately) {
        return Duration::ZERO;
    }
    let grpc = exchange.header("grpc-timeout").and_then(parse_grpc_timeout);
    // A little before the caller's own clock, so that it hears which task it waited for.
    let grpc = grpc.map(|timeout| timeout.mul_f64(0.95).max(Duration::from_millis(1)));
    let prefer = exchange.header("prefer").and_then(preferred_wait);
    grpc.into_iter().chain(prefer).min().unwrap_or(Duration::ZERO)
}

/// How long the task may be active; zero where the caller does not say. A gRPC client that waits
/// for the end has no use for a task that takes longer; the task ends a little earlier than its
/// patience, so that it is seen to.
fn task_timeout_ms(
    exchange: &Exchange,
    request: &SendMessageRequest,
    patience_ms: u32,
) -> Result<u64, Failure> {
    let headers = exchange.head.headers.get_all(wish::TIMEOUT_HEADER).iter();
    let headers = headers.map(|value| value.to_str().unwrap_or("?"));
    let said = wish::task_timeout(headers, request)?;
    let is_grpc =
        exchange.header("content-type").is_some_and(|t| t.starts_with("application/grpc"));
    let has_deadline = patience_ms > 0 && exchange.header("grpc-timeout").is_some();
    let patience = (is_grpc && has_deadline).then(|| {
        let patience = Duration::from_millis(patience_ms.into());
        patience.saturating_sub(wish::reserve(patience)).max(Duration::from_millis(1))
    });
    let least = said.into_iter().chain(patience).min();
    Ok(least.map_or(0, |time| time.as_millis() as u64))
}

/// `Prefer: wait=SECONDS`. A preference that cannot be read is no preference (RFC 7240).
fn preferred_wait(header: &str) -> Option<Duration> {
    let seconds = header.split(',').find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait.then(|| value.trim().trim_matches('"').parse::<u64>().ok())?
    })?;
    // Not zero, which would mean for ever.
    Some(Duration::from_secs(seconds).clamp(Duration::from_millis(1), WAIT_MAX))
}

/// What makes a send safe to repeat: the header, or metadata of the message or of the request.
fn idempotency_key(exchange: &Exchange, request: &SendMessageRequest) -> Result<String, Failure> {
    let headers = exchange.head.headers.get_all(IDEMPOTENCY_KEY).iter();
    // What is not text is empty, which is refused below.
    let headers = headers.map(|key| (IDEMPOTENCY_KEY, key.to_str().unwrap_or("").trim()));
    let message = request.message.as_ref().and_then(|message| message.metadata.as_ref());
    let message = key_in(message, "message.metadata[\"faultline.dev/idempotencyKey\"]")?;
    let request = key_in(request.metadata.as_ref(), "metadata[\"faultline.dev/idempotencyKey\"]")?;
    let mut keys = headers.chain(message).chain(request);
    let Some((field, key)) = keys.next() else { return Ok(String::new()) };
    if let Some((other, _)) = keys.find(|(_, other)| *other != key) {
        let text = format!("is not the same as {field}: send one key");
        return Err(validate::violation(other, &text));
    }
    validate::idempotency_key(field, key)?;
    Ok(key.to_owned())
}

fn key_in<'a>(
    metadata: Option<&'a Struct>,
    field: &'static str,
) -> Result<Option<(&'static str, &'a str)>, Failure> {
    let value = metadata.and_then(|metadata| metadata.fields.get(IDEMPOTENCY_METADATA));
    match value.map(|value| &value.kind) {
        None => Ok(None),
        Some(Some(Kind::StringValue(key))) => Ok(Some((field, key))),
        Some(_) => Err(validate::violation(field, "must be a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_one_name() {
        for operation in Operation::ALL {
            assert_eq!(Operation::named(operation.name()), Some(operation));
        }
        assert_eq!(Operation::named("message/send"), None);
    }

    #[test]
    fn a_list_with_artifacts_has_them_also_where_there_are_none() {
        let mut list: ListTasksResponse = json::from_str(
            r#"{"tasks":[{"id":"a"},{"id":"b","artifacts":[{"artifactId":"x"}]},{"id":"c"}],
                "nextPageToken":"n","pageSize":3,"totalSize":7}"#,
        )
        .unwrap();
        let written = |list: &ListTasksResponse| -> serde_json::Value {
            let mut out = Vec::new();
            write_with_artifacts(list, &mut out);
            serde_json::from_slice(&out).unwrap()
        };
        let mut shown = written(&list);
        for (task, count) in [(0, 0), (1, 1), (2, 0)] {
            let artifacts = shown["tasks"][task].as_object_mut().unwrap().remove("artifacts");
            assert_eq!(artifacts.unwrap().as_array().unwrap().len(), count);
        }
        list.tasks.iter_mut().for_each(|task| task.artifacts.clear());
        let plain: serde_json::Value = serde_json::from_str(&json::to_string(&list)).unwrap();
        assert_eq!(shown, plain, "and is the same otherwise");
        list.tasks.clear();
        assert_eq!(written(&list)["tasks"], serde_json::json!([]));
    }

    #[test]
    fn a_tenant_and_a_path_must_agree() {
        let set = |tenant: &str, agent| {
            let mut tenant = tenant.to_owned();
            address(&mut tenant, agent).map(|()| tenant).map_err(|f| f.violations[0].field.clone())
        };
        assert_eq!(set("", Some("echo")).as_deref(), Ok("echo"));
        assert_eq!(set("echo", Some("echo")).as_deref(), Ok("echo"));
        assert_eq!(set("x", None).as_deref(), Ok("x"));
        assert_eq!(set("x", Some("echo")), Err("tenant".to_owned()));
    }

    #[test]
    fn a_wait_that_cannot_be_read_is_no_preference() {
        let seconds = Duration::from_secs;
        for (header, wait) in [
            ("wait=5", Some(seconds(5))),
            ("respond-async, WAIT=\"7\"", Some(seconds(7))),
            ("wait=0", Some(Duration::from_millis(1))),
            ("wait=999999999", Some(WAIT_MAX)),
            ("wait=soon", None),
            ("wait", None),
        ] {
            assert_eq!(preferred_wait(header), wait, "{header}");
        }
    }
}
