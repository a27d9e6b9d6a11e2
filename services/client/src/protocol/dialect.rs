//! Error dialect of older servers: an object as the `data` of a JSON-RPC error, with the error of
//! the downstream agent inside, and error numbers that A2A has since given other meanings. Read
//! only, never sent.

use std::time::Duration;

use faultline_proto::{
    Failure,
    failure::CAUSES_MAX,
    reason::{self, Reason},
    v1::{Cause, Origin},
};
use serde_json::{Map, Value};

use crate::protocol::wire_error::{mark_foreign, reason_of_number};

/// Keys that mark an error object of the dialect.
const KEYS: [&str; 5] = ["detail", "retryable", "retryAfter", "timeout", "downstreamError"];

/// The error format of a server that does not follow A2A, or is older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// A2A errors, and [`Dialect::StackA2a`] if the shape of an error shows it.
    #[default]
    Auto,
    /// The numbers −32001 to −32008 mean: authentication required, task not found, insufficient
    /// scope, rate limited, agent unavailable, task timeout, content too large, skill not found.
    StackA2a,
}

/// A JSON-RPC error as received.
#[derive(Clone, Copy)]
pub(crate) struct RpcError<'a> {
    pub(crate) code: i64,
    pub(crate) message: &'a str,
    pub(crate) data: &'a str,
}

impl Dialect {
    /// The failure, if the error is of the dialect. `otherwise` is the reason of its number by A2A.
    pub(crate) fn read(self, error: RpcError<'_>, otherwise: &'static Reason) -> Option<Failure> {
        let data = match serde_json::from_str(error.data) {
            Ok(Value::Object(data)) if KEYS.iter().any(|key| data.contains_key(*key)) => data,
            _ if self == Dialect::StackA2a && stack_a2a_reason(error.code).is_some() => Map::new(),
            _ => return None,
        };
        let row = stack_a2a_reason(error.code).unwrap_or(otherwise);
        let mut failure = Failure::new(row).because(message_with_detail(error.message, &data));
        if let Some(retryable) = data.get("retryable").and_then(Value::as_bool) {
            failure = failure.with_retryable(retryable);
        }
        if let Some(delay) = seconds(&data, "retryAfter") {
            failure = failure.with_retry_after(delay);
        }
        let mut record = mark_foreign(failure).into_record();
        record.causes = causes(row, &record.public_message, &data);
        let root = record.causes.last().filter(|root| !root.agent.is_empty());
        record.origin = root.map(|r| Origin { agent: r.agent.clone(), ..Origin::default() });
        record.hop = record.causes.first().map_or(0, |outer| outer.hop);
        Some(Failure::from_record(record))
    }
}

/// The reasons of the numbers that collide with A2A's.
fn stack_a2a_reason(code: i64) -> Option<&'static Reason> {
    Some(match code {
        -32001 => &reason::UNAUTHENTICATED_CALLER,
        -32002 => &reason::TASK_NOT_FOUND,
        -32003 => &reason::INSUFFICIENT_SCOPE,
        -32004 => &reason::RATE_LIMITED,
        -32005 => &reason::AGENT_UNAVAILABLE,
        -32006 => &reason::TASK_TIMEOUT,
        -32007 => &reason::CONTENT_TOO_LARGE,
        -32008 => &reason::SKILL_NOT_FOUND,
        _ => return None,
    })
}

/// The message with the detail and the timeout of the object.
fn message_with_detail(message: &str, data: &Map<String, Value>) -> String {
    let mut text = message.to_owned();
    let detail = text_of(data, "detail");
    if !detail.is_empty() && detail != message {
        text = if text.is_empty() { detail } else { format!("{text}: {detail}") };
    }
    match seconds(data, "timeout") {
        Some(after) => format!("{text} (after {after:?})"),
        None => text,
    }
}

fn seconds(data: &Map<String, Value>, key: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(data.get(key)?.as_f64()?).ok()
}

fn text_of(data: &Map<String, Value>, key: &str) -> String {
    data.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The chain of causes, outermost first; empty if no agent is named and there is no downstream
/// error.
fn causes(row: &Reason, message: &str, data: &Map<String, Value>) -> Vec<Cause> {
    let cause = |agent, row: &Reason, message: &str, data: &Map<String, Value>| Cause {
        agent,
        code: row.code as i32,
        reason: row.name.to_owned(),
        public_message: message.to_owned(),
        retryable: data.get("retryable").and_then(Value::as_bool),
        ..Cause::default()
    };
    let current = text_of(data, "currentAgent");
    let mut below = data.get("downstreamError").and_then(Value::as_object);
    if current.is_empty() && below.is_none() {
        return Vec::new();
    }
    let mut chain = vec![cause(current, row, message, data)];
    let mut around = data;
    let nothing = Map::new();
    while let Some(error) = below.filter(|_| chain.len() < CAUSES_MAX) {
        let inner = error.get("data").and_then(Value::as_object).unwrap_or(&nothing);
        let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
        let row =
            stack_a2a_reason(code).or_else(|| reason_of_number(code)).unwrap_or(&reason::UNKNOWN);
        let agent = match text_of(around, "downstreamAgent") {
            named if named.is_empty() => text_of(inner, "currentAgent"),
            named => named,
        };
        chain.push(cause(
            agent,
            row,
            &message_with_detail(&text_of(error, "message"), inner),
            inner,
        ));
        (around, below) = (inner, inner.get("downstreamError").and_then(Value::as_object));
    }
    for (hop, cause) in chain.iter_mut().rev().enumerate() {
        cause.hop = hop as u32;
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire_error::WireError;

    fn read(json: &str, dialect: Dialect) -> Failure {
        serde_json::from_str::<WireError<'_>>(json).unwrap().into_failure(dialect)
    }

    #[test]
    fn older_number_is_read_by_the_dialect_and_otherwise_by_a2a() {
        let all = [
            (-32001, &reason::UNAUTHENTICATED_CALLER, false),
            (-32002, &reason::TASK_NOT_FOUND, false),
            (-32003, &reason::INSUFFICIENT_SCOPE, false),
            (-32004, &reason::RATE_LIMITED, true),
            (-32005, &reason::AGENT_UNAVAILABLE, true),
            (-32006, &reason::TASK_TIMEOUT, false),
            (-32007, &reason::CONTENT_TOO_LARGE, false),
            (-32008, &reason::SKILL_NOT_FOUND, false),
        ];
        for (code, row, retryable) in all {
            let bare = format!(r#"{{"code":{code},"message":"m"}}"#);
            let shaped = format!(r#"{{"code":{code},"message":"m","data":{{"detail":"d"}}}}"#);
            let read_back = [read(&bare, Dialect::StackA2a), read(&shaped, Dialect::Auto)];
            for failure in read_back {
                assert_eq!((failure.row(), failure.foreign), (row, true), "{code}");
                assert_eq!(failure.row().retry.may_retry() && failure.may_retry(), retryable);
            }
            let by_a2a = read(&bare, Dialect::Auto);
            assert_eq!(i64::from(by_a2a.row().jsonrpc), code, "A2A's own meaning");
        }
    }

    #[test]
    fn a2a_details_take_precedence_over_the_dialect() {
        let read_back = r#"{"code":-32001,"message":"m","data":[{"@type":"t/google.rpc.ErrorInfo",
            "reason":"TASK_NOT_FOUND","domain":"a2a-protocol.org"}]}"#;
        assert_eq!(read(read_back, Dialect::StackA2a).row(), &reason::TASK_NOT_FOUND);
    }

    #[test]
    fn downstream_errors_become_the_chain_of_causes() {
        let failure = read(
            r#"{"code":-32603,"message":"Downstream agent 'code' failed","data":{
                "currentAgent":"plan","downstreamAgent":"code","retryable":true,"retryAfter":10,
                "downstreamError":{"code":-32006,"message":"timed out","data":{
                    "timeout":30,"retryable":true,"downstreamAgent":"model",
                    "downstreamError":{"code":-32004,"message":"slow down"}}}}}"#,
            Dialect::Auto,
        );
        assert_eq!(failure.retry_after(), Some(Duration::from_secs(10)));
        assert!(failure.may_retry() && failure.foreign);
        assert_eq!((failure.origin_agent(), failure.hop), ("model", 2));
        let read_back =
            |c: &Cause| (c.agent.clone(), c.reason.clone(), c.public_message.clone(), c.hop);
        let chain: Vec<_> = failure.causes.iter().map(read_back).collect();
        let row = |agent: &str, reason: &str, text: &str, hop| {
            (agent.to_owned(), reason.to_owned(), text.to_owned(), hop)
        };
        assert_eq!(
            chain,
            [
                row("plan", "INTERNAL_ERROR", "Downstream agent 'code' failed", 2),
                row("code", "TASK_TIMEOUT", "timed out (after 30s)", 1),
                row("model", "RATE_LIMITED", "slow down", 0),
            ]
        );
    }

    #[test]
    fn endless_chain_of_causes_is_cut() {
        let mut error = r#"{"code":-32005,"message":"root"}"#.to_owned();
        for _ in 0..40 {
            error = format!(
                r#"{{"code":-32603,"message":"m","data":{{"downstreamAgent":"a",
                    "downstreamError":{error}}}}}"#
            );
        }
        let failure = read(&error, Dialect::Auto);
        assert_eq!(failure.causes.len(), CAUSES_MAX);
        let odd = r#"{"code":-32004,"message":"m","data":{"retryable":"maybe","retryAfter":-1}}"#;
        let failure = read(odd, Dialect::Auto);
        assert_eq!((failure.retryable, failure.retry_after()), (None, None));
    }
}
