//! Serving. One accept loop for HTTP/1.1 and HTTP/2 on one port, with the bounds that keep a slow
//! or hostile client from costing more than its connection, and one layer for gRPC services that
//! turns panics and expired deadlines into honest statuses.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::{Layer, Service, ServiceExt};

use crate::{
    body::{self, GuardedBody, Side},
    deadline::parse_grpc_timeout,
    drain::Drain,
    limits,
};

/// What every HTTP/2 connection preface starts with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves `router` on `listener` until drained, then waits for open requests to finish, at most
/// `patience`.
pub async fn serve(listener: TcpListener, router: Router, drain: Drain, patience: Duration) {
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let patience_ended = CancellationToken::new();
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&permits).acquire_owned() => permit,
            () = drain.signalled() => break,
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file handles, most likely: give others time to close some.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = drain.signalled() => break,
        };
        let (router, watcher, drain) = (router.clone(), graceful.watcher(), drain.clone());
        let patience_ended = patience_ended.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let greeted = tokio::select! {
                greeted = greet(&stream) => greeted,
                () = drain.signalled() => return,
            };
            if greeted.is_err() || stream.set_nodelay(true).is_err() {
                return;
            }
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                router.clone().oneshot(request)
            });
            let builder = builder();
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            // An error here is the client's: a reset, a cut, a malformed request already answered.
            tokio::select! {
                _ = watcher.watch(connection) => {}
                () = patience_ended.cancelled() => {}
            }
        });
    }
    drop(listener);
    let _ = timeout(patience, graceful.shutdown()).await;
    patience_ended.cancel();
}

/// Waits until the client has said enough to know which HTTP it speaks. Without this bound a
/// client that sends a single `P` and then nothing would hold its connection for ever.
async fn greet(stream: &TcpStream) -> io::Result<()> {
    let wait = async {
        let mut seen = [0; PREFACE.len()];
        loop {
            let n = stream.peek(&mut seen).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if n == PREFACE.len() || !PREFACE.starts_with(&seen[..n]) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(limits::HEADER_READ_TIMEOUT, wait).await?
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_READ_TIMEOUT)
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits::PING_INTERVAL)
        .keep_alive_timeout(limits::PING_TIMEOUT)
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(limits::PENDING_RESETS_MAX)
        .max_local_error_reset_streams(limits::PENDING_RESETS_MAX)
        .max_concurrent_streams(4096);
    builder
}

/// Stands around every gRPC service: a deadline the caller sent is kept, also by a stream, and a
/// panic is an INTERNAL with a body, not a reset connection.
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
            let (parts, inner) = response?.into_parts();
            let has_status = body::has_status(&parts.headers);
            let guarded =
                GuardedBody::new(Body::new(inner), Side::Server, has_status, deadline, None);
            Ok(Response::from_parts(parts, axum::body::Body::new(guarded)))
        }
        .boxed()
    }
}
