//! Error response of a server as a `Failure`. Sources in order of trust: a faultline record, an
//! `ErrorInfo`, the server's dialect, the bare number. Invalid details are ignored; the code is
//! kept.

use std::{collections::BTreeMap, error::Error as StdError, io, time::Duration};

use faultline_chassis::{
    dial,
    error_chain::{causes, one_line},
};
use faultline_proto::{
    Failure, json,
    reason::{self, Reason},
    v1,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use tonic::Code;

use crate::protocol::dialect::{Dialect, RpcError};

/// Longer chains are rejected: they are probably a loop.
const HOPS_MAX: u32 = 16;
/// Number of details that are read.
const DETAILS_MAX: usize = 16;

/// The `error` of a JSON-RPC response or a REST response.
#[derive(Debug, Deserialize)]
pub(crate) struct WireError<'a> {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    /// REST only: the name of the gRPC code.
    #[serde(default)]
    status: Option<String>,
    /// By A2A an array; by JSON-RPC any value.
    #[serde(borrow, default, alias = "details")]
    data: Option<&'a RawValue>,
}

impl WireError<'_> {
    pub(crate) fn into_failure(self, dialect: Dialect) -> Failure {
        let details = self.data.map(|data| Details::read(data.get())).unwrap_or_default();
        if let Some(record) = details.record.filter(|r| r.hop < HOPS_MAX) {
            return Failure::from_record(record);
        }
        let (row, known) = self.row();
        if details.info.is_none() && self.status.is_none() {
            let data = self.data.map_or("", RawValue::get);
            let error = RpcError { code: self.code, message: &self.message, data };
            if let Some(failure) = dialect.read(error, row) {
                return failure;
            }
        }
        let mut failure = Failure::new(row);
        if !self.message.is_empty() {
            failure = failure.because(self.message);
        }
        match details.info {
            Some(info) => failure = info.into_failure(failure),
            None if !known => failure = mark_foreign(failure),
            None => {}
        }
        if let Some(delay) = details.retry_delay {
            failure = failure.with_retry_after(delay);
        }
        for violation in details.violations {
            failure = failure.with_violation(violation.field, violation.description);
        }
        failure
    }

    /// The reason of the number alone, and whether the number is known.
    fn row(&self) -> (&'static Reason, bool) {
        if let Some(status) = &self.status {
            let row = reason::named(status).filter(|r| reason::code_name(r.code) == r.name);
            return (row.unwrap_or(&reason::UNKNOWN), row.is_some());
        }
        let row = reason_of_number(self.code);
        (row.unwrap_or(&reason::UNKNOWN), row.is_some())
    }
}

/// The reason of a JSON-RPC error number: by A2A, or by the number range of faultline.
pub(crate) fn reason_of_number(code: i64) -> Option<&'static Reason> {
    let is_it = |r: &&&Reason| r.domain == reason::A2A && i64::from(r.jsonrpc) == code;
    if let Some(row) = reason::TABLE.iter().find(is_it) {
        return Some(row);
    }
    match code {
        -31016..=-31001 => Some(reason::generic(Code::from_i32((-31000 - code) as i32))),
        _ => None,
    }
}

/// Marks the text of a failure as foreign: it is quoted, not trusted.
pub(crate) fn mark_foreign(failure: Failure) -> Failure {
    let mut record = failure.into_record();
    record.foreign = true;
    Failure::from_record(record)
}

/// The details that could be parsed.
#[derive(Default)]
struct Details {
    record: Option<v1::Failure>,
    info: Option<ErrorInfo>,
    retry_delay: Option<Duration>,
    violations: Vec<Violation>,
}

#[derive(Deserialize)]
struct TypeUrl {
    #[serde(rename = "@type")]
    name: String,
}

#[derive(Deserialize)]
struct ErrorInfo {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    domain: String,
    #[serde(default)]
    metadata: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct RetryInfo {
    #[serde(rename = "retryDelay")]
    delay: String,
}

#[derive(Deserialize)]
struct BadRequest {
    #[serde(rename = "fieldViolations", default)]
    violations: Vec<Violation>,
}

#[derive(Deserialize)]
struct Violation {
    #[serde(default)]
    field: String,
    #[serde(default)]
    description: String,
}

impl Details {
    fn read(data: &str) -> Self {
        let mut details = Details::default();
        let items: Vec<&RawValue> = serde_json::from_str(data).unwrap_or_default();
        for item in items.into_iter().take(DETAILS_MAX) {
            let text = item.get();
            let Ok(typed) = serde_json::from_str::<TypeUrl>(text) else { continue };
            match typed.name.rsplit('/').next().unwrap_or_default() {
                "faultline.v1.Failure" => details.record = json::from_peer(text).ok(),
                "google.rpc.ErrorInfo" => details.info = serde_json::from_str(text).ok(),
                "google.rpc.RetryInfo" => {
                    let info = serde_json::from_str::<RetryInfo>(text).ok();
                    details.retry_delay = info.and_then(|i| seconds(&i.delay));
                }
                "google.rpc.BadRequest" => {
                    if let Ok(bad) = serde_json::from_str::<BadRequest>(text) {
                        details.violations.extend(bad.violations.into_iter().take(64));
                    }
                }
                _ => {}
            }
        }
        details
    }
}

/// A duration in ProtoJSON: seconds with the suffix `s`.
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}

impl ErrorInfo {
    fn into_failure(self, failure: Failure) -> Failure {
        let mut record = failure.into_record();
        if let Some(row) = reason::find(&self.domain, &self.reason) {
            record.code = row.code as i32;
        }
        if !self.reason.is_empty() {
            record.reason = self.reason;
            record.domain = self.domain;
        }
        let text = |key: &str| self.metadata.get(key).and_then(|v| v.as_str()).map(str::to_owned);
        record.business_code = text("businessCode").unwrap_or_default();
        record.task_id = text("taskId").unwrap_or_default();
        record.trace_id = text("traceId").unwrap_or_default();
        record.retryable = text("retryable").and_then(|v| v.parse().ok());
        record.id = text("failureId").unwrap_or(record.id);
        record.origin =
            text("originAgent").map(|agent| v1::Origin { agent, ..v1::Origin::default() });
        Failure::from_record(record)
    }
}

/// The failure of a response that is not A2A, for example from a proxy or a wrong port.
pub(crate) fn failure_of_status(status: StatusCode) -> Failure {
    let row = match status.as_u16() {
        400 | 413 | 415 | 422 => &reason::INVALID_ARGUMENT,
        401 => &reason::UNAUTHENTICATED,
        403 => &reason::PERMISSION_DENIED,
        404 | 410 => &reason::NOT_FOUND,
        405 | 501 => &reason::UNIMPLEMENTED,
        408 | 504 => &reason::DEADLINE_EXCEEDED,
        409 => &reason::ABORTED,
        429 => &reason::RESOURCE_EXHAUSTED,
        502 | 503 => &reason::UNAVAILABLE,
        500..=599 => &reason::INTERNAL,
        _ => &reason::UNKNOWN,
    };
    mark_foreign(Failure::new(row).because(format!("the server answered HTTP {status}, not A2A")))
}

/// The failure of a connection attempt. The kind of the problem is public; addresses stay in the
/// private text.
pub(crate) fn connect_failure(error: &(dyn StdError + 'static)) -> Failure {
    let (why, passes) = match causes(error).find_map(|e| e.downcast_ref::<dial::Error>()) {
        Some(dial::Error::Slow { within, .. }) => {
            let text = format!("the server took no connection within {within:?}");
            return timeout_failure(&reason::CONNECT_TIMEOUT, text).privately(one_line(error));
        }
        Some(dial::Error::Forbidden(_)) => {
            let text = "the card leads to an address that is not public: allow its origin by name \
                        (Builder::allow_origin, or `allow_origins` of a remote agent)";
            return invalid_response(text).privately(one_line(error));
        }
        Some(dial::Error::Untrusted { .. }) => (": its certificate is not trusted here", false),
        Some(dial::Error::NotTls { .. }) => (": it does not speak TLS", false),
        Some(dial::Error::Connect { source, .. }) if is_refused(source.as_ref()) => {
            (": the connection was refused", true)
        }
        _ => ("", true),
    };
    let failure = connection_lost(&format!("the server cannot be reached{why}"), error);
    if passes { failure } else { failure.with_retryable(false) }
}

fn is_refused(error: &(dyn StdError + 'static)) -> bool {
    let refused = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    causes(error).any(|e| e.downcast_ref::<io::Error>().is_some_and(refused))
}

/// The failure of a lost connection. Addresses stay in the private text.
pub(crate) fn connection_lost(message: &str, error: &(dyn StdError + 'static)) -> Failure {
    unavailable(message).privately(one_line(error))
}

pub(crate) fn unavailable(message: impl Into<String>) -> Failure {
    Failure::new(&reason::UNAVAILABLE).because(message).with_plane(v1::Plane::Transport)
}

/// The failure of a timeout.
pub(crate) fn timeout_failure(reason: &'static Reason, text: String) -> Failure {
    Failure::new(reason).because(text).with_plane(v1::Plane::Transport)
}

/// The failure of a response that violates the protocol.
pub(crate) fn invalid_response(message: impl Into<String>) -> Failure {
    mark_foreign(Failure::new(&reason::INVALID_AGENT_RESPONSE).because(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Failure {
        serde_json::from_str::<WireError<'_>>(json).unwrap().into_failure(Dialect::Auto)
    }

    #[test]
    fn faultline_record_is_taken_whole() {
        let failure = read(
            r#"{"code":-31004,"message":"Downstream agent 'code' failed","data":[
            {"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"X","domain":"d"},
            {"@type":"type.googleapis.com/faultline.v1.Failure","id":"0199","code":4,
             "reason":"TASK_TIMEOUT","domain":"faultline.dev","retriesSpent":1,"causes":[
              {"agent":"code","code":4,"reason":"TASK_TIMEOUT","retryable":true}]}]}"#,
        );
        assert_eq!(
            (failure.reason.as_str(), failure.code()),
            ("TASK_TIMEOUT", Code::DeadlineExceeded)
        );
        assert_eq!((failure.causes.len(), failure.retries_spent), (1, 1));
    }

    #[test]
    fn record_with_an_unknown_enum_value_is_accepted() {
        let failure = read(
            r#"{"code":-31008,"message":"slow","data":[{"@type":"t/faultline.v1.Failure","code":8,
            "reason":"RATE_LIMITED","domain":"faultline.dev","plane":"PLANE_BRAND_NEW",
            "businessCode":"B9"}]}"#,
        );
        assert_eq!((failure.row(), failure.business_code.as_str()), (&reason::RATE_LIMITED, "B9"));
    }

    #[test]
    fn error_info_is_used_without_a_record() {
        let failure = read(
            r#"{"code":-31008,"message":"slow down","data":[
            {"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"RATE_LIMITED",
             "domain":"faultline.dev","metadata":{"businessCode":"17","originAgent":"code",
             "taskId":"t-1","retryable":"true","odd":[1]}},
            {"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"2.5s"},
            {"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[
              {"field":"a.b","description":"missing"}]},
            7, {"no":"type"}]}"#,
        );
        assert_eq!(failure.row(), &reason::RATE_LIMITED);
        assert_eq!(failure.public_message, "slow down");
        assert_eq!((failure.business_code.as_str(), failure.origin_agent()), ("17", "code"));
        assert_eq!(failure.retry_after(), Some(Duration::from_millis(2500)));
        assert_eq!(failure.violations[0].field, "a.b");
        assert!(failure.may_retry() && !failure.foreign);
    }

    #[test]
    fn unknown_reason_keeps_its_code() {
        let failure = read(
            r#"{"code":-31009,"message":"m","data":[{"@type":"t/google.rpc.ErrorInfo",
            "reason":"BRAND_NEW","domain":"faultline.dev"}]}"#,
        );
        assert_eq!(failure.reason, "BRAND_NEW");
        assert_eq!(failure.code(), Code::FailedPrecondition);
    }

    #[test]
    fn bare_number_maps_to_its_reason() {
        for row in reason::TABLE {
            let failure = read(&format!(r#"{{"code":{},"message":""}}"#, row.jsonrpc));
            assert_eq!(failure.code(), row.code, "{}", row.name);
            assert!(!failure.foreign);
            if row.domain == reason::A2A {
                assert_eq!(failure.row(), *row);
            }
        }
        for odd in [r#"{"code":17,"message":"x","data":{"a":1}}"#, r#"{"code":-32050}"#, "{}"] {
            let failure = read(odd);
            assert_eq!(failure.row(), &reason::UNKNOWN);
            assert!(failure.foreign, "{odd}");
        }
    }

    #[test]
    fn rest_error_maps_to_its_reason() {
        let failure = read(
            r#"{"code":404,"status":"NOT_FOUND","message":"no","details":[
            {"@type":"t/google.rpc.ErrorInfo","reason":"TASK_NOT_FOUND",
             "domain":"a2a-protocol.org"}]}"#,
        );
        assert_eq!(failure.row(), &reason::TASK_NOT_FOUND);
        let failure = read(r#"{"code":503,"status":"UNAVAILABLE","message":"away"}"#);
        assert_eq!(failure.row(), &reason::UNAVAILABLE);
    }

    #[test]
    fn looping_chain_of_causes_is_rejected() {
        let failure = read(
            r#"{"code":-31014,"message":"m","data":[{"@type":"t/faultline.v1.Failure","code":4,
            "reason":"TASK_TIMEOUT","hop":16}]}"#,
        );
        assert_eq!(failure.code(), Code::Unavailable);
    }
}
