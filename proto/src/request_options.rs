//! Options of a request beside its message: the task timeout, the disconnect policy and the reason
//! of a cancel. All bindings of A2A use the same parser; an invalid option is refused with its
//! field.

use std::time::Duration;

use prost_types::{Struct, value::Kind};

use crate::{
    Failure,
    a2a::{CancelTaskRequest, SendMessageRequest},
    reason,
};

/// Milliseconds of active time, as a header or as gRPC metadata.
pub const TIMEOUT_HEADER: &str = "faultline-timeout-ms";
/// A year. A longer timeout is a mistake about the unit.
pub const TASK_TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// A day. A client that stays away longer will not come back.
pub const GRACE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest reason of a cancel; longer ones are truncated.
pub const CANCEL_REASON_BYTES_MAX: usize = 1024;

const TIMEOUT: &str = "faultline.dev/timeoutMs";
const ON_DISCONNECT: &str = "faultline.dev/onDisconnect";
const CANCEL: &str = "faultline.dev/cancel";
const TIMEOUT_IS: &str = "must be a whole number of milliseconds, from 1 to a year";
const ON_DISCONNECT_IS: &str =
    "must be detach, cancel, or grace= and a time of at most a day, such as grace=5s";

/// The timeout of the task: the smallest one of the headers and both metadata.
pub fn task_timeout<'a>(
    headers: impl Iterator<Item = &'a str>,
    request: &SendMessageRequest,
) -> Result<Option<Duration>, Failure> {
    let mut least: Option<Duration> = None;
    let mut take = |field: &str, ms: Option<u64>| {
        let time = ms.map(Duration::from_millis);
        let time = time.filter(|time| !time.is_zero() && *time <= TASK_TIMEOUT_MAX);
        let time = time.ok_or_else(|| violation(field, TIMEOUT_IS))?;
        least = Some(least.map_or(time, |known| known.min(time)));
        Ok::<(), Failure>(())
    };
    for header in headers {
        take("Faultline-Timeout-Ms", whole(header.trim()))?;
    }
    for (field, value) in options(request, TIMEOUT) {
        let ms = match value {
            Some(Kind::NumberValue(n)) if n.fract() == 0.0 && *n >= 0.0 => Some(*n as u64),
            Some(Kind::StringValue(text)) => whole(text),
            _ => None,
        };
        take(&field, ms)?;
    }
    Ok(least)
}

/// The time between the disconnect of the caller and the cancel of its task; `None`: no cancel.
pub fn on_disconnect(request: &SendMessageRequest) -> Result<Option<Duration>, Failure> {
    let mut found: Option<(String, Option<Duration>)> = None;
    for (field, value) in options(request, ON_DISCONNECT) {
        let policy = match value {
            Some(Kind::StringValue(text)) => policy(text),
            _ => None,
        };
        let policy = policy.ok_or_else(|| violation(&field, ON_DISCONNECT_IS))?;
        match &found {
            Some((other, known)) if *known != policy => {
                return Err(violation(&field, &format!("is not the same as {other}")));
            }
            _ => found = Some((field, policy)),
        }
    }
    Ok(found.and_then(|(_, policy)| policy))
}

/// The caller's reason of a cancel, truncated to its limit.
pub fn cancel_reason(request: &CancelTaskRequest) -> Result<Option<String>, Failure> {
    let field = || format!("metadata[\"{CANCEL}\"].reason");
    let value = request.metadata.as_ref().and_then(|metadata| metadata.fields.get(CANCEL));
    let value = match value.map(|value| &value.kind) {
        None => return Ok(None),
        Some(Some(Kind::StructValue(value))) => value.fields.get("reason").map(|value| &value.kind),
        Some(_) => return Err(violation(&field(), "must be a text in an object")),
    };
    match value {
        None => Ok(None),
        Some(Some(Kind::StringValue(text))) => Ok(in_words(text)),
        Some(_) => Err(violation(&field(), "must be a text")),
    }
}

/// The reason of a cancel, trimmed and truncated; `None`: it is empty.
pub fn in_words(text: &str) -> Option<String> {
    let text = text.trim();
    let end = text.floor_char_boundary(CANCEL_REASON_BYTES_MAX);
    Some(text[..end].to_owned()).filter(|text| !text.is_empty())
}

/// The part of the remaining time that a hop keeps for itself, so that it can still report which
/// deadline expired.
pub fn reserve(left: Duration) -> Duration {
    (left / 20).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

/// The option in the message's and in the request's metadata, each with its field.
fn options<'a>(
    request: &'a SendMessageRequest,
    key: &str,
) -> impl Iterator<Item = (String, Option<&'a Kind>)> {
    let message = request.message.as_ref().and_then(|message| message.metadata.as_ref());
    let found = |metadata: Option<&'a Struct>, place: &str| {
        let value = metadata?.fields.get(key)?;
        Some((format!("{place}[\"{key}\"]"), value.kind.as_ref()))
    };
    let both = [found(message, "message.metadata"), found(request.metadata.as_ref(), "metadata")];
    both.into_iter().flatten()
}

fn policy(text: &str) -> Option<Option<Duration>> {
    match text {
        "detach" => Some(None),
        "cancel" => Some(Some(Duration::ZERO)),
        _ => span(text.strip_prefix("grace=")?).filter(|grace| *grace <= GRACE_MAX).map(Some),
    }
}

/// Digits and a unit: `500ms`, `5s`, `1m`, `2h`.
fn span(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    whole(number)?.checked_mul(ms).map(Duration::from_millis)
}

/// Decimal digits and nothing else.
fn whole(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

fn violation(field: &str, what: &str) -> Failure {
    Failure::new(&reason::INVALID_PARAMS)
        .because(format!("invalid parameters: {field} {what}"))
        .with_violation(field, what)
}

#[cfg(test)]
mod tests;
