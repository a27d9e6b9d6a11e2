//! One client for the three bindings of A2A: the same call by JSON-RPC, REST or gRPC, with the
//! answer in one shape, so that one test covers all three. Parameters and results are the JSON form
//! of the proto messages on every binding.

use std::net::SocketAddr;

use bytes::Bytes;
use faultline_proto::{
    a2a::{StreamResponse, a2a_service_client::A2aServiceClient},
    json::{self, ProtoJson},
    v1,
};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use prost::Message;
use serde_json::{Map, Value, json};
use tonic::{
    Response, Status, Streaming,
    metadata::{MetadataMap, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_types::pb;

use crate::{
    Rpc,
    rpc::{Broken, Frames, Reply},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    JsonRpc,
    Rest,
    Grpc,
}

impl Binding {
    pub const ALL: [Binding; 3] = [Binding::JsonRpc, Binding::Rest, Binding::Grpc];
}

/// An A2A endpoint of a mesh: a binding, an address, an agent, and the headers of every call.
#[derive(Clone, Debug)]
pub struct A2aEndpoint {
    pub binding: Binding,
    address: SocketAddr,
    agent: Option<String>,
    headers: Vec<(&'static str, String)>,
}

/// An error answer as a client of this binding sees it. Fields that the binding lacks are `None`.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub http: Option<u16>,
    pub jsonrpc: Option<i64>,
    /// Name of the gRPC code, on gRPC and REST.
    pub status: Option<String>,
    pub message: String,
    /// Details as JSON with their `@type`, in order.
    pub details: Vec<Value>,
    /// Boxed to keep `Result` small.
    pub headers: Box<HeaderMap>,
}

impl Refusal {
    /// The detail whose type name ends with `kind`.
    pub fn detail(&self, kind: &str) -> Option<&Value> {
        let named = |d: &&Value| d["@type"].as_str().is_some_and(|t| t.ends_with(kind));
        self.details.iter().find(named)
    }

    /// Domain and reason of the first detail, which must be an ErrorInfo.
    pub fn reason(&self) -> (&str, &str) {
        let first = self.details.first().unwrap_or_else(|| panic!("no details: {self:?}"));
        let kind = first["@type"].as_str().unwrap_or_default();
        assert!(kind.ends_with("google.rpc.ErrorInfo"), "ErrorInfo comes first: {self:?}");
        let text = |key: &str| first[key].as_str().expect("ErrorInfo is whole");
        (text("domain"), text("reason"))
    }

    /// The fields of the BadRequest detail.
    pub fn fields(&self) -> Vec<&str> {
        let bad = self.detail("BadRequest").map(|d| &d["fieldViolations"]);
        let all = bad.and_then(Value::as_array).into_iter().flatten();
        all.map(|v| v["field"].as_str().expect("a violation names its field")).collect()
    }
}

/// An answer with its headers or metadata.
#[derive(Clone, Debug)]
pub struct Answer {
    pub body: Value,
    pub headers: HeaderMap,
}

/// The events of a stream, by SSE or gRPC.
pub enum Events {
    Sse(Frames),
    Grpc { events: Streaming<StreamResponse>, headers: HeaderMap },
}

impl Events {
    pub fn headers(&self) -> &HeaderMap {
        match self {
            Events::Sse(frames) => &frames.headers,
            Events::Grpc { headers, .. } => headers,
        }
    }

    /// The next event; `None` at the end. A stream that ends without a final error panics.
    pub async fn next(&mut self) -> Result<Option<Value>, Refusal> {
        match self {
            Events::Sse(frames) => match frames.next().await {
                Ok(frame) => Ok(frame.map(|frame| frame.body)),
                Err(Broken::Error(error)) => Err(refusal_in(&error, None, HeaderMap::new())),
                Err(Broken::Cut(why)) => panic!("the stream was cut: {why}"),
            },
            Events::Grpc { events, .. } => match events.message().await {
                Ok(event) => Ok(event.map(|event| value(&event))),
                Err(status) => Err(grpc_refusal(&status)),
            },
        }
    }

    /// All events to the end.
    pub async fn all(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await.expect("the stream ends without an error") {
            all.push(event);
        }
        all
    }
}

impl A2aEndpoint {
    pub fn new(binding: Binding, address: SocketAddr) -> Self {
        let headers = vec![("a2a-version", "1.0".to_owned())];
        Self { binding, address, agent: None, headers }
    }

    /// The endpoint of one agent: a path, or the tenant on gRPC.
    pub fn agent(&self, name: &str) -> Self {
        Self { agent: Some(name.to_owned()), ..self.clone() }
    }

    /// Sets the header or metadata of that name; an empty value removes it.
    pub fn header(&self, name: &'static str, value: impl ToString) -> Self {
        let mut with = self.clone();
        with.headers.retain(|(known, _)| *known != name);
        let value = value.to_string();
        if !value.is_empty() {
            with.headers.push((name, value));
        }
        with
    }

    pub fn bearer(&self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// Calls an operation by its name in the proto.
    pub async fn call(&self, operation: &str, params: Value) -> Result<Value, Refusal> {
        self.exchange(operation, params).await.map(|answer| answer.body)
    }

    /// Calls an operation; the answer includes its headers.
    pub async fn exchange(&self, operation: &str, params: Value) -> Result<Answer, Refusal> {
        match self.binding {
            Binding::JsonRpc => {
                let reply = self.rpc().post(crate::rpc::envelope(operation, params)).await;
                let mut body = reply.json();
                // A request without valid credentials may be refused before its body is read.
                let unread = reply.status == StatusCode::UNAUTHORIZED && body["id"].is_null();
                assert!(unread || body["id"] == 7, "the id comes back: {body}");
                match body.get("error") {
                    Some(error) => {
                        let status = Some(reply.status.as_u16());
                        Err(refusal_in(error, status, reply.headers))
                    }
                    None => Ok(Answer { body: body["result"].take(), headers: reply.headers }),
                }
            }
            Binding::Rest => {
                let request = self.rest(operation, params);
                rest_answer(self.rpc().request(request).await.expect("the gateway answers"))
            }
            Binding::Grpc => self.grpc(operation, params).await,
        }
    }

    pub async fn stream(&self, operation: &str, params: Value) -> Result<Events, Refusal> {
        match self.binding {
            Binding::JsonRpc => {
                let opened = self.rpc().stream(operation, params).await;
                let refused = |error: Value| refusal_in(&error, None, HeaderMap::new());
                opened.map(Events::Sse).map_err(refused)
            }
            Binding::Rest => {
                let opened = self.rpc().bare_stream(self.rest(operation, params)).await;
                match opened.expect("the gateway answers") {
                    Ok(frames) => Ok(Events::Sse(frames)),
                    Err(reply) => {
                        Err(rest_answer(reply)
                            .expect_err("an answer that is not a stream is an error"))
                    }
                }
            }
            Binding::Grpc => self.grpc_stream(operation, params).await,
        }
    }

    fn rpc(&self) -> Rpc {
        let rpc = Rpc::bare(self.address).path(&self.path(""));
        self.headers.iter().fold(rpc, |rpc, (name, value)| rpc.header(name, value))
    }

    fn path(&self, rest: &str) -> String {
        match &self.agent {
            Some(agent) => format!("/agents/{agent}{rest}"),
            None if rest.is_empty() => "/".to_owned(),
            None => rest.to_owned(),
        }
    }

    fn rest(&self, operation: &str, params: Value) -> Request<Full<Bytes>> {
        let mut params = match params {
            Value::Object(params) => params,
            other => panic!("the parameters of {operation} are an object, not {other}"),
        };
        let (method, path) = route(operation, &mut params);
        let mut path = self.path(&path);
        let body = match method {
            Method::POST => Value::Object(params).to_string(),
            _ => {
                path.push_str(&query(&params));
                String::new()
            }
        };
        let mut request = Request::builder().method(method).uri(path);
        request = request.header("host", self.address.to_string());
        if !body.is_empty() {
            request = request.header("content-type", "application/a2a+json");
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(Full::new(body.into())).expect("a request can be built")
    }

    /// A gRPC request: the message with the agent as its tenant, and the metadata.
    fn message<M: ProtoJson>(&self, mut params: Value) -> Result<tonic::Request<M>, Refusal> {
        if let Some(agent) = &self.agent
            && params["tenant"].as_str().unwrap_or_default().is_empty()
        {
            params["tenant"] = agent.clone().into();
        }
        let message = json::from_str(&params.to_string()).expect("the parameters fit the proto");
        let mut request = tonic::Request::new(message);
        for (name, value) in &self.headers {
            let value = MetadataValue::try_from(value).expect("metadata is text");
            request.metadata_mut().insert(*name, value);
        }
        Ok(request)
    }

    fn client(&self) -> A2aServiceClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address));
        let channel = endpoint.expect("an address is a URL").connect_lazy();
        let bytes = 64 * 1024 * 1024;
        A2aServiceClient::new(channel)
            .max_decoding_message_size(bytes)
            .max_encoding_message_size(bytes)
    }

    async fn grpc(&self, operation: &str, params: Value) -> Result<Answer, Refusal> {
        let mut client = self.client();
        macro_rules! call {
            ($method:ident) => {
                answered(client.$method(self.message(params)?).await)
            };
        }
        match operation {
            "SendMessage" => call!(send_message),
            "GetTask" => call!(get_task),
            "ListTasks" => call!(list_tasks),
            "CancelTask" => call!(cancel_task),
            "CreateTaskPushNotificationConfig" => call!(create_task_push_notification_config),
            "GetTaskPushNotificationConfig" => call!(get_task_push_notification_config),
            "ListTaskPushNotificationConfigs" => call!(list_task_push_notification_configs),
            "GetExtendedAgentCard" => call!(get_extended_agent_card),
            "DeleteTaskPushNotificationConfig" => {
                let request = self.message(params)?;
                let deleted = client.delete_task_push_notification_config(request).await;
                let headers = HeaderMap::new();
                match deleted {
                    Ok(_) => Ok(Answer { body: json!({}), headers }),
                    Err(status) => Err(grpc_refusal(&status)),
                }
            }
            other => panic!("{other} is not a unary operation"),
        }
    }

    async fn grpc_stream(&self, operation: &str, params: Value) -> Result<Events, Refusal> {
        let mut client = self.client();
        let opened = match operation {
            "SendStreamingMessage" => client.send_streaming_message(self.message(params)?).await,
            "SubscribeToTask" => client.subscribe_to_task(self.message(params)?).await,
            other => panic!("{other} is not a streaming operation"),
        };
        let (metadata, events, _) = opened.map_err(|status| grpc_refusal(&status))?.into_parts();
        Ok(Events::Grpc { events, headers: metadata.into_headers() })
    }
}

/// Method and path of an operation. Parameters that are in the path are removed from `params`.
fn route(operation: &str, params: &mut Map<String, Value>) -> (Method, String) {
    let mut take = |key: &str| match params.remove(key) {
        Some(Value::String(text)) => escaped(&text),
        _ => String::new(),
    };
    match operation {
        "SendMessage" => (Method::POST, "/message:send".to_owned()),
        "SendStreamingMessage" => (Method::POST, "/message:stream".to_owned()),
        "GetTask" => (Method::GET, format!("/tasks/{}", take("id"))),
        "ListTasks" => (Method::GET, "/tasks".to_owned()),
        "CancelTask" => (Method::POST, format!("/tasks/{}:cancel", take("id"))),
        "SubscribeToTask" => (Method::GET, format!("/tasks/{}:subscribe", take("id"))),
        "GetExtendedAgentCard" => (Method::GET, "/extendedAgentCard".to_owned()),
        _ => {
            let configs = format!("/tasks/{}/pushNotificationConfigs", take("taskId"));
            match operation {
                "CreateTaskPushNotificationConfig" => (Method::POST, configs),
                "ListTaskPushNotificationConfigs" => (Method::GET, configs),
                "GetTaskPushNotificationConfig" => {
                    (Method::GET, format!("{configs}/{}", take("id")))
                }
                "DeleteTaskPushNotificationConfig" => {
                    (Method::DELETE, format!("{configs}/{}", take("id")))
                }
                other => panic!("{other} is not an operation"),
            }
        }
    }
}

fn query(params: &Map<String, Value>) -> String {
    let pairs: Vec<_> = params
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => format!("{key}={}", escaped(text)),
            other => format!("{key}={}", escaped(&other.to_string())),
        })
        .collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

fn escaped(text: &str) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._~".contains(b);
    let escape = |b: u8| if plain(&b) { char::from(b).into() } else { format!("%{b:02X}") };
    text.bytes().map(escape).collect()
}

fn rest_answer(reply: Reply) -> Result<Answer, Refusal> {
    let body = reply.json();
    if reply.status.is_success() {
        return Ok(Answer { body, headers: reply.headers });
    }
    let status = reply.status.as_u16();
    assert_eq!(body["error"]["code"], status, "the body repeats the status: {body}");
    Err(refusal_in(&body["error"], Some(status), reply.headers))
}

/// The error object of JSON-RPC, with `data`, or of REST, with `status` and `details`.
fn refusal_in(error: &Value, http: Option<u16>, headers: HeaderMap) -> Refusal {
    let status = error["status"].as_str().map(str::to_owned);
    let details = error["data"].as_array().or(error["details"].as_array());
    Refusal {
        http,
        jsonrpc: error["code"].as_i64().filter(|_| status.is_none()),
        status,
        message: error["message"].as_str().expect("an error has a message").to_owned(),
        details: details.cloned().unwrap_or_default(),
        headers: Box::new(headers),
    }
}

fn answered<M: ProtoJson>(answer: Result<Response<M>, Status>) -> Result<Answer, Refusal> {
    match answer {
        Ok(response) => {
            let (metadata, message, _) = response.into_parts();
            Ok(Answer { body: value(&message), headers: metadata.into_headers() })
        }
        Err(status) => Err(grpc_refusal(&status)),
    }
}

fn value<M: ProtoJson>(message: &M) -> Value {
    serde_json::from_str(&json::to_string(message)).expect("ProtoJSON is JSON")
}

fn grpc_refusal(status: &Status) -> Refusal {
    let bytes = status.details();
    let whole = pb::Status::decode(bytes).expect("the details are a google.rpc.Status");
    if !bytes.is_empty() {
        assert_eq!((whole.code, whole.message.as_str()), (status.code() as i32, status.message()));
    }
    Refusal {
        http: None,
        jsonrpc: None,
        status: Some(faultline_proto::reason::code_name(status.code()).to_owned()),
        message: status.message().to_owned(),
        details: whole.details.iter().map(detail).collect(),
        headers: Box::new(MetadataMap::clone(status.metadata()).into_headers()),
    }
}

/// Converts a detail to JSON.
fn detail(any: &prost_types::Any) -> Value {
    let bytes = any.value.as_slice();
    let mut detail = match any.type_url.rsplit('/').next().unwrap_or_default() {
        "google.rpc.ErrorInfo" => {
            let info = pb::ErrorInfo::decode(bytes).expect("an ErrorInfo");
            json!({"reason": info.reason, "domain": info.domain, "metadata": info.metadata})
        }
        "google.rpc.BadRequest" => {
            let bad = pb::BadRequest::decode(bytes).expect("a BadRequest");
            let all = bad.field_violations.iter();
            let all = all.map(|v| json!({"field": v.field, "description": v.description}));
            let all: Vec<_> = all.collect();
            json!({"fieldViolations": all})
        }
        "google.rpc.RetryInfo" => {
            let info = pb::RetryInfo::decode(bytes).expect("a RetryInfo");
            let delay = info.retry_delay.map(|delay| json::to_string(&delay));
            let delay = delay.map(|text| serde_json::from_str(&text).expect("JSON"));
            json!({"retryDelay": delay.unwrap_or(Value::Null)})
        }
        "faultline.v1.Advice" => value(&v1::Advice::decode(bytes).expect("an Advice")),
        "faultline.v1.Failure" => value(&v1::Failure::decode(bytes).expect("a Failure")),
        other => panic!("unknown detail: {other}"),
    };
    detail["@type"] = any.type_url.clone().into();
    detail
}
