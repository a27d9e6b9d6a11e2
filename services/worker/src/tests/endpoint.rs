//! A2A endpoint of the fake coordinator: the test answers the messages that the worker sends.

use std::pin::Pin;

use faultline_proto::{
    Failure,
    a2a::{self, a2a_service_server::A2aService, send_message_response::Payload},
    reason,
};
use futures::Stream;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status, metadata::MetadataMap};

/// A message of the worker that waits for its answer.
pub(super) struct SentMessage {
    metadata: MetadataMap,
    pub(super) request: a2a::SendMessageRequest,
    answer: oneshot::Sender<Result<a2a::Task, Failure>>,
}

impl SentMessage {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn message(&self) -> &a2a::Message {
        self.request.message.as_ref().unwrap()
    }

    pub(super) fn answer(self, answer: Result<a2a::Task, Failure>) {
        self.answer.send(answer).expect("the worker waits");
    }

    /// Returns when the worker has dropped the call.
    pub(super) async fn dropped(mut self) {
        self.answer.closed().await;
    }
}

pub(super) struct A2aEndpoint {
    pub(super) sent: mpsc::Sender<SentMessage>,
    /// The ids of tasks that the worker cancelled.
    pub(super) cancelled: mpsc::Sender<String>,
    /// Frames for the subscriber of a task; one subscriber at a time.
    pub(super) watched: tokio::sync::Mutex<mpsc::Receiver<a2a::StreamResponse>>,
}

type Frames = Pin<Box<dyn Stream<Item = Result<a2a::StreamResponse, Status>> + Send>>;

fn unimplemented_call<T>() -> Result<Response<T>, Status> {
    Err(Failure::new(&reason::UNIMPLEMENTED).into())
}

#[tonic::async_trait]
impl A2aService for A2aEndpoint {
    type SendStreamingMessageStream = Frames;
    type SubscribeToTaskStream = Frames;

    async fn send_message(
        &self,
        request: Request<a2a::SendMessageRequest>,
    ) -> Result<Response<a2a::SendMessageResponse>, Status> {
        let metadata = request.metadata().clone();
        let (answer, answered) = oneshot::channel();
        let sent = SentMessage { metadata, request: request.into_inner(), answer };
        self.sent.send(sent).await.expect("the test listens");
        let broken = || Failure::new(&reason::UNAVAILABLE);
        let task = answered.await.unwrap_or_else(|_| Err(broken()))?;
        Ok(Response::new(a2a::SendMessageResponse { payload: Some(Payload::Task(task)) }))
    }

    async fn subscribe_to_task(
        &self,
        _: Request<a2a::SubscribeToTaskRequest>,
    ) -> Result<Response<Frames>, Status> {
        let frame = self.watched.lock().await.recv().await;
        let frames = futures::stream::iter(frame.map(Ok));
        Ok(Response::new(Box::pin(frames)))
    }

    async fn send_streaming_message(
        &self,
        _: Request<a2a::SendMessageRequest>,
    ) -> Result<Response<Frames>, Status> {
        unimplemented_call()
    }

    async fn get_task(
        &self,
        _: Request<a2a::GetTaskRequest>,
    ) -> Result<Response<a2a::Task>, Status> {
        unimplemented_call()
    }

    async fn list_tasks(
        &self,
        _: Request<a2a::ListTasksRequest>,
    ) -> Result<Response<a2a::ListTasksResponse>, Status> {
        unimplemented_call()
    }

    async fn cancel_task(
        &self,
        request: Request<a2a::CancelTaskRequest>,
    ) -> Result<Response<a2a::Task>, Status> {
        self.cancelled.send(request.into_inner().id).await.expect("the test listens");
        Ok(Response::new(a2a::Task::default()))
    }

    async fn create_task_push_notification_config(
        &self,
        _: Request<a2a::TaskPushNotificationConfig>,
    ) -> Result<Response<a2a::TaskPushNotificationConfig>, Status> {
        unimplemented_call()
    }

    async fn get_task_push_notification_config(
        &self,
        _: Request<a2a::GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<a2a::TaskPushNotificationConfig>, Status> {
        unimplemented_call()
    }

    async fn list_task_push_notification_configs(
        &self,
        _: Request<a2a::ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<a2a::ListTaskPushNotificationConfigsResponse>, Status> {
        unimplemented_call()
    }

    async fn delete_task_push_notification_config(
        &self,
        _: Request<a2a::DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<()>, Status> {
        unimplemented_call()
    }

    async fn get_extended_agent_card(
        &self,
        _: Request<a2a::GetExtendedAgentCardRequest>,
    ) -> Result<Response<a2a::AgentCard>, Status> {
        unimplemented_call()
    }
}
