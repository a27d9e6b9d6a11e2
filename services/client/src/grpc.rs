//! A2A over gRPC. Every operation is a method of one service, called by its name.

use std::time::Duration;

use faultline_chassis::{Timeouts, client::Channel, limits};
use faultline_proto::{Failure, v1::Plane};
use http::{HeaderMap, uri::PathAndQuery};
use tonic::{Status, client, metadata::MetadataMap};
use tonic_prost::ProstCodec;

use crate::{
    events::Events,
    operation::{Operation, Request},
    retry::Fault,
    transport::Answer,
};

const SERVICE: &str = "/lf.a2a.v1.A2AService/";

/// One peer. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Grpc {
    channel: Channel,
}

impl Grpc {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    pub(crate) async fn call<Q: Request, A: Answer>(
        &self,
        operation: Operation<Q>,
        headers: HeaderMap,
    ) -> Result<A, Fault> {
        let (path, timeout) = (path(operation.name), operation.patience);
        let request = request(operation.request, headers, timeout);
        let answer = self.peer().unary(request, path, ProstCodec::<Q, A>::default()).await;
        Ok(answer.map_err(fault)?.into_inner())
    }

    /// No clock runs on a stream: the pings of its connection find a dead peer.
    pub(crate) async fn stream<Q: Request>(
        &self,
        operation: Operation<Q>,
        headers: HeaderMap,
    ) -> Result<Events, Fault> {
        let request = request(operation.request, headers, None);
        let codec = ProstCodec::<Q, _>::default();
        let answer = self.peer().server_streaming(request, path(operation.name), codec).await;
        Ok(Events::grpc(answer.map_err(fault)?.into_inner()))
    }

    fn peer(&self) -> client::Grpc<Channel> {
        client::Grpc::new(self.channel.clone())
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX)
    }
}

fn path(name: &str) -> PathAndQuery {
    let path = format!("{SERVICE}{name}");
    PathAndQuery::from_maybe_shared(path).expect("the names of operations are letters")
}

fn request<Q>(message: Q, headers: HeaderMap, timeout: Option<Duration>) -> tonic::Request<Q> {
    let mut request = tonic::Request::new(message);
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    request.extensions_mut().insert(Timeouts { total: timeout, idle: None });
    request
}

/// Only our own record says that the peer itself refused; from a bare code nobody can tell whether
/// the call was ever seen.
fn fault(status: Status) -> Fault {
    let failure = Failure::from(status);
    match failure.plane() {
        Plane::Transport => Fault::lost(failure),
        _ => Fault::from(failure),
    }
}
