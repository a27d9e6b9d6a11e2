//! Admission of a call, the same for all bindings: authorization, validation, idempotency key,
//! deadline, trace and extensions. Then the call goes to a coordinator. No binding is known here.

use std::time::Duration;

use faultline_chassis::{deadline::parse_grpc_timeout, telemetry::ClientSpan};
use faultline_proto::{
    Failure,
    a2a::{SendMessageRequest, SendMessageResponse, Task, send_message_response::Payload},
    request_options,
    v1::{Caller, call, reply},
};
use prost_types::{Struct, value::Kind};

use crate::{
    coordinators::{link::Answer, pool::FrameStream},
    http::{auth::Scope, context::RequestContext, extensions},
    protocol::{operation::Operation, validate},
};

const LAST_EVENT_ID: &str = "last-event-id";
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// The key as metadata, for clients that cannot set headers.
const IDEMPOTENCY_METADATA: &str = "faultline.dev/idempotencyKey";
/// The longest wait that a caller may ask for.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A call that has passed admission, with the client span that it will have.
pub(crate) struct AdmittedCall {
    calling: ClientSpan,
    caller: Caller,
    call: call::Body,
}

/// Admits a call of any binding: the caller has the scope, and the call passes every check that
/// needs no coordinator. The agent of the path, if there is one, becomes the tenant.
pub(crate) fn admit(
    context: &RequestContext,
    operation: Operation,
    agent: Option<&str>,
    mut call: call::Body,
) -> Result<AdmittedCall, Failure> {
    context.require_scope(Scope::of(operation))?;
    set_resume_point(context, &mut call)?;
    validate::call(&call)?;
    if let Some(tenant) = tenant(&mut call) {
        set_tenant(tenant, agent)?;
    }
    let mut caller = context.caller(max_wait(context, &call));
    if let call::Body::Send(request) | call::Body::Stream(request) = &call {
        caller.idempotency_key = idempotency_key(context, request)?;
        caller.task_timeout_ms = task_timeout_ms(context, request, caller.timeout_ms)?;
        let grace = request_options::on_disconnect(request)?;
        caller.cancel_after_ms = grace.map(|grace| grace.as_millis() as u32);
    }
    caller.extensions = extensions::declared(&context.head.headers)?;
    let calling = context.gateway.calling(operation.name(), &context.trace);
    caller.traceparent = calling.context().to_string();
    calling.context().state().clone_into(&mut caller.tracestate);
    Ok(AdmittedCall { calling, caller, call })
}

impl AdmittedCall {
    /// Whether the call is a list with the artifacts of its tasks.
    pub(crate) fn lists_artifacts(&self) -> bool {
        matches!(&self.call, call::Body::List(request) if request.include_artifacts == Some(true))
    }
}

/// Sends a call that has one answer. An extended card is completed here: only the gateway knows
/// its own public address.
pub(crate) async fn call(
    context: &RequestContext,
    admitted: AdmittedCall,
) -> Result<Answer, Failure> {
    let AdmittedCall { mut calling, caller, call } = admitted;
    let agent = match &call {
        call::Body::ExtendedCard(request) => Some(request.tenant.clone()),
        _ => None,
    };
    let asked = context.gateway.pool.call(caller, call).await;
    let task = asked.as_ref().map(|answer| task(&answer.body));
    context.span.with(|span| {
        if let Ok(Some(task)) = task {
            span.task(task);
        }
    });
    calling.ended(task);
    let mut answer = asked?;
    if let reply::Body::Card(card) = &mut answer.body {
        let agent = agent.filter(|agent| !agent.is_empty());
        context.gateway.cards.complete(&context.head, agent.as_deref(), card);
    }
    Ok(answer)
}

/// The task in an answer, if it has one.
fn task(answer: &reply::Body) -> Option<&Task> {
    match answer {
        reply::Body::Task(task) => Some(task),
        reply::Body::Sent(SendMessageResponse { payload: Some(Payload::Task(task)) }) => Some(task),
        _ => None,
    }
}

/// Opens a call that has a stream of answers.
pub(crate) async fn open_stream(
    context: &RequestContext,
    admitted: AdmittedCall,
) -> Result<FrameStream, Failure> {
    let AdmittedCall { mut calling, caller, call } = admitted;
    match context.gateway.pool.stream(caller, call).await {
        Ok(frames) => Ok(frames.traced(calling, context.span.clone())),
        Err(failure) => {
            calling.ended(Err(&failure));
            Err(failure)
        }
    }
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

/// Makes the agent of the path the tenant. A request that names another tenant is invalid.
pub(crate) fn set_tenant(tenant: &mut String, agent: Option<&str>) -> Result<(), Failure> {
    match agent {
        None => Ok(()),
        Some(agent) if tenant.is_empty() || tenant == agent => {
            agent.clone_into(tenant);
            Ok(())
        }
        Some(_) => Err(validate::violation("tenant", "is not the agent of the path")),
    }
}

/// `Last-Event-ID` resumes a subscription; with a send it is an error.
fn set_resume_point(context: &RequestContext, call: &mut call::Body) -> Result<(), Failure> {
    let Some(seen) = context.header(LAST_EVENT_ID) else { return Ok(()) };
    match call {
        call::Body::Subscribe(subscribe) => {
            let number = seen.trim().parse().map_err(|_| {
                let text = "must be the number of the last event seen, from its id: line; \
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

/// How long the caller waits for a task to end. Zero: without a limit.
fn max_wait(context: &RequestContext, call: &call::Body) -> Duration {
    let call::Body::Send(request) = call else { return Duration::ZERO };
    if request.configuration.as_ref().is_some_and(|c| c.return_immediately) {
        return Duration::ZERO;
    }
    let grpc = context.header("grpc-timeout").and_then(parse_grpc_timeout);
    // A little before the caller's own deadline, so that the answer with the task id arrives.
    let grpc = grpc.map(|timeout| timeout.mul_f64(0.95).max(Duration::from_millis(1)));
    let prefer = context.header("prefer").and_then(preferred_wait);
    grpc.into_iter().chain(prefer).min().unwrap_or(Duration::ZERO)
}

/// How long the task may be active; zero without a limit. A gRPC deadline also bounds the task that
/// its client waits for; the task ends a little earlier, so that the client sees the end.
fn task_timeout_ms(
    context: &RequestContext,
    request: &SendMessageRequest,
    max_wait_ms: u32,
) -> Result<u64, Failure> {
    let headers = context.head.headers.get_all(request_options::TIMEOUT_HEADER).iter();
    let headers = headers.map(|value| value.to_str().unwrap_or("?"));
    let requested = request_options::task_timeout(headers, request)?;
    let is_grpc = context.header("content-type").is_some_and(|t| t.starts_with("application/grpc"));
    let has_deadline = max_wait_ms > 0 && context.header("grpc-timeout").is_some();
    let patience = (is_grpc && has_deadline).then(|| {
        let patience = Duration::from_millis(max_wait_ms.into());
        patience.saturating_sub(request_options::reserve(patience)).max(Duration::from_millis(1))
    });
    let least = requested.into_iter().chain(patience).min();
    Ok(least.map_or(0, |time| time.as_millis() as u64))
}

/// `Prefer: wait=SECONDS`. A malformed preference is ignored (RFC 7240).
fn preferred_wait(header: &str) -> Option<Duration> {
    let seconds = header.split(',').find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait.then(|| value.trim().trim_matches('"').parse::<u64>().ok())?
    })?;
    // At least a millisecond, because zero means no limit.
    Some(Duration::from_secs(seconds).clamp(Duration::from_millis(1), WAIT_MAX))
}

/// The idempotency key of a send: from the header, or from metadata of the message or the request.
fn idempotency_key(
    context: &RequestContext,
    request: &SendMessageRequest,
) -> Result<String, Failure> {
    let headers = context.head.headers.get_all(IDEMPOTENCY_KEY).iter();
    // A value that is not text becomes empty, and validation rejects an empty key.
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
    fn tenant_and_path_must_agree() {
        let set = |tenant: &str, agent| {
            let mut tenant = tenant.to_owned();
            set_tenant(&mut tenant, agent)
                .map(|()| tenant)
                .map_err(|f| f.violations[0].field.clone())
        };
        assert_eq!(set("", Some("echo")).as_deref(), Ok("echo"));
        assert_eq!(set("echo", Some("echo")).as_deref(), Ok("echo"));
        assert_eq!(set("x", None).as_deref(), Ok("x"));
        assert_eq!(set("x", Some("echo")), Err("tenant".to_owned()));
    }

    #[test]
    fn malformed_wait_preference_is_ignored() {
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
