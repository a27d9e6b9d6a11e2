//! Reads the body of a request within a timeout, a size limit and the memory budget of its client,
//! and checks its content type.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use faultline_chassis::{limits, server::ReservedBytes};
use faultline_proto::{Failure, reason};
use futures::FutureExt;
use http::{
    HeaderValue, StatusCode, Version,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT},
    request::Parts,
};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::http::failure::Rejection;

/// How much of a body that is too large is read and discarded. A client that still sends when the
/// connection closes never sees the answer.
const DISCARD_BYTES_MAX: usize = 8 * limits::BODY_BYTES_MAX;
/// The timeout for discarding the rest of a body.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// The whole body, whose content type must be JSON. An empty body needs no content type.
pub(crate) async fn read_json(head: &Parts, body: &mut Body) -> Result<Bytes, Rejection> {
    if !body.is_end_stream() {
        must_be_json(head)?;
    }
    read(head, body).await
}

/// The whole body, within the timeout and the size limit.
pub(crate) async fn read(head: &Parts, body: &mut Body) -> Result<Bytes, Rejection> {
    let declared = declared(head);
    let reading = async {
        if declared > limits::BODY_BYTES_MAX as u64 {
            discard(head, body).await;
            return Err(too_large());
        }
        match collect(body, limits::BODY_BYTES_MAX).await? {
            Some(all) => Ok(all),
            None => {
                discard(head, body).await;
                Err(too_large())
            }
        }
    };
    in_time(reading).await
}

/// The whole body of a health check. Its limit is small, because it needs no credential.
pub(crate) async fn read_health(body: &mut Body) -> Result<Bytes, Rejection> {
    let most = limits::HEALTH_BYTES_MAX;
    let too_large = || {
        let text =
            format!("the body of a health check is over {most} bytes: send the name of a service");
        Rejection::from(Failure::new(&reason::CONTENT_TOO_LARGE).because(text))
    };
    let reading = async { collect(body, most).await?.ok_or_else(too_large) };
    in_time(reading).await
}

async fn in_time(
    reading: impl Future<Output = Result<Bytes, Rejection>>,
) -> Result<Bytes, Rejection> {
    match timeout(limits::BODY_READ_TIMEOUT, reading).await {
        Ok(read) => read,
        Err(_) => Err(Rejection::new(StatusCode::REQUEST_TIMEOUT, too_slow())),
    }
}

/// Reads the rest of a body that the answer did not need, within limits. `false`: some of it is
/// left, so the connection cannot be used again.
pub(crate) async fn finish(head: &Parts, body: &mut Body) -> bool {
    // HTTP/2 resets the one stream and keeps the connection.
    if body.is_end_stream() || head.version >= Version::HTTP_2 {
        return true;
    }
    timeout(DISCARD_TIMEOUT, discard(head, body)).await.unwrap_or(false)
}

fn declared(head: &Parts) -> u64 {
    let length = || head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    length().unwrap_or(0)
}

/// `None`: it is too large. A body in one piece is taken as it is. A body that has to be waited for
/// is charged to the memory budget of its client, with the size of the waiting request.
async fn collect(body: &mut Body, most: usize) -> Result<Option<Bytes>, Rejection> {
    let mut reserved = None;
    let first = match next(body).now_or_never() {
        Some(first) => first?,
        None => {
            reserved = Some(ReservedBytes::new(limits::WAITING_REQUEST_BYTES).map_err(no_room)?);
            next(body).await?
        }
    };
    let Some(first) = first else { return Ok(Some(Bytes::new())) };
    if first.len() > most {
        return Ok(None);
    }
    if body.is_end_stream() {
        return Ok(Some(first));
    }
    let mut reserved = match reserved {
        Some(reserved) => reserved,
        None => ReservedBytes::new(limits::WAITING_REQUEST_BYTES).map_err(no_room)?,
    };
    let mut all = Vec::new();
    let mut next_piece = Some(first);
    while let Some(piece) = next_piece {
        let needed = all.len() + piece.len();
        if needed > most {
            return Ok(None);
        }
        if needed > all.capacity() {
            let capacity = needed.max(2 * all.capacity()).min(most);
            reserved.grow(capacity - all.capacity()).map_err(no_room)?;
            all.reserve_exact(capacity - all.len());
        }
        all.extend_from_slice(&piece);
        next_piece = next(body).await?;
    }
    Ok(Some(reserved.attach_to(all.into())))
}

/// The HTTP status is that of the reason, also on JSON-RPC: the request was not read.
fn no_room(failure: Failure) -> Rejection {
    Rejection::new(StatusCode::TOO_MANY_REQUESTS, failure)
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, Rejection> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => {
                let failure = Failure::new(&reason::INVALID_REQUEST)
                    .because("the body broke off before its end")
                    .privately(error.to_string());
                return Err(Rejection::new(StatusCode::BAD_REQUEST, failure));
            }
            // Trailers are ignored; the body ends after them.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads and discards; `true` at the end of the body.
async fn discard(head: &Parts, body: &mut Body) -> bool {
    // With `Expect: 100-continue` the client sends nothing before it is told to.
    if head.headers.contains_key(EXPECT) || declared(head) > DISCARD_BYTES_MAX as u64 {
        return false;
    }
    let mut read = 0;
    while read <= DISCARD_BYTES_MAX {
        match next(body).await {
            Ok(Some(data)) => read += data.len(),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Requires a JSON content type, as a defence against CSRF: a browser sends other types, and bodies
/// without a type, for any page without a preflight, but not JSON.
fn must_be_json(head: &Parts) -> Result<(), Rejection> {
    let given = |name| head.headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
    if !head.headers.get(CONTENT_TYPE).is_some_and(is_json) {
        let text =
            "the body must be JSON: send Content-Type application/json or application/a2a+json";
        return Err(wrong_type(text));
    }
    match given(CONTENT_ENCODING) {
        None | Some("identity") => Ok(()),
        Some(_) => {
            Err(wrong_type("the body must not be encoded: no Content-Encoding is known here"))
        }
    }
}

/// Whether a `Content-Type` is one that A2A defines for JSON.
pub(crate) fn is_json(kind: &HeaderValue) -> bool {
    let essence = kind.to_str().ok().and_then(|kind| kind.split(';').next()).unwrap_or("").trim();
    let known = ["application/json", "application/a2a+json"];
    known.iter().any(|kind| essence.eq_ignore_ascii_case(kind))
}

pub(crate) fn wrong_type(text: &str) -> Rejection {
    Rejection::unread(Failure::new(&reason::CONTENT_TYPE_NOT_SUPPORTED).because(text))
}

fn too_large() -> Rejection {
    let most = limits::BODY_BYTES_MAX;
    let text = format!("the body is over {most} bytes; send a URL instead of the content");
    Failure::new(&reason::CONTENT_TOO_LARGE).because(text).into()
}

fn too_slow() -> Failure {
    let seconds = limits::BODY_READ_TIMEOUT.as_secs();
    Failure::new(&reason::DEADLINE_EXCEEDED)
        .because(format!("the body did not arrive within {seconds} s"))
}
