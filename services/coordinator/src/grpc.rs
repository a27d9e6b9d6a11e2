//! The doors for whoever is no gateway: A2A over gRPC, for agents that delegate and clients that
//! speak it, and the operators' Mesh. Thin: it turns calls into operations and their refusals into
//! statuses.

mod mesh;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use faultline_chassis::{deadline::parse_grpc_timeout, trace::TRACEPARENT};
use faultline_proto::{
    Failure,
    a2a::{
        AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
        GetExtendedAgentCardRequest, GetTaskPushNotificationConfigRequest, GetTaskRequest,
        ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse,
        ListTasksRequest, ListTasksResponse, SendMessageRequest, SendMessageResponse,
        StreamResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
        a2a_service_server::A2aService,
    },
    v1::Caller as Asked,
    wish,
};
use futures::Stream;
use tokio::{sync::oneshot, time::Instant};
use tonic::{Request, Response, Status, metadata::MetadataMap};
use tracing::Span;

use crate::{
    caller::Caller,
    core::Core,
    delegation::Claimed,
    error::Error,
    link::{log_private, record, serve_span},
    live::CallKey,
    subscription::Subscription,
};

/// Names the last event a subscriber has seen, as `Last-Event-ID` does over HTTP.
const LAST_EVENT_ID: &str = "last-event-id";
/// Whose call it is, where a peer calls for somebody.
const PRINCIPAL: &str = "faultline-principal";
/// Makes a send safe to repeat.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// URIs of A2A extensions, separated by commas.
const EXTENSIONS: &str = "a2a-extensions";
/// The token of the attempt that calls.
const TASK: &str = "faultline-task";
/// Of the child that the call starts or finds.
const KEY: &str = "faultline-key";
/// `true`: the child outlives its parent.
const DETACHED: &str = "faultline-detached";

/// The calls of this door are named as those of a link that no gateway has.
const LINK: u64 = 0;
/// Left of a caller's time for the way back: told in time, it learns which task goes on.
const WAY_BACK: Duration = Duration::from_millis(20);
/// A limit of nothing would be none.
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(crate) struct Doors {
    core: Arc<Core>,
    calls: Arc<AtomicU64>,
}

impl Doors {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, calls: Arc::default() }
    }

    /// The caller, who is a task's principal where an agent calls with its attempt's token.
    fn known(&self, caller: Caller, metadata: &MetadataMap) -> Result<Caller, Error> {
        match claimed(metadata) {
            Some(claimed) => self.core.believe(caller, claimed),
            None => Ok(caller),
        }
    }

    /// The same for a call that has a span.
    fn begin(&self, method: &'static str, metadata: &MetadataMap) -> Result<Begun, Status> {
        let (span, caller) = serve_span(method, asked(metadata));
        let known = self.known(caller, metadata).map_err(Failure::from);
        record(&span, known.as_ref().err());
        Ok((span, known.map_err(refused)?))
    }

    fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        self.known(asked(metadata).into(), metadata).map_err(refused)
    }

    fn waiting(&self) -> Waiting<'_> {
        let call = (LINK, self.calls.fetch_add(1, Ordering::Relaxed));
        Waiting { core: &self.core, call }
    }
}

/// A call that waits for its answer. When it is dropped, nobody waits any more.
struct Waiting<'a> {
    core: &'a Core,
    call: CallKey,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        drop(self.core.touch(|state| state.forget_call(self.call)));
    }
}

type Begun = (Span, Caller);
type Frames = Pin<Box<dyn Stream<Item = Result<StreamResponse, Status>> + Send>>;

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> &'a str {
    metadata.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
}

/// What a call says of the attempt that makes it; `None`: no agent makes it.
fn claimed(metadata: &MetadataMap) -> Option<Claimed> {
    metadata.get(TASK)?;
    Some(Claimed {
        token: text(metadata, TASK).to_owned(),
        key: text(metadata, KEY).to_owned(),
        detached: text(metadata, DETACHED) == "true",
    })
}

/// Who comes through this door has the mesh's token, so what it says of itself is believed.
fn asked(metadata: &MetadataMap) -> Asked {
    let text = |name| text(metadata, name);
    let declared = metadata.get_all(EXTENSIONS).iter().filter_map(|v| v.to_str().ok());
    let uris = declared.flat_map(|list| list.split(',')).map(str::trim);
    let patience = parse_grpc_timeout(text("grpc-timeout")).unwrap_or_default();
    let patience = patience.saturating_sub(WAY_BACK).as_millis();
    Asked {
        timeout_ms: u32::try_from(patience).unwrap_or(u32::MAX),
        traceparent: text(TRACEPARENT).to_owned(),
        principal: text(PRINCIPAL).to_owned(),
        idempotency_key: text(IDEMPOTENCY_KEY).to_owned(),
        extensions: uris.filter(|uri| !uri.is_empty()).map(str::to_owned).collect(),
        ..Asked::default()
    }
}

/// The caller, with what its send says of the task that it starts. One that waits for the end has
/// no use for a task that takes longer; the task ends a little earlier, so that it is seen to.
fn wishing(
    mut caller: Caller,
    request: &Request<SendMessageRequest>,
    waits: bool,
) -> Result<Caller, Failure> {
    let said = request.metadata().get_all(wish::TIMEOUT_HEADER);
    let said = said.iter().map(|value| value.to_str().unwrap_or("?"));
    let send = request.get_ref();
    let patience = caller.deadline.filter(|_| waits);
    let patience = patience.map(|at| at.saturating_duration_since(Instant::now()));
    let patience = patience.map(|left| left.saturating_sub(wish::reserve(left)).max(SHORTEST));
    caller.task_timeout = wish::task_timeout(said, send)?.into_iter().chain(patience).min();
    caller.cancel_after = wish::on_disconnect(send)?;
    Ok(caller)
}

/// The answer, with the extensions that are in force.
fn respond<T>(answer: T, caller: &Caller) -> Response<T> {
    let mut response = Response::new(answer);
    let active = caller.extensions.active().join(",");
    if let Some(value) = (!active.is_empty()).then(|| active.parse().ok()).flatten() {
        response.metadata_mut().insert(EXTENSIONS, value);
    }
    response
}

fn refused(error: impl Into<Failure>) -> Status {
    let failure = error.into();
    log_private(&failure);
    failure.into()
}

fn frames(subscription: Subscription) -> Frames {
    Box::pin(futures::stream::unfold(Some(subscription), |subscription| async move {
        let mut subscription = subscription?;
        loop {
            match subscription.next().await {
                Ok(Some(frame)) => match frame.response {
                    Some(response) => return Some((Ok(response), Some(subscription))),
                    None => continue,
                },
                Ok(None) => return None,
                Err(error) => return Some((Err(refused(error)), None)),
            }
        }
    }))
}

#[tonic::async_trait]
impl A2aService for Doors {
    type SendStreamingMessageStream = Frames;
    type SubscribeToTaskStream = Frames;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        let (span, caller) = self.begin("SendMessage", request.metadata())?;
        let configuration = request.get_ref().configuration.as_ref();
        let waits = !configuration.is_some_and(|c| c.return_immediately);
        let mut caller = wishing(caller, &request, waits).map_err(refused)?;
        let waiting = self.waiting();
        caller.call = Some(waiting.call);
        let (done, answer) = oneshot::channel();
        let done = Box::new(move |sent| drop(done.send(sent)));
        self.core.send(request.into_inner(), caller.clone(), done);
        let answer = answer.await.unwrap_or_else(|_| Err(Error::unanswered().into()));
        record(&span, answer.as_ref().err());
        Ok(respond(answer.map_err(refused)?, &caller))
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<Frames>, Status> {
        let (_span, caller) = self.begin("SendStreamingMessage", request.metadata())?;
        let caller = wishing(caller, &request, false).map_err(refused)?;
        let subscription = self.core.stream(request.into_inner(), &caller).await;
        Ok(respond(frames(subscription.map_err(refused)?), &caller))
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        let caller = self.caller(request.metadata())?;
        let task = self.core.get(request.into_inner(), &caller).await;
        Ok(respond(task.map_err(refused)?, &caller))
    }

    async fn list_tasks(
        &self,
        request: Request<ListTasksRequest>,
    ) -> Result<Response<ListTasksResponse>, Status> {
        let caller = self.caller(request.metadata())?;
        let list = self.core.list(request.into_inner(), &caller).await;
        Ok(Response::new(list.map_err(refused)?))
    }

    async fn cancel_task(
        &self,
        request: Request<CancelTaskRequest>,
    ) -> Result<Response<Task>, Status> {
        let caller = self.caller(request.metadata())?;
        let task = self.core.cancel(request.into_inner(), &caller).await;
        Ok(respond(task.map_err(refused)?, &caller))
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<Frames>, Status> {
        let after = match request.metadata().get(LAST_EVENT_ID) {
            None => None,
            Some(text) => {
                Some(text.to_str().ok().and_then(|t| t.parse().ok()).ok_or_else(|| {
                    let what = "the number of an event, as it came with the stream".to_owned();
                    refused(Error::Invalid { field: LAST_EVENT_ID, what })
                })?)
            }
        };
        let caller = self.caller(request.metadata())?;
        let subscribed = self.core.subscribe(&request.into_inner(), after, &caller).await;
        Ok(respond(frames(subscribed.map_err(refused)?), &caller))
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let caller = self.caller(request.metadata())?;
        let made = self.core.create_push(request.into_inner(), &caller).await;
        Ok(respond(made.map_err(refused)?, &caller))
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let caller = self.caller(request.metadata())?;
        let config = self.core.get_push(request.into_inner(), &caller).await;
        Ok(respond(config.map_err(refused)?, &caller))
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        let caller = self.caller(request.metadata())?;
        let list = self.core.list_push(request.into_inner(), &caller).await;
        Ok(respond(list.map_err(refused)?, &caller))
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<()>, Status> {
        let caller = self.caller(request.metadata())?;
        let deleted = self.core.delete_push(request.into_inner(), &caller).await;
        Ok(respond(deleted.map_err(refused)?, &caller))
    }

    async fn get_extended_agent_card(
        &self,
        request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        let caller = self.caller(request.metadata())?;
        let card = self.core.extended_card(&request.into_inner(), &caller);
        Ok(Response::new(card.map_err(refused)?))
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
