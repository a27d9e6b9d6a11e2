//! Conversions between `Failure` and `tonic::Status`, and the only place that makes a status.
//! Received details are never trusted to be well-formed: invalid details never hide the code.
#![allow(clippy::disallowed_methods)]

use std::{collections::HashMap, time::Duration};

use prost::{Message, Name};
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb;

use crate::{
    advice::{Reader, advise},
    failure::{Failure, MESSAGE_BYTES_MAX, cut},
    reason,
    v1::{self, Plane},
};

/// The largest size of all details, serialised. Above about 12 KB tonic loses the whole error, and
/// peers with gRPC's C core accept at most 8 KiB of metadata.
pub const DETAILS_BYTES_MAX: usize = 4096;

const TYPE_PREFIX: &str = "type.googleapis.com/";

impl From<Failure> for Status {
    fn from(failure: Failure) -> Status {
        let mut failure = failure;
        let details = encode_within(&mut failure, DETAILS_BYTES_MAX);
        Status::with_details(failure.code(), failure.public_message.clone(), details.into())
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        from_status(&status)
    }
}

/// The failure of a status, in order of trust: the record, an ErrorInfo, the bare code.
pub fn from_status(status: &Status) -> Failure {
    let details = decode(status.details());
    let code = normal_code(status);
    if let Some(record) = details.record.filter(|r| r.code == code as i32) {
        return Failure::from_record(record);
    }
    let row = if oversized(status) { &reason::CONTENT_TOO_LARGE } else { reason::generic(code) };
    let mut failure = Failure::new(row).with_plane(Plane::Transport);
    if !status.message().is_empty() {
        failure = failure.because(status.message());
    }
    if let Some(info) = details.info {
        failure = with_info(failure, &info);
    }
    if let Some(delay) = details.retry_delay {
        failure = failure.with_retry_after(delay);
    }
    for (field, description) in details.violations {
        failure = failure.with_violation(field, description);
    }
    failure
}

/// The code that the peer meant. tonic reports an expired deadline as CANCELLED.
fn normal_code(status: &Status) -> Code {
    match status.code() {
        Code::Cancelled if status.message() == "Timeout expired" => Code::DeadlineExceeded,
        Code::OutOfRange if oversized(status) => Code::InvalidArgument,
        Code::Ok => Code::Unknown,
        code => code,
    }
}

/// Recognises tonic's text for a message above the size limit, which has the code OUT_OF_RANGE.
fn oversized(status: &Status) -> bool {
    let text = status.message();
    status.code() == Code::OutOfRange
        && (text.contains("decoded message length too large")
            || text.contains("encoded message length too large"))
}

/// tonic's error for a message that is not protobuf. tonic reports INTERNAL on either side, but at
/// a server the mistake is the caller's. Recognised by prost's text and by the absence of details,
/// which every failure of the mesh has.
pub fn undecodable(status: &Status) -> Option<Failure> {
    let is_decoding = status.code() == Code::Internal
        && status.details().is_empty()
        && status.message().starts_with("failed to decode Protobuf message");
    is_decoding.then(|| {
        let text = status.message();
        Failure::new(&reason::INVALID_ARGUMENT)
            .because(format!("{text}; send the message that this method takes"))
    })
}

fn with_info(failure: Failure, info: &pb::ErrorInfo) -> Failure {
    let mut record = failure.into_record();
    if !info.reason.is_empty() {
        record.reason = info.reason.clone();
        record.domain = info.domain.clone();
    }
    let text = |key: &str| info.metadata.get(key).cloned().unwrap_or_default();
    record.business_code = text("businessCode");
    record.task_id = text("taskId");
    record.trace_id = text("traceId");
    record.retryable = info.metadata.get("retryable").and_then(|v| v.parse().ok());
    if let Some(id) = info.metadata.get("failureId") {
        record.id = id.clone();
    }
    if let Some(agent) = info.metadata.get("originAgent") {
        record.origin = Some(v1::Origin { agent: agent.clone(), ..v1::Origin::default() });
    }
    Failure::from_record(record)
}

/// The `ErrorInfo` of a failure, for peers that do not know the record.
pub fn error_info(failure: &Failure) -> pb::ErrorInfo {
    let mut metadata = HashMap::new();
    let mut put = |key: &str, value: &str| {
        if !value.is_empty() {
            metadata.insert(key.to_owned(), value.to_owned());
        }
    };
    put("failureId", &failure.id);
    put("businessCode", &failure.business_code);
    put("retryable", if failure.may_retry() { "true" } else { "false" });
    put("hop", &failure.hop.to_string());
    put("originAgent", failure.origin_agent());
    put("taskId", &failure.task_id);
    put("traceId", &failure.trace_id);
    if let [outer, next, ..] = failure.causes.as_slice() {
        put("currentAgent", &outer.agent);
        put("downstreamAgent", &next.agent);
    }
    pb::ErrorInfo { reason: failure.reason.clone(), domain: failure.domain.clone(), metadata }
}

/// Whether the whole failure fits into the details of a status.
pub fn fits(failure: &Failure) -> bool {
    encode(failure, true).len() <= DETAILS_BYTES_MAX
}

/// The details that fit: first the chain loses its middle, then long texts are truncated, then
/// violations are dropped, and the record itself last. The code and `ErrorInfo` always stay.
fn encode_within(failure: &mut Failure, bytes_max: usize) -> Vec<u8> {
    let mut keep = failure.causes.len();
    loop {
        let bytes = encode(failure, true);
        if bytes.len() <= bytes_max {
            return bytes;
        }
        if keep > 2 {
            keep = keep.div_ceil(2).max(2);
            failure.drop_middle_causes(keep);
        } else if !shrink(failure) {
            break;
        }
    }
    let bytes = encode(failure, false);
    if bytes.len() <= bytes_max { bytes } else { Vec::new() }
}

/// Makes the failure one step smaller, if possible.
fn shrink(failure: &mut Failure) -> bool {
    let mut record = failure.clone().into_record();
    let before = record.encoded_len();
    record.violations.truncate(record.violations.len() / 2);
    for violation in &mut record.violations {
        cut(&mut violation.field, 128);
        cut(&mut violation.description, 256);
    }
    if let Some(aggregate) = &mut record.aggregate {
        aggregate.branches.truncate(aggregate.branches.len() / 2);
    }
    for cause in &mut record.causes {
        cut(&mut cause.public_message, 128);
    }
    let bytes = (record.public_message.len() / 2).clamp(128, MESSAGE_BYTES_MAX);
    cut(&mut record.public_message, bytes);
    let shrunk = record.encoded_len() < before;
    *failure = Failure::from_record(record);
    shrunk
}

fn encode(failure: &Failure, whole: bool) -> Vec<u8> {
    let mut details = vec![any("google.rpc.ErrorInfo", &error_info(failure))];
    if let Some(delay) = failure.retry_info() {
        details.push(any("google.rpc.RetryInfo", &pb::RetryInfo { retry_delay: Some(delay) }));
    }
    if !failure.violations.is_empty() && whole {
        details.push(any("google.rpc.BadRequest", &bad_request(failure)));
    }
    if whole {
        details.push(any(&v1::Failure::full_name(), failure.record()));
        let advice = advise(failure, Reader::Caller).to_record();
        details.push(any(&v1::Advice::full_name(), &advice));
    }
    let message = failure.public_message.clone();
    pb::Status { code: failure.record().code, message, details }.encode_to_vec()
}

/// The violations as `google.rpc.BadRequest`.
pub fn bad_request(failure: &Failure) -> pb::BadRequest {
    let field_violations = failure.violations.iter().map(|v| pb::bad_request::FieldViolation {
        field: v.field.clone(),
        description: v.description.clone(),
        ..Default::default()
    });
    pb::BadRequest { field_violations: field_violations.collect() }
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("{TYPE_PREFIX}{name}"), value: message.encode_to_vec() }
}

/// The valid parts of the details; invalid ones count as absent.
#[derive(Default)]
struct Details {
    record: Option<v1::Failure>,
    info: Option<pb::ErrorInfo>,
    retry_delay: Option<Duration>,
    violations: Vec<(String, String)>,
}

fn decode(bytes: &[u8]) -> Details {
    let mut details = Details::default();
    let Ok(status) = pb::Status::decode(bytes) else { return details };
    for any in &status.details {
        let value = any.value.as_slice();
        match any.type_url.strip_prefix(TYPE_PREFIX).unwrap_or_default() {
            "faultline.v1.Failure" => {
                details.record = details.record.or_else(|| v1::Failure::decode(value).ok());
            }
            "google.rpc.ErrorInfo" => {
                details.info = details.info.or_else(|| pb::ErrorInfo::decode(value).ok());
            }
            "google.rpc.RetryInfo" => {
                let info = pb::RetryInfo::decode(value).ok();
                details.retry_delay =
                    info.and_then(|i| i.retry_delay).and_then(|d| d.try_into().ok());
            }
            "google.rpc.BadRequest" => {
                let bad = pb::BadRequest::decode(value).unwrap_or_default();
                let pairs = bad.field_violations.into_iter().map(|v| (v.field, v.description));
                details.violations.extend(pairs.take(64));
            }
            _ => {}
        }
    }
    details
}

#[cfg(test)]
mod tests;
