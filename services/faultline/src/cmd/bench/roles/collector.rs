//! A span collector: it receives OTLP over gRPC, decodes only as much as counting needs, and
//! reports the count by HTTP GET.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{Method, Response},
};
use faultline_chassis::{Drain, limits, process::print_ready_line, server};
use futures::future::{Ready, ready as now};
use tokio::net::TcpListener;
use tonic::{Status, server::UnaryService};
use tonic_prost::ProstCodec;

/// `ExportTraceServiceRequest`, reduced to the fields that counting needs.
#[derive(Clone, PartialEq, prost::Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<OfResource>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfResource {
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<OfScope>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfScope {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    spans: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Exported {}

#[derive(Clone, Default)]
struct Count(Arc<AtomicU64>);

pub(crate) async fn serve() -> anyhow::Result<()> {
    let router = Router::new().fallback(handle).with_state(Count::default());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    print_ready_line(&format!("ready http://{}", listener.local_addr()?))?;
    server::serve(listener, router, Drain::new(), Duration::ZERO).await;
    Ok(())
}

async fn handle(State(count): State<Count>, request: Request) -> Response<Body> {
    if request.method() == Method::GET {
        return Response::new(Body::from(count.0.load(Ordering::Relaxed).to_string()));
    }
    let codec = ProstCodec::<Exported, Export>::default();
    let mut grpc = tonic::server::Grpc::new(codec)
        .apply_max_message_size_config(Some(limits::GRPC_BYTES_MAX), None);
    grpc.unary(count, request).await.map(Body::new)
}

impl UnaryService<Export> for Count {
    type Response = Exported;
    type Future = Ready<Result<tonic::Response<Exported>, Status>>;

    fn call(&mut self, request: tonic::Request<Export>) -> Self::Future {
        let scopes = request.get_ref().resources.iter().flat_map(|resource| &resource.scopes);
        let spans: usize = scopes.map(|scope| scope.spans.len()).sum();
        self.0.fetch_add(spans as u64, Ordering::Relaxed);
        now(Ok(tonic::Response::new(Exported {})))
    }
}
