//! The Mesh service for operators over gRPC. Only operator credentials may call it
//! (`calls::roles`).

use std::pin::Pin;

use faultline_proto::v1::{
    ActivityRequest, ActivityResponse, AgentsRequest, AgentsResponse, Caller as Asked,
    EventsRequest, EventsResponse, FailuresRequest, FailuresResponse, InspectRequest,
    InspectResponse, OperatorAnswerRequest, OperatorCancelRequest, RemoveAgentRequest,
    RemoveAgentResponse, TasksRequest, TasksResponse, WatchRequest, WatchResponse, WorkersRequest,
    WorkersResponse, mesh_server::Mesh,
};
use futures::{Stream, stream};
use tonic::{Request, Response, Status};

use super::{A2aEndpoint, asked, unseen};
use crate::calls::caller::Caller;

type Changes = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

fn opened<T>(request: Request<T>) -> (Caller, T) {
    let caller = Asked { operates: true, ..asked(request.metadata()) }.into();
    (caller, request.into_inner())
}

#[tonic::async_trait]
impl Mesh for A2aEndpoint {
    type WatchStream = Changes;

    async fn agents(
        &self,
        request: Request<AgentsRequest>,
    ) -> Result<Response<AgentsResponse>, Status> {
        Ok(Response::new(self.core.agents(&request.into_inner()).map_err(unseen)?))
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
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.inspect(request, &caller).await.map_err(unseen)?))
    }

    async fn tasks(
        &self,
        request: Request<TasksRequest>,
    ) -> Result<Response<TasksResponse>, Status> {
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.tasks(request, &caller).await.map_err(unseen)?))
    }

    async fn events(
        &self,
        request: Request<EventsRequest>,
    ) -> Result<Response<EventsResponse>, Status> {
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.events(request, &caller).await.map_err(unseen)?))
    }

    async fn activity(
        &self,
        request: Request<ActivityRequest>,
    ) -> Result<Response<ActivityResponse>, Status> {
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.activity(request, &caller).await.map_err(unseen)?))
    }

    async fn failures(
        &self,
        request: Request<FailuresRequest>,
    ) -> Result<Response<FailuresResponse>, Status> {
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.failures(request, &caller).await.map_err(unseen)?))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Changes>, Status> {
        let (caller, request) = opened(request);
        let watching = self.core.changes(request, &caller).map_err(unseen)?;
        let changes = stream::unfold(watching, async |mut watching| {
            let changed = watching.next().await?;
            Some((Ok(changed), watching))
        });
        Ok(Response::new(Box::pin(changes)))
    }

    async fn cancel(
        &self,
        request: Request<OperatorCancelRequest>,
    ) -> Result<Response<InspectResponse>, Status> {
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.operator_cancel(request, &caller).await.map_err(unseen)?))
    }

    async fn remove_agent(
        &self,
        request: Request<RemoveAgentRequest>,
    ) -> Result<Response<RemoveAgentResponse>, Status> {
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.remove_agent(request, &caller).await.map_err(unseen)?))
    }

    async fn answer(
        &self,
        request: Request<OperatorAnswerRequest>,
    ) -> Result<Response<InspectResponse>, Status> {
        let (caller, request) = opened(request);
        Ok(Response::new(self.core.operator_answer(request, &caller).await.map_err(unseen)?))
    }
}
