//! The open doors: A2A over gRPC, for agents that delegate and clients that speak it, and the
//! operators' Mesh. Thin: it turns calls into operations and their refusals into statuses.

use std::{pin::Pin, sync::Arc};

use faultline_chassis::trace::TRACEPARENT;
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
    reason,
    v1::{
        AgentsRequest, AgentsResponse, Caller as Asked, InspectRequest, InspectResponse,
        WorkersRequest, WorkersResponse, mesh_server::Mesh,
    },
};
use futures::Stream;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::{
    core::Core,
    error::Error,
    link::{log_private, record, serve_span},
    subscription::Subscription,
};

/// Names the last event a subscriber has seen, as `Last-Event-ID` does over HTTP.
const LAST_EVENT_ID: &str = "last-event-id";

#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) core: Arc<Core>,
}

type Frames = Pin<Box<dyn Stream<Item = Result<StreamResponse, Status>> + Send>>;

fn asked(metadata: &MetadataMap) -> Asked {
    let traceparent = metadata.get(TRACEPARENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    Asked { traceparent: traceparent.to_owned(), timeout_ms: 0, ..Asked::default() }
}

fn refused(error: impl Into<Failure>) -> Status {
    let failure = error.into();
    log_private(&failure);
    failure.into()
}

fn not_offered(what: &str) -> Status {
    Failure::new(&reason::UNSUPPORTED_OPERATION)
        .because(format!("{what} is not offered by this mesh"))
        .into()
}

fn no_push() -> Status {
    Failure::new(&reason::PUSH_NOTIFICATION_NOT_SUPPORTED).into()
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
        let (span, caller) = serve_span("SendMessage", &asked(request.metadata()));
        let (done, answer) = oneshot::channel();
        let done = Box::new(move |sent| drop(done.send(sent)));
        self.core.send(request.into_inner(), caller, done);
        let answer = answer.await.unwrap_or_else(|_| Err(Error::Leaving.into()));
        record(&span, answer.as_ref().err());
        Ok(Response::new(answer.map_err(refused)?))
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<Frames>, Status> {
        let (_span, caller) = serve_span("SendStreamingMessage", &asked(request.metadata()));
        let subscription = self.core.stream(request.into_inner(), caller).await.map_err(refused)?;
        Ok(Response::new(frames(subscription)))
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        Ok(Response::new(self.core.get(request.into_inner()).await.map_err(refused)?))
    }

    async fn list_tasks(
        &self,
        request: Request<ListTasksRequest>,
    ) -> Result<Response<ListTasksResponse>, Status> {
        Ok(Response::new(self.core.list(request.into_inner()).await.map_err(refused)?))
    }

    async fn cancel_task(
        &self,
        request: Request<CancelTaskRequest>,
    ) -> Result<Response<Task>, Status> {
        Ok(Response::new(self.core.cancel(request.into_inner()).await.map_err(refused)?))
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
        let request = request.into_inner();
        let subscribed = self.core.subscribe(&request.id, &request.tenant, after).await;
        Ok(Response::new(frames(subscribed.map_err(refused)?)))
    }

    async fn create_task_push_notification_config(
        &self,
        _: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        Err(no_push())
    }

    async fn get_task_push_notification_config(
        &self,
        _: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        Err(no_push())
    }

    async fn list_task_push_notification_configs(
        &self,
        _: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        Err(no_push())
    }

    async fn delete_task_push_notification_config(
        &self,
        _: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<()>, Status> {
        Err(no_push())
    }

    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        Err(not_offered("an extended agent card"))
    }
}

#[tonic::async_trait]
impl Mesh for Doors {
    async fn agents(
        &self,
        request: Request<AgentsRequest>,
    ) -> Result<Response<AgentsResponse>, Status> {
        Ok(Response::new(self.core.agents(&request.into_inner()).map_err(refused)?))
    }

    async fn workers(
        &self,
        _: Request<WorkersRequest>,
    ) -> Result<Response<WorkersResponse>, Status> {
        Ok(Response::new(self.core.workers()))
    }

    async fn inspect(
        &self,
        request: Request<InspectRequest>,
    ) -> Result<Response<InspectResponse>, Status> {
        Ok(Response::new(self.core.inspect(request.into_inner()).await.map_err(refused)?))
    }
}
