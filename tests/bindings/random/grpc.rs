//! Fuzzing over gRPC: proto messages, whole or with broken bytes.

use bytes::{Buf, BufMut};
use faultline_proto::{a2a, json, status::from_status};
use faultline_tests::Rpc;
use prost::Message;
use rand::{Rng, rngs::StdRng};
use serde_json::Value;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Endpoint,
};

use super::break_bytes;

/// A codec of raw bytes.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining()).to_vec()))
    }
}

/// Sends one request; returns whether the call succeeded.
pub(super) async fn call(rng: &mut StdRng, rpc: &Rpc, operation: &str, params: &Value) -> bool {
    let text = params.to_string();
    let mut bytes = match operation {
        "SendMessage" | "SendStreamingMessage" => encoded::<a2a::SendMessageRequest>(&text),
        "GetTask" => encoded::<a2a::GetTaskRequest>(&text),
        "CancelTask" => encoded::<a2a::CancelTaskRequest>(&text),
        "ListTasks" => encoded::<a2a::ListTasksRequest>(&text),
        "SubscribeToTask" => encoded::<a2a::SubscribeToTaskRequest>(&text),
        "CreateTaskPushNotificationConfig" => encoded::<a2a::TaskPushNotificationConfig>(&text),
        "GetTaskPushNotificationConfig" => {
            encoded::<a2a::GetTaskPushNotificationConfigRequest>(&text)
        }
        "DeleteTaskPushNotificationConfig" => {
            encoded::<a2a::DeleteTaskPushNotificationConfigRequest>(&text)
        }
        "GetExtendedAgentCard" => encoded::<a2a::GetExtendedAgentCardRequest>(&text),
        _ => encoded::<a2a::ListTaskPushNotificationConfigsRequest>(&text),
    };
    if rng.random() {
        break_bytes(rng, &mut bytes);
    }
    let endpoint = Endpoint::from_shared(format!("http://{}", rpc.address()));
    let channel = endpoint
        .expect("an address is a URL")
        .connect()
        .await
        .expect("the port accepts connections");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("the channel is ready");
    let mut request = tonic::Request::new(bytes.clone());
    request.metadata_mut().insert("a2a-version", "1.0".parse().expect("text"));
    let path = format!("/lf.a2a.v1.A2AService/{operation}").parse().expect("a path");
    let called = match operation {
        "SubscribeToTask" | "SendStreamingMessage" => {
            if operation == "SubscribeToTask" {
                // From the first event, because an ended task has a stream then.
                request.metadata_mut().insert("last-event-id", "0".parse().expect("text"));
            }
            stream(client.server_streaming(request, path, Raw).await).await
        }
        _ => client.unary(request, path, Raw).await.map(drop),
    };
    let Err(status) = called else { return true };
    let ours = [tonic::Code::Internal, tonic::Code::Unknown, tonic::Code::Unavailable];
    assert!(!ours.contains(&status.code()), "{operation} {bytes:?}: {status}");
    let failure = from_status(&status);
    assert!(
        !failure.trace_id.is_empty(),
        "an error of the mesh has a trace id: {operation} {status:?}"
    );
    false
}

/// Reads every event of a stream.
async fn stream(
    opened: Result<tonic::Response<tonic::Streaming<Vec<u8>>>, Status>,
) -> Result<(), Status> {
    let mut events = opened?.into_inner();
    let mut count = 0;
    while let Some(event) = events.message().await? {
        let event = a2a::StreamResponse::decode(event.as_slice()).expect("an event");
        assert!(event.payload.is_some(), "an event has a payload");
        count += 1;
    }
    assert!(count > 0, "a stream has an event");
    Ok(())
}

fn encoded<M: Message + json::ProtoJson>(text: &str) -> Vec<u8> {
    json::from_str::<M>(text).expect("a valid request").encode_to_vec()
}
