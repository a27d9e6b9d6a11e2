//! The gRPC binding, on the same port as HTTP: the A2A service and the health service for
//! balancers. Messages become operations, failures become statuses.

use std::{pin::Pin, sync::Arc};

use axum::{Router, body::Body};
use faultline_chassis::{
    Drain, limits,
    server::{self, GuardLayer, Resource},
};
use faultline_proto::{
    Failure,
    a2a::{
        AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
        GetExtendedAgentCardRequest, GetTaskPushNotificationConfigRequest, GetTaskRequest,
        ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse,
        ListTasksRequest, ListTasksResponse, SendMessageRequest, SendMessageResponse,
        StreamResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
        a2a_service_server::{A2aService, A2aServiceServer},
    },
    reason,
    v1::{Subscribe, call, reply},
};
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, Request as HttpRequest, Response as HttpResponse};
use tonic::{Code, Request, Response, Status, service::Routes};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};
use tower::ServiceExt;

use crate::{
    coordinators::pool::{FrameStream, Pool},
    http::{
        admission::{self, AdmittedCall},
        body,
        context::RequestContext,
        extensions, negotiation,
    },
    protocol::{operation::Operation, validate},
};

const DETAILS: &str = "grpc-status-details-bin";

pub(crate) fn router(pool: &Pool, drain: &Drain) -> Router {
    let a2a = A2aServiceServer::new(A2aEndpoint)
        .max_decoding_message_size(limits::BODY_BYTES_MAX)
        .max_encoding_message_size(limits::GRPC_BYTES_MAX);
    let health = HealthServer::new(HealthEndpoint { pool: pool.clone(), drain: drain.clone() })
        .max_decoding_message_size(limits::HEALTH_BYTES_MAX);
    let routes = Routes::new(a2a).add_service(health);
    // The guard is outermost: it catches panics and enforces timeouts of everything inside.
    routes.prepare().into_axum_router().layer(GuardLayer)
}

/// Answers a call. Every request is one message, so it is read first, within the limits of any
/// body.
pub(crate) async fn handle(
    context: &RequestContext,
    is_health: bool,
    body: &mut Body,
) -> HttpResponse<Body> {
    let report = context.reporter();
    let read = if is_health {
        body::read_health(body).await
    } else {
        body::read(&context.head, body).await
    };
    let body = match read {
        Ok(body) => body,
        Err(refused) => return report.status(refused.failure).into_http(),
    };
    let router = context.gateway.grpc.clone();
    let mut request = HttpRequest::from_parts(context.head.clone(), Body::from(body));
    request.extensions_mut().insert(Arc::new(context.clone()));
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    match refused_by_tonic(response.headers()) {
        Some(failure) => report.status(failure).into_http(),
        None => response,
    }
}

/// The failure for a call that tonic itself rejected, because its status has no details.
fn refused_by_tonic(headers: &HeaderMap) -> Option<Failure> {
    if headers.contains_key(DETAILS) {
        return None;
    }
    let status = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)?;
    Some(match status.code() {
        Code::Unimplemented if status.message().is_empty() => {
            Failure::new(&reason::METHOD_NOT_FOUND)
                .because("no such method: lf.a2a.v1.A2AService has those of A2A 1.0")
        }
        // Bytes that are no message.
        Code::InvalidArgument => {
            Failure::new(&reason::INVALID_REQUEST).because(status.message().to_owned())
        }
        _ => Failure::from(status),
    })
}

/// The context that [`handle`] put beside the message.
fn context_of<T>(request: &Request<T>) -> Result<Arc<RequestContext>, Status> {
    let found = request.extensions().get::<Arc<RequestContext>>().cloned();
    found.ok_or_else(|| Failure::new(&reason::INTERNAL).into())
}

fn admit(
    context: &RequestContext,
    operation: Operation,
    call: call::Body,
) -> Result<AdmittedCall, Failure> {
    context.record.set_operation(operation);
    // Strict also without metadata: the official clients always send the version.
    negotiation::require_v1(context, negotiation::version(context)?, operation)?;
    admission::admit(context, operation, None, call)
}

/// A call with one answer, which `take` finds in the reply.
async fn unary<T, A>(
    request: Request<T>,
    operation: Operation,
    call: fn(T) -> call::Body,
    take: fn(reply::Body) -> Option<A>,
) -> Result<Response<A>, Status> {
    let context = context_of(&request)?;
    let asked = async {
        let admitted = admit(&context, operation, call(request.into_inner()))?;
        let answer = admission::call(&context, admitted).await?;
        let taken = take(answer.body).ok_or_else(validate::unexpected_reply)?;
        Ok((taken, answer.extensions))
    };
    let (taken, extensions) = asked.await.map_err(|f| context.reporter().status(f))?;
    context.record_success();
    Ok(respond(&context, taken, &extensions))
}

type EventStream = Pin<Box<dyn Stream<Item = Result<StreamResponse, Status>> + Send>>;

/// A call with a stream of answers. A failure before the first one is the status of the call.
async fn streaming<T>(
    request: Request<T>,
    operation: Operation,
    call: fn(T) -> call::Body,
) -> Result<Response<EventStream>, Status> {
    let context = context_of(&request)?;
    let opened = async {
        let admitted = admit(&context, operation, call(request.into_inner()))?;
        let mut frames = admission::open_stream(&context, admitted).await?;
        let first = frames.next().await.transpose()?;
        Ok((first, frames))
    };
    let (first, frames) = opened.await.map_err(|f| context.reporter().status(f))?;
    let extensions = frames.extensions().to_vec();
    let first = stream::iter(first.and_then(|frame| frame.response).map(Ok));
    let events = first.chain(remaining_events(frames, Arc::clone(&context))).boxed();
    Ok(respond(&context, events, &extensions))
}

/// The events after the first. The context is kept for its span, which ends with the stream.
fn remaining_events(
    frames: FrameStream,
    context: Arc<RequestContext>,
) -> impl Stream<Item = Result<StreamResponse, Status>> {
    stream::unfold((frames, context), |(mut frames, context)| async move {
        let Some(item) = frames.next().await else {
            context.record_success();
            return None;
        };
        let item = match item {
            Ok(frame) => Ok(frame.response.unwrap_or_default()),
            Err(failure) => Err(context.reporter().status(failure)),
        };
        Some((item, (frames, context)))
    })
}

fn respond<T>(context: &RequestContext, answer: T, active: &[String]) -> Response<T> {
    let mut response = Response::new(answer);
    extensions::set_header(active, &context.head.headers, response.metadata_mut().as_mut());
    response
}

/// The A2A service. Stateless: the context of each request is in its extensions.
struct A2aEndpoint;

#[tonic::async_trait]
impl A2aService for A2aEndpoint {
    type SendStreamingMessageStream = EventStream;
    type SubscribeToTaskStream = EventStream;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        unary(request, Operation::SendMessage, call::Body::Send, |answer| match answer {
            reply::Body::Sent(sent) => Some(sent),
            _ => None,
        })
        .await
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<EventStream>, Status> {
        streaming(request, Operation::SendStreamingMessage, call::Body::Stream).await
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        unary(request, Operation::GetTask, call::Body::Get, task).await
    }

    async fn list_tasks(
        &self,
        request: Request<ListTasksRequest>,
    ) -> Result<Response<ListTasksResponse>, Status> {
        unary(request, Operation::ListTasks, call::Body::List, |answer| match answer {
            reply::Body::List(list) => Some(list),
            _ => None,
        })
        .await
    }

    async fn cancel_task(
        &self,
        request: Request<CancelTaskRequest>,
    ) -> Result<Response<Task>, Status> {
        unary(request, Operation::CancelTask, call::Body::Cancel, task).await
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<EventStream>, Status> {
        let subscribe =
            |request| call::Body::Subscribe(Subscribe { request: Some(request), after: None });
        streaming(request, Operation::SubscribeToTask, subscribe).await
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let operation = Operation::CreateTaskPushNotificationConfig;
        unary(request, operation, call::Body::CreatePush, push).await
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let operation = Operation::GetTaskPushNotificationConfig;
        unary(request, operation, call::Body::GetPush, push).await
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        let operation = Operation::ListTaskPushNotificationConfigs;
        unary(request, operation, call::Body::ListPush, |answer| match answer {
            reply::Body::Pushes(configs) => Some(configs),
            _ => None,
        })
        .await
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<()>, Status> {
        let operation = Operation::DeleteTaskPushNotificationConfig;
        unary(request, operation, call::Body::DeletePush, |answer| match answer {
            reply::Body::Deleted(_) => Some(()),
            _ => None,
        })
        .await
    }

    async fn get_extended_agent_card(
        &self,
        request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        let operation = Operation::GetExtendedAgentCard;
        unary(request, operation, call::Body::ExtendedCard, |answer| match answer {
            reply::Body::Card(card) => Some(*card),
            _ => None,
        })
        .await
    }
}

fn task(answer: reply::Body) -> Option<Task> {
    match answer {
        reply::Body::Task(task) => Some(*task),
        _ => None,
    }
}

fn push(answer: reply::Body) -> Option<TaskPushNotificationConfig> {
    match answer {
        reply::Body::Push(config) => Some(*config),
        _ => None,
    }
}

/// The gRPC health service, with the same status as `/healthz`.
struct HealthEndpoint {
    pool: Pool,
    drain: Drain,
}

type HealthStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for HealthEndpoint {
    type WatchStream = HealthStream;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        is_known(&request.into_inner().service)?;
        Ok(Response::new(health(self.pool.is_up() && !self.drain.is_signalled())))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthStream>, Status> {
        is_known(&request.into_inner().service)?;
        let taken = server::acquire(Resource::HealthWatch).map_err(Status::from)?;
        let states = stream::unfold((self.pool.up_links(), None), |(mut ups, said)| async move {
            let is_up = *ups.wait_for(|ups| Some(*ups > 0) != said).await.ok()? > 0;
            Some((Ok(health(is_up)), (ups, Some(is_up))))
        });
        // A watch never ends by itself, so a drain would wait for it.
        let drain = self.drain.clone();
        let states = states.take_until(async move { drain.signalled().await });
        let last = stream::iter([Ok(health(false))]);
        // The place in the limit is held until the watch ends.
        let states = states.chain(last).map(move |state| {
            let _held = &taken;
            state
        });
        Ok(Response::new(states.boxed()))
    }
}

fn is_known(service: &str) -> Result<(), Status> {
    match service {
        "" | "lf.a2a.v1.A2AService" => Ok(()),
        _ => {
            Err(Failure::new(&reason::NOT_FOUND).because("this gateway has no such service").into())
        }
    }
}

fn health(is_up: bool) -> HealthCheckResponse {
    let status = if is_up { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status as i32 }
}
