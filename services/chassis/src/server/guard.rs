//! The layer around every gRPC service that enforces the caller's deadline and turns a panic into a
//! status.

use std::{
    convert::Infallible,
    future::poll_fn,
    panic::AssertUnwindSafe,
    task::{Context, Poll},
};

use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use tokio::time::Instant;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::grpc::{
    body::{self, GuardedBody, Side},
    deadline::parse_grpc_timeout,
};

/// Wraps every gRPC service. It enforces the caller's deadline, also for streams; turns a panic
/// into INTERNAL with a body instead of a connection reset; and turns an undecodable request into
/// INVALID_ARGUMENT.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardLayer;

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner }
    }
}

#[derive(Clone, Debug)]
pub struct Guard<S> {
    inner: S,
}

impl<S> Service<Request<axum::body::Body>> for Guard<S>
where
    S: Service<Request<axum::body::Body>, Response = Response<axum::body::Body>>
        + Clone
        + Send
        + 'static,
    S::Error: Into<Infallible>,
    S::Future: Send,
{
    type Response = Response<axum::body::Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<axum::body::Body>) -> Self::Future {
        let header = request.headers().get("grpc-timeout").and_then(|v| v.to_str().ok());
        let deadline = header.and_then(parse_grpc_timeout).map(|t| Instant::now() + t);
        let mut inner = self.inner.clone();
        async move {
            let handled = AssertUnwindSafe(async {
                poll_fn(|cx| inner.poll_ready(cx)).await?;
                inner.call(request).await
            })
            .catch_unwind();
            let answer = match deadline {
                None => handled.await,
                Some(at) => match tokio::time::timeout_at(at, handled).await {
                    Ok(answer) => answer,
                    Err(_) => return Ok(body::response(body::expired()).map(axum::body::Body::new)),
                },
            };
            let Ok(response) = answer else {
                return Ok(body::response(body::panicked()).map(axum::body::Body::new));
            };
            let (mut parts, inner) = response?.into_parts();
            body::blame_caller(&mut parts.headers);
            let has_status = body::has_status(&parts.headers);
            let guarded =
                GuardedBody::new(Body::new(inner), Side::Server, has_status, deadline, None);
            Ok(Response::from_parts(parts, axum::body::Body::new(guarded)))
        }
        .boxed()
    }
}
