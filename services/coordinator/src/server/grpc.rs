//! A2A and Mesh over unary gRPC, for agents that delegate and for operators. It converts
//! requests to operations and failures to statuses.

mod mesh;

use crate::calls::roles::TASK;
use crate::engine::active_task::CallError;
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use faultline_chassis::{
    credential::Binding,
    deadline::parse_grpc_timeout,
    telemetry::{Span, link as why},
    trace::{TRACEPARENT, TRACESTATE},
};
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
    request_options,
    v1::Caller as Asked,
};
use futures::Stream;
use tokio::{sync::oneshot, time::Instant};
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::{
    api::{delegation::AttemptCredentials, subscription::Subscription},
    calls::{
        caller::{CallKey, Caller},
        roles,
    },
    engine::core::Core,
    error::Error,
    server::gateway_link::{self, ended, log_private, sent, serve_span},
};

/// Names the last event a subscriber has seen, as `Last-Event-ID` does over HTTP.
const LAST_EVENT_ID: &str = "last-event-id";
/// The principal, where a gateway calls on behalf of a caller.
const PRINCIPAL: &str = "faultline-principal";
/// Makes a send safe to repeat.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// URIs of A2A extensions, separated by commas.
const EXTENSIONS: &str = "a2a-extensions";
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
pub(crate) struct A2aEndpoint {
    core: Arc<Core>,
    calls: Arc<AtomicU64>,
}

impl A2aEndpoint {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, calls: Arc::default() }
    }

    /// The caller: with an attempt token, the principal of its task.
    async fn known<T>(&self, caller: Caller, request: &Request<T>) -> Result<Caller, Failure> {
        let identity = roles::identity(request.extensions())?;
        let binding = identity.role().map(|_| identity.binding());
        match claimed(request.metadata(), binding) {
            Some(claimed) => Ok(self.core.authenticate_attempt_with_store(caller, claimed).await?),
            None => {
                roles::check_may_name_principals(&identity)?;
                roles::check_principal(&caller.principal)?;
                Ok(caller)
            }
        }
    }

    /// A call comes in.
    async fn begin<T>(&self, method: &'static str, request: &Request<T>) -> Result<Begun, Status> {
        let (span, caller) = serve_span(method, asked(request.metadata()));
        match self.known(caller, request).await {
            Ok(caller) => Ok((span, caller)),
            Err(failure) => Err(refused(span, failure)),
        }
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

/// The credentials of the calling attempt; `None`: the caller is no agent.
fn claimed(metadata: &MetadataMap, binding: Option<Binding>) -> Option<AttemptCredentials> {
    metadata.get(TASK)?;
    Some(AttemptCredentials {
        token: text(metadata, TASK).to_owned(),
        key: text(metadata, KEY).to_owned(),
        detached: text(metadata, DETACHED) == "true",
        binding,
    })
}

/// The metadata of a call about its caller. Believed of callers that have every role; for a worker
/// the principal of its attempt takes its place.
fn asked(metadata: &MetadataMap) -> Asked {
    let text = |name| text(metadata, name);
    let declared = metadata.get_all(EXTENSIONS).iter().filter_map(|v| v.to_str().ok());
    let uris = declared.flat_map(|list| list.split(',')).map(str::trim);
    let patience = parse_grpc_timeout(text("grpc-timeout")).unwrap_or_default();
    let patience = patience.saturating_sub(WAY_BACK).as_millis();
    Asked {
        timeout_ms: u32::try_from(patience).unwrap_or(u32::MAX),
        traceparent: text(TRACEPARENT).to_owned(),
        tracestate: text(TRACESTATE).to_owned(),
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
    let said = request.metadata().get_all(request_options::TIMEOUT_HEADER);
    let said = said.iter().map(|value| value.to_str().unwrap_or("?"));
    let send = request.get_ref();
    let patience = caller.deadline.filter(|_| waits);
    let patience = patience.map(|at| at.saturating_duration_since(Instant::now()));
    let patience =
        patience.map(|left| left.saturating_sub(request_options::reserve(left)).max(SHORTEST));
    caller.task_timeout =
        request_options::task_timeout(said, send)?.into_iter().chain(patience).min();
    caller.cancel_after = request_options::on_disconnect(send)?;
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

fn refused(span: Span, error: impl Into<Failure>) -> Status {
    status(gateway_link::refused(span, error.into()))
}

fn status(failure: Failure) -> Status {
    log_private(&failure);
    failure.into()
}

/// For operators; their calls have no spans.
pub(crate) fn unseen(error: Error) -> Status {
    status(error.into())
}

/// The answer to a call, whichever it is.
fn answer<T>(span: Span, answer: Result<T, Error>) -> Result<T, Status> {
    ended(span, answer.map_err(Failure::from)).map_err(status)
}

/// The same, if it is a task.
fn task(mut span: Span, task: Result<Task, Error>) -> Result<Task, Status> {
    if let Ok(task) = &task {
        span.task(task);
    }
    answer(span, task)
}

/// The span lasts as long as the stream.
fn frames(span: Span, subscription: Result<Subscription, Error>) -> Result<Frames, Status> {
    let subscription = match subscription {
        Ok(subscription) => subscription,
        Err(error) => return Err(refused(span, error)),
    };
    let open = Some((span, subscription));
    Ok(Box::pin(futures::stream::unfold(open, |open| async move {
        let (mut span, mut subscription) = open?;
        loop {
            match subscription.next().await {
                Ok(Some(frame)) => {
                    span.frame(&frame);
                    if let Some(response) = frame.response {
                        return Some((Ok(response), Some((span, subscription))));
                    }
                }
                Ok(None) => {
                    span.rpc_ended(Ok(()));
                    return None;
                }
                Err(error) => return Some((Err(refused(span, error)), None)),
            }
        }
    })))
}

#[tonic::async_trait]
impl A2aService for A2aEndpoint {
    type SendStreamingMessageStream = Frames;
    type SubscribeToTaskStream = Frames;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        let (span, caller) = self.begin("SendMessage", &request).await?;
        let configuration = request.get_ref().configuration.as_ref();
        let waits = !configuration.is_some_and(|c| c.return_immediately);
        let mut caller = match wishing(caller, &request, waits) {
            Ok(caller) => caller,
            Err(failure) => return Err(refused(span, failure)),
        };
        let waiting = self.waiting();
        caller.call = Some(waiting.call);
        let (done, answer) = oneshot::channel();
        let done = Box::new(move |sent: Result<_, CallError>| {
            drop(done.send(sent.map_err(Failure::from)))
        });
        self.core.send(request.into_inner(), caller.clone(), done);
        let answer = answer.await.unwrap_or_else(|_| Err(Error::unanswered().into()));
        Ok(respond(sent(span, answer).map_err(status)?, &caller))
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<Frames>, Status> {
        let (span, caller) = self.begin("SendStreamingMessage", &request).await?;
        let caller = match wishing(caller, &request, false) {
            Ok(caller) => caller,
            Err(failure) => return Err(refused(span, failure)),
        };
        let subscription = self.core.stream(request.into_inner(), &caller).await;
        Ok(respond(frames(span, subscription)?, &caller))
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        let (span, caller) = self.begin("GetTask", &request).await?;
        let found = self.core.get(request.into_inner(), &caller).await;
        Ok(respond(task(span, found)?, &caller))
    }

    async fn list_tasks(
        &self,
        request: Request<ListTasksRequest>,
    ) -> Result<Response<ListTasksResponse>, Status> {
        let (span, caller) = self.begin("ListTasks", &request).await?;
        let list = self.core.list(request.into_inner(), &caller).await;
        Ok(Response::new(answer(span, list)?))
    }

    async fn cancel_task(
        &self,
        request: Request<CancelTaskRequest>,
    ) -> Result<Response<Task>, Status> {
        let (mut span, caller) = self.begin("CancelTask", &request).await?;
        self.core.link_run(&mut span, &request.get_ref().id, why::CANCELS);
        let cancelled = self.core.cancel(request.into_inner(), &caller).await;
        Ok(respond(task(span, cancelled)?, &caller))
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<Frames>, Status> {
        let (mut span, caller) = self.begin("SubscribeToTask", &request).await?;
        let after = match request.metadata().get(LAST_EVENT_ID) {
            None => None,
            Some(text) => match text.to_str().ok().and_then(|text| text.parse().ok()) {
                Some(after) => {
                    self.core.link_run(&mut span, &request.get_ref().id, why::RECONNECT_OF);
                    Some(after)
                }
                None => {
                    let what = "the number of an event, as it came with the stream".to_owned();
                    return Err(refused(span, Error::Invalid { field: LAST_EVENT_ID, what }));
                }
            },
        };
        let subscribed = self.core.subscribe(&request.into_inner(), after, &caller).await;
        Ok(respond(frames(span, subscribed)?, &caller))
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let method = "CreateTaskPushNotificationConfig";
        let (span, caller) = self.begin(method, &request).await?;
        let made = self.core.create_push(request.into_inner(), &caller).await;
        Ok(respond(answer(span, made)?, &caller))
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let (span, caller) = self.begin("GetTaskPushNotificationConfig", &request).await?;
        let config = self.core.get_push(request.into_inner(), &caller).await;
        Ok(respond(answer(span, config)?, &caller))
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        let (span, caller) = self.begin("ListTaskPushNotificationConfigs", &request).await?;
        let list = self.core.list_push(request.into_inner(), &caller).await;
        Ok(respond(answer(span, list)?, &caller))
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<()>, Status> {
        let method = "DeleteTaskPushNotificationConfig";
        let (span, caller) = self.begin(method, &request).await?;
        let deleted = self.core.delete_push(request.into_inner(), &caller).await;
        Ok(respond(answer(span, deleted)?, &caller))
    }

    async fn get_extended_agent_card(
        &self,
        request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        let (span, caller) = self.begin("GetExtendedAgentCard", &request).await?;
        let card = self.core.extended_card(&request.into_inner(), &caller);
        Ok(Response::new(answer(span, card)?))
    }
}

#[cfg(test)]
mod tests;
