//! A way of telling errors that is older than A2A's own: an object as the `data` of a JSON-RPC
//! error, with the error of the agent below in it, and numbers that A2A gave other meanings since.
//! It is read, and never spoken.

use std::time::Duration;

use faultline_proto::{
    Failure,
    failure::CAUSES_MAX,
    reason::{self, Reason},
    v1::{Cause, Origin},
};
use serde_json::{Map, Value};

use crate::protocol::wire_error::{mark_foreign, reason_of_number};

/// What any of them in the object tells.
const KEYS: [&str; 5] = ["detail", "retryable", "retryAfter", "timeout", "downstreamError"];

/// How a server tells its errors, where A2A leaves it open or the server is older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// As A2A says, and as [`Dialect::StackA2a`] where the shape of an error shows it.
    #[default]
    Auto,
    /// Numbers from −32001 to −32008 mean authentication required, task not found, insufficient
    /// scope, rate limited, agent unavailable, task timeout, content too large, skill not found.
    StackA2a,
}

/// An error as it came.
#[derive(Clone, Copy)]
pub(crate) struct RpcError<'a> {
    pub(crate) code: i64,
    pub(crate) message: &'a str,
    pub(crate) data: &'a str,
}

impl Dialect {
    /// The failure, if the error is told in the older way. `otherwise` is what its number means by
    /// A2A.
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

/// The numbers that collide with A2A's.
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

/// The message, and what the object says beyond it.
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

/// The chain, outermost first; empty if nobody is named and nothing lies below.
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
    fn an_older_number_means_what_it_meant_only_to_who_speaks_the_dialect() {
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
            let told = [read(&bare, Dialect::StackA2a), read(&shaped, Dialect::Auto)];
            for failure in told {
                assert_eq!((failure.row(), failure.foreign), (row, true), "{code}");
                assert_eq!(failure.row().retry.may_retry() && failure.may_retry(), retryable);
            }
            let by_a2a = read(&bare, Dialect::Auto);
            assert_eq!(i64::from(by_a2a.row().jsonrpc), code, "A2A's own meaning");
        }
    }

    #[test]
    fn a2a_wins_where_it_is_spoken() {
        let told = r#"{"code":-32001,"message":"m","data":[{"@type":"t/google.rpc.ErrorInfo",
            "reason":"TASK_NOT_FOUND","domain":"a2a-protocol.org"}]}"#;
        assert_eq!(read(told, Dialect::StackA2a).row(), &reason::TASK_NOT_FOUND);
    }

    #[test]
    fn what_lies_below_is_read_to_the_root() {
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
        let told = |c: &Cause| (c.agent.clone(), c.reason.clone(), c.public_message.clone(), c.hop);
        let chain: Vec<_> = failure.causes.iter().map(told).collect();
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
    fn a_chain_without_an_end_is_cut() {
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
