//! The A2A service of the middle: the two send methods forward calls, the others are unsupported.

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
};
use tonic::{Request, Response, Status};

use super::{Boxed, Middle};

fn refused<T>() -> Result<Response<T>, Status> {
    Err(Failure::new(&reason::UNSUPPORTED_OPERATION).into())
}

#[tonic::async_trait]
impl A2aService for Middle {
    type SendStreamingMessageStream = Boxed<StreamResponse>;
    type SubscribeToTaskStream = Boxed<StreamResponse>;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        self.send(request.into_inner()).await.map(Response::new)
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<Boxed<StreamResponse>>, Status> {
        self.stream(request.into_inner()).await.map(Response::new)
    }

    async fn get_task(&self, _: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        refused()
    }

    async fn list_tasks(
        &self,
        _: Request<ListTasksRequest>,
    ) -> Result<Response<ListTasksResponse>, Status> {
        refused()
    }

    async fn cancel_task(&self, _: Request<CancelTaskRequest>) -> Result<Response<Task>, Status> {
        refused()
    }

    async fn subscribe_to_task(
        &self,
        _: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<Boxed<StreamResponse>>, Status> {
        refused()
    }

    async fn create_task_push_notification_config(
        &self,
        _: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        refused()
    }

    async fn get_task_push_notification_config(
        &self,
        _: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        refused()
    }

    async fn list_task_push_notification_configs(
        &self,
        _: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        refused()
    }

    async fn delete_task_push_notification_config(
        &self,
        _: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<()>, Status> {
        refused()
    }

    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        refused()
    }
}
