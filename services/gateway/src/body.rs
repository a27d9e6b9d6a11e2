//! Reading the body of a request: within its time, within its size, and of a type we know.

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use faultline_chassis::limits;
use faultline_proto::{Failure, reason};
use http::{
    HeaderName, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT},
    request::Parts,
};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::error::Refused;

/// How much of a body that is too large is read and thrown away. A client that is still sending
/// when the connection closes never sees the answer.
const DISCARD_BYTES_MAX: usize = 8 * limits::BODY_BYTES_MAX;

/// The whole body, if it is JSON. No body is of any type.
pub(crate) async fn read_json(head: &Parts, body: Body) -> Result<Bytes, Refused> {
    match wrong_type(head) {
        Some(refused) if !body.is_end_stream() => Err(refused),
        _ => read(head, body).await,
    }
}

/// The whole body, if it comes in time and is not too large.
pub(crate) async fn read(head: &Parts, mut body: Body) -> Result<Bytes, Refused> {
    let number = |name: HeaderName| head.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let declared = number(CONTENT_LENGTH).unwrap_or(0);
    let reading = async {
        if declared > limits::BODY_BYTES_MAX as u64 {
            // One who asks first hears it before sending; one who does not is still sending.
            if !head.headers.contains_key(EXPECT) {
                discard(&mut body, declared).await;
            }
            return Err(too_large());
        }
        collect(&mut body, declared as usize).await
    };
    match timeout(limits::BODY_READ_TIMEOUT, reading).await {
        Ok(read) => read,
        Err(_) => Err(Refused::new(StatusCode::REQUEST_TIMEOUT, too_slow())),
    }
}

async fn collect(body: &mut Body, declared: usize) -> Result<Bytes, Refused> {
    let Some(first) = next(body).await? else { return Ok(Bytes::new()) };
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(declared.max(first.len() * 2));
    all.extend_from_slice(&first);
    while let Some(more) = next(body).await? {
        if all.len() + more.len() > limits::BODY_BYTES_MAX {
            discard(body, 0).await;
            return Err(too_large());
        }
        all.extend_from_slice(&more);
    }
    Ok(all.freeze())
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, Refused> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => {
                let failure = Failure::new(&reason::INVALID_REQUEST)
                    .because("the body broke off before its end")
                    .privately(error.to_string());
                return Err(Refused::new(StatusCode::BAD_REQUEST, failure));
            }
            // Trailers say nothing we know; the body ends after them.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads on without keeping anything, within reason.
async fn discard(body: &mut Body, declared: u64) {
    let mut left = DISCARD_BYTES_MAX;
    while declared <= DISCARD_BYTES_MAX as u64
        && let Ok(Some(data)) = next(body).await
    {
        match left.checked_sub(data.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

fn wrong_type(head: &Parts) -> Option<Refused> {
    let given = head.headers.get(CONTENT_TYPE)?;
    let essence = given.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    if ["application/json", "application/a2a+json"].iter().any(|t| essence.eq_ignore_ascii_case(t))
    {
        return None;
    }
    let failure = Failure::new(&reason::CONTENT_TYPE_NOT_SUPPORTED)
        .because("the body must be application/json or application/a2a+json");
    Some(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, failure))
}

fn too_large() -> Refused {
    let text = format!(
        "the body is over {} bytes; send a URL instead of the content",
        limits::BODY_BYTES_MAX
    );
    Failure::new(&reason::CONTENT_TOO_LARGE).because(text).into()
}

fn too_slow() -> Failure {
    let seconds = limits::BODY_READ_TIMEOUT.as_secs();
    Failure::new(&reason::DEADLINE_EXCEEDED)
        .because(format!("the body did not arrive within {seconds} s"))
}
