//! A failure becomes an answer here, and only here: as a JSON-RPC error, or as the `error` object
//! of the plain HTTP endpoints. This is also where it is logged, once. It decides nothing: numbers
//! and statuses come from the table.

use std::{collections::BTreeMap, io::Write};

use axum::body::Body;
use faultline_chassis::TraceContext;
use faultline_proto::{
    Failure, json,
    reason::{self, Actor},
    status::{bad_request, error_info},
    v1::Origin,
};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use serde::Serialize;
use tonic::Code;
use tracing::Span;

use crate::jsonrpc::Id;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A failure on its way out, with the HTTP status where the usual one would not do.
pub(crate) struct Refused {
    pub(crate) failure: Failure,
    pub(crate) status: Option<StatusCode>,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self { failure, status: None }
    }
}

impl Refused {
    pub(crate) fn new(status: StatusCode, failure: Failure) -> Self {
        Self { failure, status: Some(status) }
    }
}

/// The answer to a JSON-RPC request. The error is in the body; HTTP went well, unless the request
/// was turned away before it was read.
pub(crate) fn rpc(refused: Refused, id: &Id, trace: &TraceContext) -> Response<Body> {
    let failure = complete(refused.failure, trace);
    let too_large = failure.row() == &reason::CONTENT_TOO_LARGE;
    let usual = if too_large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::OK };
    let mut body = Vec::with_capacity(1024);
    write_rpc(&failure, id, &mut body);
    respond(refused.status.unwrap_or(usual), &failure, body)
}

/// The same as one more frame of a stream that has begun.
pub(crate) fn rpc_frame(failure: Failure, id: &Id, trace: &TraceContext, out: &mut Vec<u8>) {
    write_rpc(&complete(failure, trace), id, out);
}

/// The answer of everything that is not JSON-RPC.
pub(crate) fn plain(refused: Refused, trace: &TraceContext) -> Response<Body> {
    let failure = complete(refused.failure, trace);
    let usual = StatusCode::from_u16(failure.row().http).unwrap_or(StatusCode::BAD_GATEWAY);
    let status = refused.status.unwrap_or(usual);
    let mut body = Vec::with_capacity(1024);
    let name = reason::code_name(failure.code());
    put(&mut body, format_args!(r#"{{"error":{{"code":{},"status":"{name}""#, status.as_u16()));
    body.extend_from_slice(br#","message":"#);
    put_json(&mut body, &failure.public_message);
    body.extend_from_slice(br#","details":"#);
    write_details(&failure, &mut body);
    body.extend_from_slice(b"}}");
    respond(status, &failure, body)
}

fn respond(status: StatusCode, failure: &Failure, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if let Some(delay) = failure.retry_after() {
        // Rounded up: a client that comes back early is only refused again.
        let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Gives a failure of our own its birthplace and trace, and writes the one line about it.
fn complete(mut failure: Failure, trace: &TraceContext) -> Failure {
    if failure.trace_id.is_empty() {
        failure = failure.with_trace(trace.trace_id(), trace.span_id());
    }
    if failure.origin.is_none() {
        failure = failure.born_at(Origin { service: "gateway".to_owned(), ..Origin::default() });
    }
    log(&failure);
    failure
}

fn log(failure: &Failure) {
    let span = Span::current();
    span.record("error.type", failure.reason.as_str());
    // The codes that are the server's fault; the others went as they should, seen from here.
    let ours = matches!(
        failure.code(),
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    );
    if ours {
        span.record("otel.status_code", "ERROR");
    }
    let private = failure.private().map_or("", |p| p.for_log());
    let (id, task_id) = (failure.id.as_str(), failure.task_id.as_str());
    match (failure.row().actor, failure.code()) {
        (Actor::Operator, Code::Internal | Code::DataLoss) => {
            tracing::error!(id, task_id, private, "{failure}");
        }
        (Actor::Operator, _) => tracing::warn!(id, task_id, private, "{failure}"),
        (Actor::Caller | Actor::Author | Actor::Nobody, _) => {
            tracing::debug!(id, task_id, private, "{failure}");
        }
    }
}

fn write_rpc(failure: &Failure, id: &Id, out: &mut Vec<u8>) {
    let number = failure.row().jsonrpc;
    put(out, format_args!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{number},"message":"#));
    put_json(out, &failure.public_message);
    out.extend_from_slice(br#","data":"#);
    write_details(failure, out);
    out.extend_from_slice(b"}}");
}

/// The details as an array of `Any`: what every A2A client knows first, our own record last.
fn write_details(failure: &Failure, out: &mut Vec<u8>) {
    let info = error_info(failure);
    // Sorted, so that the same failure is the same bytes.
    let metadata: BTreeMap<String, String> = info.metadata.into_iter().collect();
    out.extend_from_slice(br#"[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"#);
    put_json(out, &info.reason);
    out.extend_from_slice(br#","domain":"#);
    put_json(out, &info.domain);
    out.extend_from_slice(br#","metadata":"#);
    put_json(out, &metadata);
    out.push(b'}');
    if let Some(delay) = &failure.record().retry_after {
        out.extend_from_slice(
            br#",{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"#,
        );
        json::write(delay, out);
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
    // A record has an id at least, so its fields follow the comma; its own brace must go.
    let brace = out.len();
    json::write(failure.record(), out);
    out.remove(brace);
    out.push(b']');
}

#[derive(Serialize)]
struct Violation {
    field: String,
    description: String,
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a Vec takes everything");
}

fn put_json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("strings and maps of strings are always JSON");
}
