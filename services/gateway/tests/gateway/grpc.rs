//! The gRPC binding: every method, metadata, errors and health.

use std::{str::FromStr, time::Duration};

use bytes::Bytes;
use faultline_chassis::{client::Channel, limits};
use faultline_proto::{
    Failure,
    a2a::{
        CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest,
        ListTaskPushNotificationConfigsRequest, ListTasksRequest, Message, Part, Role,
        SendMessageRequest, SubscribeToTaskRequest, TaskPushNotificationConfig,
        a2a_service_client::A2aServiceClient, part::Content, send_message_response,
        stream_response,
    },
    status::from_status,
};
use http::{HeaderMap, Request as HttpRequest};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost_types::{ListValue, Struct, Timestamp, Value, value::Kind};
use tokio::net::TcpStream;
use tonic::{Code, Request, Status, metadata::MetadataValue};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{Mesh, soon};

fn grpc(mesh: &Mesh) -> A2aServiceClient<Channel> {
    A2aServiceClient::new(Channel::without_token(&mesh.address.to_string()).unwrap())
}

/// A request with metadata, of version 1.0 by default.
fn with<T>(metadata: &[(&'static str, &str)], message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("a2a-version", MetadataValue::from_static("1.0"));
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, MetadataValue::from_str(value).unwrap());
    }
    request
}

fn v1<T>(message: T) -> Request<T> {
    with(&[], message)
}

pub(crate) fn say(text: &str) -> SendMessageRequest {
    let part = Part { content: Some(Content::Text(text.to_owned())), ..Part::default() };
    let message = Message {
        message_id: "m-1".to_owned(),
        role: Role::User as i32,
        parts: vec![part],
        ..Message::default()
    };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

fn field(status: &Status) -> String {
    from_status(status).violations[0].field.clone()
}

#[tokio::test]
async fn every_grpc_method_answers() {
    let mesh = Mesh::start().await;
    let mut client = grpc(&mesh);
    let id = "p-1".to_owned();
    let task_id = "t-1".to_owned();
    let request = SendMessageRequest { tenant: "plan".to_owned(), ..say("x") };
    let sent = client.send_message(v1(request)).await.unwrap().into_inner();
    match sent.payload {
        Some(send_message_response::Payload::Task(task)) => assert_eq!(task.id, "plan"),
        other => panic!("{other:?}"),
    }
    let get = GetTaskRequest { id: "t-7".to_owned(), ..Default::default() };
    assert_eq!(client.get_task(v1(get)).await.unwrap().into_inner().id, "t-7");
    assert!(client.list_tasks(v1(ListTasksRequest::default())).await.is_ok());
    let cancel = CancelTaskRequest { id: "t-7".to_owned(), ..Default::default() };
    let refused = client.cancel_task(v1(cancel)).await.unwrap_err();
    assert_eq!((refused.code(), from_status(&refused).task_id.as_str()), (Code::NotFound, "t-7"));
    let config = TaskPushNotificationConfig {
        task_id: task_id.clone(),
        url: "https://hook.example".to_owned(),
        ..Default::default()
    };
    let created = client.create_task_push_notification_config(v1(config)).await.unwrap();
    assert_eq!(created.into_inner().id, id);
    let get = GetTaskPushNotificationConfigRequest {
        task_id: task_id.clone(),
        id: id.clone(),
        ..Default::default()
    };
    let got = client.get_task_push_notification_config(v1(get)).await.unwrap().into_inner();
    assert_eq!((got.task_id, got.id), (task_id.clone(), id.clone()));
    let list =
        ListTaskPushNotificationConfigsRequest { task_id: task_id.clone(), ..Default::default() };
    assert!(client.list_task_push_notification_configs(v1(list)).await.is_ok());
    let delete = DeleteTaskPushNotificationConfigRequest { task_id, id, ..Default::default() };
    assert!(client.delete_task_push_notification_config(v1(delete)).await.is_ok());
    let card = GetExtendedAgentCardRequest { tenant: "plan".to_owned() };
    let card = client.get_extended_agent_card(v1(card)).await.unwrap().into_inner();
    assert_eq!(card.name, "plan");
    assert!(card.supported_interfaces[0].url.ends_with("/agents/plan"), "{card:?}");
}

#[tokio::test]
async fn stream_comes_in_order_and_fails_with_a_status() {
    let mesh = Mesh::start().await;
    let mut client = grpc(&mesh);
    let mut stream =
        client.send_streaming_message(v1(say("count 300"))).await.unwrap().into_inner();
    for n in 1..=300 {
        match soon("a frame", stream.message()).await.unwrap().unwrap().payload {
            Some(stream_response::Payload::Task(task)) => assert_eq!(task.id, format!("t-{n}")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(soon("the end", stream.message()).await.unwrap(), None);
    let subscribe = || SubscribeToTaskRequest { id: "t".to_owned(), ..Default::default() };
    let resumed = with(&[("last-event-id", "4")], subscribe());
    let mut stream = client.subscribe_to_task(resumed).await.unwrap().into_inner();
    match stream.message().await.unwrap().unwrap().payload {
        Some(stream_response::Payload::Task(task)) => assert_eq!(task.id, "t-5"),
        other => panic!("{other:?}"),
    }
    let mut stream = client.send_streaming_message(v1(say("break"))).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let broken = from_status(&stream.message().await.unwrap_err());
    assert_eq!((broken.reason.as_str(), broken.causes.len()), ("RATE_LIMITED", 2));
    let early = client.send_streaming_message(v1(say("fail"))).await.unwrap_err();
    assert_eq!(early.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn grpc_violations_name_the_field_and_versions_are_checked() {
    let mesh = Mesh::start().await;
    let mut client = grpc(&mesh);
    let empty = client.send_message(v1(SendMessageRequest::default())).await.unwrap_err();
    assert_eq!((empty.code(), field(&empty)), (Code::InvalidArgument, "message".to_owned()));
    let nameless = client.get_task(v1(GetTaskRequest::default())).await.unwrap_err();
    assert_eq!(field(&nameless), "id");
    for (status, seconds, nanos, wrong) in [
        (99, 0, 0, "status"),
        (0, 1 << 62, 0, "statusTimestampAfter"),
        (0, 0, -1, "statusTimestampAfter"),
        (0, 0, i32::MAX, "statusTimestampAfter"),
    ] {
        let status_timestamp_after = Some(Timestamp { seconds, nanos });
        let list = ListTasksRequest { status, status_timestamp_after, ..Default::default() };
        assert_eq!(field(&client.list_tasks(v1(list)).await.unwrap_err()), wrong);
    }
    let bare = Request::new(ListTasksRequest::default());
    for request in [
        bare,
        with(&[("a2a-version", "0.3")], ListTasksRequest::default()),
        with(&[("a2a-version", "2.0")], ListTasksRequest::default()),
    ] {
        let refused = client.list_tasks(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(from_status(&refused).reason, "VERSION_NOT_SUPPORTED");
        assert!(refused.message().contains("A2A-Version"), "{refused:?}");
    }
}

/// The JSON parser rejects such values. A protobuf decoder accepts them, but the decoder at the
/// other end of the link would fail, which ends the link for all calls.
#[tokio::test]
async fn protobuf_values_outside_of_json_are_rejected() {
    let mesh = Mesh::start().await;
    let mut client = grpc(&mesh);
    let nested = |levels: usize| {
        let wrap = |value: Value, _| Kind::ListValue(ListValue { values: vec![value] }).into();
        (0..levels).fold(Kind::BoolValue(true).into(), wrap)
    };
    for number in [None, Some(f64::NAN), Some(f64::INFINITY)] {
        let value = Value { kind: number.map(Kind::NumberValue) };
        let mut data = say("x");
        data.message.as_mut().unwrap().parts[0].content = Some(Content::Data(value));
        let refused = client.send_message(v1(data)).await.unwrap_err();
        assert_eq!(field(&refused), "message.parts[0].data", "{number:?}");
    }
    let object = |levels: usize| {
        Some(Struct { fields: [("k".to_owned(), nested(levels - 1))].into_iter().collect() })
    };
    for (levels, is_fine) in [(limits::DATA_DEPTH_MAX, true), (25, false), (47, false)] {
        let mut data = say("x");
        data.message.as_mut().unwrap().parts[0].content = Some(Content::Data(nested(levels)));
        let mut of_part = say("x");
        of_part.message.as_mut().unwrap().parts[0].metadata = object(levels);
        let mut of_message = say("x");
        of_message.message.as_mut().unwrap().metadata = object(levels);
        let of_request = SendMessageRequest { metadata: object(levels), ..say("x") };
        for (request, wrong) in [
            (data, "message.parts[0].data"),
            (of_part, "message.parts[0].metadata"),
            (of_message, "message.metadata"),
            (of_request, "metadata"),
        ] {
            match client.send_message(v1(request)).await {
                Ok(_) => assert!(is_fine, "{levels} levels of {wrong}"),
                Err(refused) => assert_eq!((is_fine, &*field(&refused)), (false, wrong)),
            }
        }
        let id = "t".to_owned();
        let cancel = CancelTaskRequest { id, metadata: object(levels), ..Default::default() };
        let refused = client.cancel_task(v1(cancel)).await.unwrap_err();
        assert_eq!(refused.code() == Code::NotFound, is_fine, "{refused:?}");
    }
}

#[tokio::test]
async fn metadata_reaches_the_coordinator_and_comes_back() {
    let mesh = Mesh::start().await;
    let mut client = grpc(&mesh);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let metadata = [
        ("traceparent", trace),
        ("idempotency-key", "k-1"),
        ("a2a-extensions", "https://known.example, https://other.example"),
    ];
    let mut request = with(&metadata, say("x"));
    request.set_timeout(Duration::from_secs(10));
    let sent = client.send_message(request).await.unwrap();
    assert_eq!(sent.metadata().get("a2a-extensions").unwrap(), "https://known.example");
    let caller = mesh.fake.last_call().await.caller.unwrap();
    assert!(caller.traceparent.starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
    assert_eq!((caller.idempotency_key.as_str(), caller.principal.as_str()), ("k-1", "local"));
    assert_eq!(caller.extensions, ["https://known.example", "https://other.example"]);
    assert!((5_000..10_000).contains(&caller.timeout_ms), "{}", caller.timeout_ms);
    let stream = client.send_streaming_message(with(&metadata[2..], say("open"))).await.unwrap();
    assert_eq!(stream.metadata().get("a2a-extensions").unwrap(), "https://known.example");
    let mut impatient = v1(say("hang"));
    impatient.set_timeout(Duration::from_millis(50));
    let late = soon("the deadline", client.send_message(impatient)).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
}

/// One request over HTTP/2 with these bytes, and its answer.
async fn over_h2(
    mesh: &Mesh,
    path: &str,
    kind: &str,
    body: &'static [u8],
) -> (HeaderMap, Bytes, HeaderMap) {
    let stream = TcpStream::connect(mesh.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let request = HttpRequest::post(format!("http://{}{path}", mesh.address))
        .header("content-type", kind)
        .header("a2a-version", "1.0")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(body)))
        .unwrap();
    let response = soon("an answer", sender.send_request(request)).await.unwrap();
    let (head, body) = response.into_parts();
    let body = soon("the end", body.collect()).await.unwrap();
    connection.abort();
    let trailers = body.trailers().cloned().unwrap_or_default();
    (head.headers, body.to_bytes(), trailers)
}

async fn raw(mesh: &Mesh, path: &str, body: &'static [u8]) -> Failure {
    let (headers, _, trailers) = over_h2(mesh, path, "application/grpc", body).await;
    assert_eq!(headers["content-type"], "application/grpc");
    let status = Status::from_header_map(&headers).or_else(|| Status::from_header_map(&trailers));
    from_status(&status.expect("a status"))
}

#[tokio::test]
async fn json_goes_over_http2_as_well() {
    let mesh = Mesh::start().await;
    let rpc = br#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t-7"}}"#;
    let (headers, body, _) = over_h2(&mesh, "/", "application/json", rpc).await;
    assert_eq!(headers["content-type"], "application/json");
    assert!(body.starts_with(br#"{"jsonrpc":"2.0","id":1,"result":{"id":"t-7""#), "{body:?}");
    let rest = br#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}"#;
    let (headers, body, _) = over_h2(&mesh, "/plan/message:send", "application/json", rest).await;
    assert_eq!(headers["content-type"], "application/a2a+json");
    assert!(body.starts_with(br#"{"task":{"id":"plan""#), "{body:?}");
}

#[tokio::test]
async fn invalid_grpc_request_gets_a_status_with_details() {
    let mesh = Mesh::start().await;
    let method = "/lf.a2a.v1.A2AService/GetTask";
    for (path, body, code, reason) in [
        ("/lf.a2a.v1.A2AService/Nothing", &b"\0\0\0\0\0"[..], 12, "METHOD_NOT_FOUND"),
        ("/nobody.v1.Service/Nothing", b"\0\0\0\0\0", 12, "METHOD_NOT_FOUND"),
        (method, b"\0\0\0\0\x02\xff\xff", 3, "INVALID_REQUEST"),
        (method, b"\0\0\0\0\x07\x12", 3, "INVALID_REQUEST"),
        (method, b"", 3, "INVALID_REQUEST"),
        (method, b"\x09\0\0\0\0", 3, "INVALID_REQUEST"),
        (method, b"\0\0\0\0\0", 3, "INVALID_PARAMS"),
    ] {
        let failure = raw(&mesh, path, body).await;
        assert_eq!((failure.code() as i32, failure.reason.as_str()), (code, reason), "{path}");
        assert!(!failure.trace_id.is_empty(), "the failure has its details");
    }
    let health = raw(&mesh, "/grpc.health.v1.Health/Check", b"\0\0\0\0\0").await;
    assert_eq!(health.reason, "UNKNOWN", "OK is not a failure");
}

#[tokio::test]
async fn health_watch_does_not_delay_a_drain() {
    let mesh = Mesh::start().await;
    let mut client = HealthClient::new(Channel::without_token(&mesh.address.to_string()).unwrap());
    let mut states = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    let mut next = async || {
        let state = soon("a health state", states.message()).await.unwrap();
        state.map(|state| state.status())
    };
    assert_eq!(next().await, Some(ServingStatus::Serving));
    mesh.drain.start();
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    assert_eq!(next().await, None);
    let left = tokio::time::timeout(Duration::from_secs(5), mesh.running).await;
    assert!(left.is_ok(), "the drain ends before its timeout");
}
