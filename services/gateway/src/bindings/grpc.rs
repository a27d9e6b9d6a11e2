//! gRPC, on the same port as everything else: A2A's own service, and the health check that
//! balancers ask for. Thin: messages become operations, failures become statuses.

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
    coordinators::pool::{FrameStream, Links},
    http::{
        admission::{self, Admitted},
        body,
        context::Exchange,
        extensions, negotiation,
    },
    protocol::{operation::Operation, validate},
};

const DETAILS: &str = "grpc-status-details-bin";

pub(crate) fn router(links: &Links, drain: &Drain) -> Router {
    let doors = A2aServiceServer::new(Doors)
        .max_decoding_message_size(limits::BODY_BYTES_MAX)
        .max_encoding_message_size(limits::GRPC_BYTES_MAX);
    let pulse = HealthServer::new(Pulse { links: links.clone(), drain: drain.clone() })
        .max_decoding_message_size(limits::HEALTH_BYTES_MAX);
    let routes = Routes::new(doors).add_service(pulse);
    // The guard stands outermost: it must see the panics and clocks of everything inside.
    routes.prepare().into_axum_router().layer(GuardLayer)
}

/// Answers a call. Every request here is one message, so it is read first, within the same bounds
/// as any other body.
pub(crate) async fn answer(
    exchange: &Exchange,
    is_health: bool,
    body: &mut Body,
) -> HttpResponse<Body> {
    let report = exchange.reporter();
    let read = match is_health {
        true => body::read_health(body).await,
        false => body::read(&exchange.head, body).await,
    };
    let body = match read {
        Ok(body) => body,
        Err(refused) => return report.status(refused.failure).into_http(),
    };
    let router = exchange.gateway.grpc.clone();
    let mut request = HttpRequest::from_parts(exchange.head.clone(), Body::from(body));
    request.extensions_mut().insert(Arc::new(exchange.clone()));
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    match refused_by_tonic(response.headers()) {
        Some(failure) => report.status(failure).into_http(),
        None => response,
    }
}

/// What tonic itself refused, in our words and with our details: it has none.
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
        // Bytes that are no message, or too few of them.
        Code::InvalidArgument => {
            Failure::new(&reason::INVALID_REQUEST).because(status.message().to_owned())
        }
        _ => Failure::from(status),
    })
}

/// What http has put beside the message.
fn exchange<T>(request: &Request<T>) -> Result<Arc<Exchange>, Status> {
    let found = request.extensions().get::<Arc<Exchange>>().cloned();
    found.ok_or_else(|| Failure::new(&reason::INTERNAL).into())
}

fn admit(exchange: &Exchange, operation: Operation, call: call::Body) -> Result<Admitted, Failure> {
    exchange.seen.asks(operation);
    // Also without any metadata: to be lenient here would only hide what clients forget, and the
    // official ones do not.
    negotiation::must_be_1(exchange, negotiation::version(exchange)?, operation)?;
    admission::admit(exchange, operation, None, call)
}

/// A call with one answer, of the kind that `take` finds.
async fn once<T, A>(
    request: Request<T>,
    operation: Operation,
    call: fn(T) -> call::Body,
    take: fn(reply::Body) -> Option<A>,
) -> Result<Response<A>, Status> {
    let exchange = exchange(&request)?;
    let asked = async {
        let admitted = admit(&exchange, operation, call(request.into_inner()))?;
        let answer = admission::once(&exchange, admitted).await?;
        let taken = take(answer.body).ok_or_else(validate::wrong_answer)?;
        Ok((taken, answer.extensions))
    };
    let (taken, extensions) = asked.await.map_err(|f| exchange.reporter().status(f))?;
    exchange.went_well();
    Ok(respond(&exchange, taken, &extensions))
}

type Events = Pin<Box<dyn Stream<Item = Result<StreamResponse, Status>> + Send>>;

/// A call with many answers. A failure before the first one is the status of the call itself.
async fn many<T>(
    request: Request<T>,
    operation: Operation,
    call: fn(T) -> call::Body,
) -> Result<Response<Events>, Status> {
    let exchange = exchange(&request)?;
    let opened = async {
        let admitted = admit(&exchange, operation, call(request.into_inner()))?;
        let mut frames = admission::stream(&exchange, admitted).await?;
        let first = frames.next().await.transpose()?;
        Ok((first, frames))
    };
    let (first, frames) = opened.await.map_err(|f| exchange.reporter().status(f))?;
    let extensions = frames.extensions().to_vec();
    let first = stream::iter(first.and_then(|frame| frame.response).map(Ok));
    let events = first.chain(following(frames, Arc::clone(&exchange))).boxed();
    Ok(respond(&exchange, events, &extensions))
}

/// The exchange is kept for its span, which is open for as long as the stream is.
fn following(
    frames: FrameStream,
    exchange: Arc<Exchange>,
) -> impl Stream<Item = Result<StreamResponse, Status>> {
    stream::unfold((frames, exchange), |(mut frames, exchange)| async move {
        let Some(item) = frames.next().await else {
            exchange.went_well();
            return None;
        };
        let item = match item {
            Ok(frame) => Ok(frame.response.unwrap_or_default()),
            Err(failure) => Err(exchange.reporter().status(failure)),
        };
        Some((item, (frames, exchange)))
    })
}

fn respond<T>(exchange: &Exchange, answer: T, active: &[String]) -> Response<T> {
    let mut response = Response::new(answer);
    extensions::put(active, &exchange.head.headers, response.metadata_mut().as_mut());
    response
}

struct Doors;

#[tonic::async_trait]
impl A2aService for Doors {
    type SendStreamingMessageStream = Events;
    type SubscribeToTaskStream = Events;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        once(request, Operation::SendMessage, call::Body::Send, |answer| match answer {
            reply::Body::Sent(sent) => Some(sent),
            _ => None,
        })
        .await
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<Events>, Status> {
        many(request, Operation::SendStreamingMessage, call::Body::Stream).await
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        once(request, Operation::GetTask, call::Body::Get, task).await
    }

    async fn list_tasks(
        &self,
        request: Request<ListTasksRequest>,
    ) -> Result<Response<ListTasksResponse>, Status> {
        once(request, Operation::ListTasks, call::Body::List, |answer| match answer {
            reply::Body::List(list) => Some(list),
            _ => None,
        })
        .await
    }

    async fn cancel_task(
        &self,
        request: Request<CancelTaskRequest>,
    ) -> Result<Response<Task>, Status> {
        once(request, Operation::CancelTask, call::Body::Cancel, task).await
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<Events>, Status> {
        let subscribe =
            |request| call::Body::Subscribe(Subscribe { request: Some(request), after: None });
        many(request, Operation::SubscribeToTask, subscribe).await
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let operation = Operation::CreateTaskPushNotificationConfig;
        once(request, operation, call::Body::CreatePush, push).await
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let operation = Operation::GetTaskPushNotificationConfig;
        once(request, operation, call::Body::GetPush, push).await
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        let operation = Operation::ListTaskPushNotificationConfigs;
        once(request, operation, call::Body::ListPush, |answer| match answer {
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
        once(request, operation, call::Body::DeletePush, |answer| match answer {
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
        once(request, operation, call::Body::ExtendedCard, |answer| match answer {
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

/// What `/healthz` says, as gRPC says it.
struct Pulse {
    links: Links,
    drain: Drain,
}

type Beats = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for Pulse {
    type WatchStream = Beats;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        is_known(&request.into_inner().service)?;
        Ok(Response::new(health(self.links.is_up() && !self.drain.is_signalled())))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Beats>, Status> {
        is_known(&request.into_inner().service)?;
        let taken = server::acquire(Resource::HealthWatch).map_err(Status::from)?;
        let beats = stream::unfold((self.links.ups(), None), |(mut ups, said)| async move {
            let is_up = *ups.wait_for(|ups| Some(*ups > 0) != said).await.ok()? > 0;
            Some((Ok(health(is_up)), (ups, Some(is_up))))
        });
        // A watch has no end of its own, and a drain would wait for it.
        let drain = self.drain.clone();
        let beats = beats.take_until(async move { drain.signalled().await });
        let last = stream::iter([Ok(health(false))]);
        // Counted for as long as it is open.
        let beats = beats.chain(last).map(move |beat| {
            let _counted = &taken;
            beat
        });
        Ok(Response::new(beats.boxed()))
    }
}

fn is_known(service: &str) -> Result<(), Status> {
    match service {
        "" | "lf.a2a.v1.A2AService" => Ok(()),
        _ => Err(Failure::new(&reason::NOT_FOUND).because("no such service is here").into()),
    }
}

fn health(is_up: bool) -> HealthCheckResponse {
    let status = if is_up { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status as i32 }
}
