//! A gRPC service over real sockets that implements only `Agents` of the operators' Mesh.

use axum::{Router, body::Body, extract::Request as HttpRequest, routing::any};
use faultline_proto::v1::{AgentsRequest, AgentsResponse};
use tonic::{Request, Response, Status, server::Grpc};
use tonic_prost::ProstCodec;

/// Serves `Agents` by `answer`.
pub(crate) fn agents<F, A>(answer: F) -> Router
where
    F: Fn(AgentsRequest) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Result<AgentsResponse, Status>> + Send + 'static,
{
    let handle = async move |request: HttpRequest| {
        let unary = tower::service_fn(move |request: Request<AgentsRequest>| {
            let answered = answer(request.into_inner());
            async move { answered.await.map(Response::new) }
        });
        let mut grpc = Grpc::new(ProstCodec::<AgentsResponse, AgentsRequest>::default());
        grpc.unary(unary, request).await.map(Body::new)
    };
    Router::new().route("/faultline.v1.Mesh/Agents", any(handle))
}
