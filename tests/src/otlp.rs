//! OTLP collector for tests: accepts gRPC and HTTP, decodes with the messages that OpenTelemetry
//! generates, and stores the spans as flat records.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{
            ExportLogsServiceRequest, ExportLogsServiceResponse,
            logs_service_server::{LogsService, LogsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{AnyValue, KeyValue, any_value},
    logs::v1::LogRecord,
    trace::v1::{ScopeSpans, Span, span, status::StatusCode},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::{Server, TcpIncoming};

use crate::wait::SOON;

type Attributes = BTreeMap<String, String>;

/// One received span, with every value as text. Built here when a span arrives; immutable then.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRecord {
    pub name: String,
    pub kind: &'static str,
    pub trace: String,
    pub id: String,
    /// Empty for a root.
    pub parent: String,
    pub state: String,
    pub start: u64,
    pub end: u64,
    pub attributes: Attributes,
    pub events: Vec<(String, Attributes)>,
    /// Trace, span, and the attribute `faultline.link.type`.
    pub links: Vec<(String, String, String)>,
    /// Description of an error status; `None` without one.
    pub error: Option<String>,
    /// Resource attributes of the process.
    pub resource: Attributes,
}

impl SpanRecord {
    /// The value of an attribute; empty without one.
    pub fn get(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    /// Names of the events, in order.
    pub fn event_names(&self) -> Vec<&str> {
        self.events.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The values of one attribute over all events of this name.
    pub fn event_attributes(&self, event: &str, key: &str) -> Vec<&str> {
        let events = self.events.iter().filter(|(name, _)| name == event);
        events.map(|(_, attributes)| attributes.get(key).map_or("", String::as_str)).collect()
    }

    /// The span that a link of this type points to.
    pub fn linked_span(&self, link_type: &str) -> Option<&str> {
        let link = self.links.iter().find(|(_, _, kind)| kind == link_type)?;
        Some(&link.1)
    }

    fn of(span: Span, resource: &Attributes) -> Self {
        let status = span.status.clone().unwrap_or_default();
        let is_error = status.code() == StatusCode::Error;
        let link_type = |link: &span::Link| {
            attributes(&link.attributes).get("faultline.link.type").cloned().unwrap_or_default()
        };
        Self {
            kind: match span.kind() {
                span::SpanKind::Server => "server",
                span::SpanKind::Client => "client",
                span::SpanKind::Internal => "internal",
                _ => "other",
            },
            name: span.name,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            state: span.trace_state,
            start: span.start_time_unix_nano,
            end: span.end_time_unix_nano,
            attributes: attributes(&span.attributes),
            events: span
                .events
                .iter()
                .map(|e| (e.name.clone(), attributes(&e.attributes)))
                .collect(),
            links: span
                .links
                .iter()
                .map(|link| (hex(&link.trace_id), hex(&link.span_id), link_type(link)))
                .collect(),
            error: is_error.then_some(status.message),
            resource: resource.clone(),
        }
    }
}

/// The attributes as a map. OTLP allows each key once.
fn attributes(list: &[KeyValue]) -> Attributes {
    let mut all = Attributes::new();
    for KeyValue { key, value, .. } in list {
        let text = value.as_ref().map(text).unwrap_or_default();
        assert!(all.insert(key.clone(), text).is_none(), "{key} occurs twice: {list:?}");
    }
    all
}

fn text(value: &AnyValue) -> String {
    match &value.value {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(flag)) => flag.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes the spans that a process collected in memory.
pub fn read_memory(scope: &[u8]) -> Vec<SpanRecord> {
    let spans = ScopeSpans::decode(scope).expect("valid OTLP").spans;
    spans.into_iter().map(|span| SpanRecord::of(span, &Attributes::new())).collect()
}

/// The spans of one trace as an indented tree, ordered by start time.
pub fn tree(spans: &[SpanRecord]) -> String {
    fn put(spans: &[SpanRecord], span: &SpanRecord, depth: usize, out: &mut String) {
        let mark = if span.error.is_some() { " ✗" } else { "" };
        let indent = "  ".repeat(depth);
        out.push_str(&format!("{indent}{} {}{mark}\n", span.kind, span.name));
        for below in spans.iter().filter(|s| s.parent == span.id) {
            put(spans, below, depth + 1, out);
        }
    }
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| span.start);
    let known = |id: &str| spans.iter().any(|span| span.id == id);
    let mut out = String::new();
    for top in spans.iter().filter(|span| !known(&span.parent)) {
        put(&spans, top, 0, &mut out);
    }
    out
}

#[derive(Debug, Default)]
struct Received {
    spans: Mutex<Vec<SpanRecord>>,
    logs: Mutex<Vec<LogRecord>>,
    /// Headers of each export request.
    headers: Mutex<Vec<HeaderMap>>,
}

/// A running collector. Listens until its drop.
pub struct Collector {
    grpc: SocketAddr,
    http: SocketAddr,
    received: Arc<Received>,
    _servers: [AbortOnDropHandle<()>; 2],
}

impl Collector {
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    /// [`start`](Self::start) with gRPC at this address.
    pub async fn start_at(address: SocketAddr) -> Self {
        let received = Arc::new(Received::default());
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let grpc = listener.local_addr().expect("a listener has an address");
        let services = Server::builder()
            .add_service(TraceServiceServer::new(Service(Arc::clone(&received))))
            .add_service(LogsServiceServer::new(Service(Arc::clone(&received))));
        let serving = services.serve_with_incoming(TcpIncoming::from(listener));
        let serving = tokio::spawn(async move { serving.await.expect("the collector serves") });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let http = listener.local_addr().expect("a listener has an address");
        let posting = tokio::spawn(serve_http(listener, Arc::clone(&received)));
        let _servers = [AbortOnDropHandle::new(serving), AbortOnDropHandle::new(posting)];
        Self { grpc, http, received, _servers }
    }

    pub fn grpc(&self) -> String {
        format!("http://{}", self.grpc)
    }

    pub fn http(&self) -> String {
        format!("http://{}", self.http)
    }

    /// The spans of a trace so far, ordered by start time.
    pub fn spans(&self, trace: &str) -> Vec<SpanRecord> {
        let mut spans = lock(&self.received.spans).clone();
        spans.retain(|span| span.trace == trace);
        spans.sort_by_key(|span| span.start);
        spans
    }

    /// Waits until a trace has `count` spans.
    pub async fn until(&self, trace: &str, count: usize) -> Vec<SpanRecord> {
        self.until_spans(trace, &format!("{count} spans"), |spans| spans.len() >= count).await
    }

    /// Waits until the spans of a trace satisfy a condition.
    pub async fn until_spans(
        &self,
        trace: &str,
        what: &str,
        is_complete: impl Fn(&[SpanRecord]) -> bool,
    ) -> Vec<SpanRecord> {
        let end = Instant::now() + SOON;
        loop {
            let spans = self.spans(trace);
            if is_complete(&spans) {
                return spans;
            }
            assert!(Instant::now() < end, "no {what} in time, got:\n{}", tree(&spans));
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn all(&self) -> Vec<SpanRecord> {
        lock(&self.received.spans).clone()
    }

    pub fn logs(&self) -> Vec<LogRecord> {
        lock(&self.received.logs).clone()
    }

    pub fn headers(&self) -> Vec<HeaderMap> {
        lock(&self.received.headers).clone()
    }
}

fn lock<T>(received: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    received.lock()
}

impl Received {
    fn add(&self, headers: HeaderMap, request: ExportTraceServiceRequest) {
        lock(&self.headers).push(headers);
        let mut spans = lock(&self.spans);
        for process in request.resource_spans {
            let resource = process.resource.unwrap_or_default();
            let resource = attributes(&resource.attributes);
            let scopes = process.scope_spans.into_iter();
            spans
                .extend(scopes.flat_map(|scope| scope.spans).map(|s| SpanRecord::of(s, &resource)));
        }
    }
}

struct Service(Arc<Received>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let headers = request.metadata().clone().into_headers();
        self.0.add(headers, request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Service {
    async fn export(
        &self,
        request: tonic::Request<ExportLogsServiceRequest>,
    ) -> Result<tonic::Response<ExportLogsServiceResponse>, tonic::Status> {
        let scopes = request.into_inner().resource_logs.into_iter().flat_map(|r| r.scope_logs);
        lock(&self.0.logs).extend(scopes.flat_map(|scope| scope.log_records));
        Ok(tonic::Response::new(ExportLogsServiceResponse::default()))
    }
}

async fn serve_http(listener: TcpListener, received: Arc<Received>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let received = Arc::clone(&received);
        let service = service_fn(move |request| receive_http(request, Arc::clone(&received)));
        connections.spawn(async move {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn receive_http(
    request: Request<Incoming>,
    received: Arc<Received>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let is_otlp = head.headers.get("content-type").is_some_and(|v| v == "application/x-protobuf");
    let read = ExportTraceServiceRequest::decode(body);
    let mut response = Response::new(Full::default());
    match read {
        Ok(request) if is_otlp && head.uri.path() == "/v1/traces" => {
            received.add(head.headers, request);
        }
        _ => *response.status_mut() = http::StatusCode::BAD_REQUEST,
    }
    Ok(response)
}
