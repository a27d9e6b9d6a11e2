//! The gRPC binding: every operation is a method of one service.

use faultline_chassis::{client::Channel, limits};
use faultline_proto::{Failure, reason, v1::Plane};
use http::{HeaderMap, uri::PathAndQuery};
use tonic::{Status, Streaming, client, metadata::MetadataMap};
use tonic_prost::ProstCodec;

use crate::{
    protocol::{
        operation::{Operation, Request},
        wire_error,
    },
    transport::{
        binding::ResponseMessage,
        events::Events,
        retry::Fault,
        timeouts::{Layer, Timeouts},
    },
};

const SERVICE: &str = "/lf.a2a.v1.A2AService/";

/// The channel to one server. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Grpc {
    channel: Channel,
    timeouts: Timeouts,
}

impl Grpc {
    pub(crate) fn new(channel: Channel, timeouts: Timeouts) -> Self {
        Self { channel, timeouts }
    }

    /// The server is not sent the timeout of this call: it would take the timeout for that of the
    /// task.
    pub(crate) async fn call<Q: Request, A: ResponseMessage>(
        &self,
        operation: Operation<Q>,
        headers: HeaderMap,
    ) -> Result<A, Fault> {
        let call = async {
            // A unary response is read as a stream of one message, so that its first byte can be
            // observed.
            let mut stream: Streaming<A> = self.begin(operation, headers).await?;
            let read = Layer::Read.bound(self.timeouts.read, stream.message()).await?;
            let answer = read.map_err(fault)?;
            Layer::Read.bound(self.timeouts.read, stream.message()).await?.map_err(fault)?;
            answer.ok_or_else(|| {
                Fault::lost(wire_error::invalid_response("the server answered nothing"))
            })
        };
        Layer::Total.bound(self.timeouts.total, call).await?
    }

    /// A stream that has begun has no timeout: HTTP/2 pings detect a dead server.
    pub(crate) async fn stream<Q: Request>(
        &self,
        operation: Operation<Q>,
        headers: HeaderMap,
    ) -> Result<Events, Fault> {
        Ok(Events::grpc(self.begin(operation, headers).await?))
    }

    async fn begin<Q: Request, A: ResponseMessage>(
        &self,
        operation: Operation<Q>,
        headers: HeaderMap,
    ) -> Result<Streaming<A>, Fault> {
        let mut request = tonic::Request::new(operation.request);
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        let (mut peer, codec) = (self.peer(), ProstCodec::<Q, A>::default());
        let begun = peer.server_streaming(request, path(operation.name), codec);
        let answer = Layer::Read.bound(self.timeouts.read, begun).await?;
        Ok(answer.map_err(fault)?.into_inner())
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

/// Only a faultline record shows that the server itself rejected the call; with a bare code the
/// outcome is unknown.
fn fault(status: Status) -> Fault {
    let failure = Failure::from(status);
    match failure.plane() {
        _ if failure.row() == &reason::CONNECT_TIMEOUT => Fault::unsent(failure),
        Plane::Transport => Fault::lost(failure),
        _ => Fault::from(failure),
    }
}
