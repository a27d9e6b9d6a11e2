//! Dialling. Nobody else opens a gRPC connection: the generated clients cannot. One layer stands
//! between tonic's channel and its codec and turns everything tonic would report wrongly into the
//! status it should have been, so that nothing above has to know.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use faultline_proto::{Failure, reason};
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use tokio::time::Instant;
use tonic::{
    body::Body,
    transport::{Channel as Transport, Endpoint},
};
use tower::Service;

use crate::{
    body::{self, GuardedBody, Side},
    deadline::{Timeouts, format_grpc_timeout},
    limits,
};

/// A connection to one peer that comes back by itself after a break. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Channel {
    transport: Transport,
}

/// The address cannot be dialled at all.
#[derive(Debug, thiserror::Error)]
#[error("not an address to dial: '{0}' (say http://HOST:PORT)")]
pub struct BadAddress(String);

impl Channel {
    /// Prepares a connection; the first call makes it.
    pub fn lazy(address: &str) -> Result<Self, BadAddress> {
        let url = match address.contains("://") {
            true => address.to_owned(),
            false => format!("http://{address}"),
        };
        let endpoint = Endpoint::from_shared(url).map_err(|_| BadAddress(address.to_owned()))?;
        let transport = endpoint
            .connect_timeout(limits::CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(limits::PING_INTERVAL)
            .keep_alive_timeout(limits::PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
            .http2_max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
            .connect_lazy();
        Ok(Self { transport })
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    /// Always: a transport that is not ready says so in the answer to the call.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let timeouts = request.extensions().get::<Timeouts>().copied().unwrap_or_default();
        if let Some(total) = timeouts.total
            && let Ok(value) = HeaderValue::from_str(&format_grpc_timeout(total))
        {
            request.headers_mut().insert("grpc-timeout", value);
        }
        let deadline = timeouts.total.map(|t| Instant::now() + t);
        let mut transport = self.transport.clone();
        async move {
            let answer = async {
                futures::future::poll_fn(|cx| transport.poll_ready(cx)).await?;
                transport.call(request).await
            };
            let answer = match deadline {
                None => answer.await,
                Some(at) => match tokio::time::timeout_at(at, answer).await {
                    Ok(answer) => answer,
                    Err(_) => return Ok(body::response(body::expired())),
                },
            };
            Ok(match answer {
                Ok(response) => normalize(response, deadline, timeouts),
                Err(error) => body::response(lost(&error)),
            })
        }
        .boxed()
    }
}

fn normalize(
    response: Response<Body>,
    deadline: Option<Instant>,
    timeouts: Timeouts,
) -> Response<Body> {
    let (mut parts, inner) = response.into_parts();
    let grpc = parts
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"));
    if !grpc {
        return body::response(not_grpc(parts.status));
    }
    body::sanitize(&mut parts.headers);
    let has_status = body::has_status(&parts.headers);
    let guarded = GuardedBody::new(inner, Side::Client, has_status, deadline, timeouts.idle);
    Response::from_parts(parts, Body::new(guarded))
}

/// A proxy or a wrong port answered instead of a gRPC peer.
fn not_grpc(status: http::StatusCode) -> Failure {
    let reason = match status.as_u16() {
        401 => &reason::UNAUTHENTICATED,
        403 => &reason::PERMISSION_DENIED,
        404 => &reason::UNIMPLEMENTED,
        429 | 502 | 503 | 504 => &reason::UNAVAILABLE,
        400..=599 => &reason::INTERNAL,
        _ => &reason::UNKNOWN,
    };
    Failure::new(reason).because(format!(
        "the peer answered HTTP {status}, not gRPC: is this the address of a coordinator?"
    ))
}

/// Why there is no answer. The channel keeps a clock of its own for `grpc-timeout` and may be
/// quicker than ours.
fn lost(error: &tonic::transport::Error) -> Failure {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        if source.is::<tonic::TimeoutExpired>() {
            return body::expired();
        }
        text = format!("{text}: {source}");
        next = source.source();
    }
    // The text stays here: it is private, and a status carries none.
    tracing::debug!(cause = text, "no answer from a peer");
    body::unreachable_peer(&text)
}
