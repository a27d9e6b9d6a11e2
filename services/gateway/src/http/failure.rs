//! Writes a failure as a JSON-RPC error, as the `error` object of REST, or as a gRPC status, and
//! logs it once. Numbers and statuses come from the table of reasons.

use std::{collections::BTreeMap, io::Write, sync::Arc};

use axum::body::Body;
use faultline_chassis::{TraceContext, telemetry::SharedSpan};
use faultline_proto::{
    Failure,
    advice::{Reader, advise},
    json,
    reason::{self, Actor},
    status::{bad_request, error_info},
    v1::{self, Origin},
};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use crate::{
    http::metrics::RequestRecord,
    protocol::{request_id::RequestId, v03, version::Version},
};

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The authentication scheme (RFC 6750).
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"faultline\"");

/// A failure as the answer to a request, with an HTTP status that overrides the one of its reason.
pub(crate) struct Rejection {
    pub(crate) failure: Failure,
    pub(crate) status: Option<StatusCode>,
    /// The body was not read: then JSON-RPC has the HTTP status of the reason too, not 200.
    is_unread: bool,
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Self {
        Self { failure, status: None, is_unread: false }
    }
}

impl Rejection {
    pub(crate) fn new(status: StatusCode, failure: Failure) -> Self {
        Self { failure, status: Some(status), is_unread: false }
    }

    /// A rejection by headers alone: every binding has the HTTP status of the error table.
    pub(crate) fn unread(failure: Failure) -> Self {
        Self { failure, status: None, is_unread: true }
    }
}

/// Writes failures for one request: completes, logs and counts each, and marks the span.
#[derive(Clone)]
pub(crate) struct Reporter {
    pub(crate) span: SharedSpan,
    pub(crate) trace: TraceContext,
    pub(crate) table: ErrorTable,
    pub(crate) record: Arc<RequestRecord>,
}

/// The edition of A2A's error table that HTTP and gRPC answers follow: 1.0.1 changed six rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum ErrorTable {
    #[serde(rename = "1.0.0")]
    V1_0_0,
    #[default]
    #[serde(rename = "1.0.1")]
    V1_0_1,
}

impl Reporter {
    /// The answer to a JSON-RPC request: status 200 with the error in the body. Other statuses are
    /// for requests that were not read, and for callers without the right.
    pub(crate) fn rpc(&self, refused: Rejection, id: &RequestId) -> Response<Body> {
        let failure = self.complete_on_span(refused.failure);
        let usual = match failure.row() {
            row if row == &reason::UNAUTHENTICATED_CALLER => StatusCode::UNAUTHORIZED,
            row if row == &reason::INSUFFICIENT_SCOPE => StatusCode::FORBIDDEN,
            row if row == &reason::CONTENT_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
            _ if refused.is_unread => self.http(&failure),
            _ => StatusCode::OK,
        };
        let mut body = Vec::with_capacity(1024);
        write_rpc(&failure, id, &mut body);
        respond(refused.status.unwrap_or(usual), &failure, body)
    }

    /// A JSON-RPC error as the last event of a stream.
    pub(crate) fn write_rpc(&self, failure: Failure, id: &RequestId, out: &mut Vec<u8>) {
        write_rpc(&self.complete_on_span(failure), id, out);
    }

    /// The answer on every path that is not JSON-RPC or gRPC.
    pub(crate) fn plain(&self, refused: Rejection, version: Version) -> Response<Body> {
        let failure = self.complete_on_span(refused.failure);
        let status = refused.status.unwrap_or_else(|| self.http(&failure));
        let mut body = Vec::with_capacity(1024);
        write_plain(&failure, status, version, &mut body);
        respond(status, &failure, body)
    }

    pub(crate) fn write_plain(&self, failure: Failure, version: Version, out: &mut Vec<u8>) {
        let failure = self.complete_on_span(failure);
        write_plain(&failure, self.http(&failure), version, out);
    }

    /// The status of a gRPC call.
    pub(crate) fn status(&self, failure: Failure) -> Status {
        let failure = self.complete(failure);
        self.record.count_truncated_status(&failure);
        self.span.with(|span| {
            span.rpc_ended(Err(&failure));
        });
        Status::from(failure)
    }

    fn http(&self, failure: &Failure) -> StatusCode {
        let row = failure.row();
        let number = match self.table {
            ErrorTable::V1_0_0 => row.in_1_0_0().1,
            ErrorTable::V1_0_1 => row.http,
        };
        StatusCode::from_u16(number).unwrap_or(StatusCode::BAD_GATEWAY)
    }

    /// Completes a failure and marks the span of an HTTP request with it.
    fn complete_on_span(&self, failure: Failure) -> Failure {
        let failure = self.complete(failure);
        self.span.with(|span| {
            span.failed(&failure);
        });
        failure
    }

    /// Adds origin and trace to a failure of the gateway itself, logs and counts it, and sets the
    /// code of the configured error table.
    fn complete(&self, mut failure: Failure) -> Failure {
        if failure.trace_id.is_empty() {
            failure = failure.with_trace(self.trace.trace_id(), self.trace.span_id());
        }
        self.record.record_failure(&failure, failure.origin.is_none());
        if failure.origin.is_none() {
            let origin = Origin { service: "gateway".to_owned(), ..Origin::default() };
            failure = failure.born_at(origin);
        }
        log(&failure);
        if self.table == ErrorTable::V1_0_0 {
            let (code, _) = failure.row().in_1_0_0();
            failure =
                Failure::from_record(v1::Failure { code: code as i32, ..failure.into_record() });
        }
        failure
    }
}

fn write_plain(failure: &Failure, status: StatusCode, version: Version, out: &mut Vec<u8>) {
    let start = out.len();
    let name = reason::code_name(failure.code());
    put(out, format_args!(r#"{{"error":{{"code":{},"status":"{name}""#, status.as_u16()));
    out.extend_from_slice(br#","message":"#);
    put_json(out, &failure.public_message);
    out.extend_from_slice(br#","details":"#);
    write_details(failure, out);
    out.extend_from_slice(b"}}");
    if version == Version::V03 {
        let new = serde_json::from_slice(&out[start..]).expect("what was just written is JSON");
        out.truncate(start);
        put_json(out, &v03::error(failure, new));
    }
}

fn respond(status: StatusCode, failure: &Failure, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if let Some(delay) = failure.delay().or(failure.retry_after()) {
        // Rounded up: a client that comes back early is rejected again.
        let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
    }
    response
}

fn log(failure: &Failure) {
    // Every service uses the same keys, so one id finds all lines about a failure.
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                failure.id = %failure.id,
                task.id = %failure.task_id,
                trace.id = %failure.trace_id,
                reason = %failure.reason,
                detail = failure.private().map_or("", |p| p.for_log()),
                "{failure}"
            )
        };
    }
    match (failure.row().actor, failure.code()) {
        (Actor::Operator, Code::Internal | Code::DataLoss) => line!(error),
        (Actor::Operator, _) => line!(warn),
        (Actor::Caller | Actor::Author | Actor::Nobody, _) => line!(debug),
    }
}

fn write_rpc(failure: &Failure, id: &RequestId, out: &mut Vec<u8>) {
    let number = failure.row().jsonrpc;
    put(out, format_args!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{number},"message":"#));
    put_json(out, &failure.public_message);
    out.extend_from_slice(br#","data":"#);
    write_details(failure, out);
    out.extend_from_slice(b"}}");
}

/// The details as an array of `Any`: the standard types first, then the failure record, and last
/// the advice that follows from it.
fn write_details(failure: &Failure, out: &mut Vec<u8>) {
    let info = error_info(failure);
    // Sorted, so that equal failures give equal bytes.
    let metadata: BTreeMap<String, String> = info.metadata.into_iter().collect();
    out.extend_from_slice(br#"[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"#);
    put_json(out, &info.reason);
    out.extend_from_slice(br#","domain":"#);
    put_json(out, &info.domain);
    out.extend_from_slice(br#","metadata":"#);
    put_json(out, &metadata);
    out.push(b'}');
    if let Some(delay) = failure.retry_info() {
        out.extend_from_slice(
            br#",{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"#,
        );
        json::write(&delay, out);
        out.push(b'}');
    }
    if !failure.violations.is_empty() {
        let violations = bad_request(failure).field_violations.into_iter();
        let fields: Vec<_> =
            violations.map(|v| Violation { field: v.field, description: v.description }).collect();
        out.extend_from_slice(
            br#",{"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":"#,
        );
        put_json(out, &fields);
        out.push(b'}');
    }
    out.extend_from_slice(br#",{"@type":"type.googleapis.com/faultline.v1.Failure","#);
    // A record has at least an id, so its fields follow the comma; its own brace is removed.
    let brace = out.len();
    json::write(failure.record(), out);
    out.remove(brace);
    out.extend_from_slice(br#",{"@type":"type.googleapis.com/faultline.v1.Advice","#);
    // Advice has at least a verdict.
    let brace = out.len();
    json::write(&advise(failure, Reader::Caller).to_record(), out);
    out.remove(brace);
    out.push(b']');
}

#[derive(Serialize)]
struct Violation {
    field: String,
    description: String,
}

pub(crate) fn no_such_path() -> Failure {
    Failure::new(&reason::NOT_FOUND).because(
        "nothing is at this path: JSON-RPC is at / and /agents/{agent}, REST below both, the card \
         at /.well-known/agent-card.json, the operators' view at /mesh/{method}",
    )
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a Vec takes everything");
}

fn put_json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("strings and maps of strings are always JSON");
}
