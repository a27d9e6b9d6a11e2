//! The layer that records the metrics of unary and streaming gRPC calls.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use axum::body::Body;
use faultline_proto::Failure;
use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::metrics::{Metrics, OTHER, calls::Calls};

/// The outermost layer: refusals of other layers count too.
#[derive(Clone)]
pub struct MeasureLayer {
    calls: Calls,
    /// Prefixes of paths that are no calls.
    except: &'static [&'static str],
    /// Called with the failure of every refused call.
    refused: Arc<dyn Fn(&Failure) + Send + Sync>,
}

impl MeasureLayer {
    pub fn new(
        metrics: &Metrics,
        except: &'static [&'static str],
        refused: impl Fn(&Failure) + Send + Sync + 'static,
    ) -> Self {
        Self { calls: Calls::of(metrics), except, refused: Arc::new(refused) }
    }
}

impl fmt::Debug for MeasureLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeasureLayer(except {:?})", self.except)
    }
}

impl<S> Layer<S> for MeasureLayer {
    type Service = Measure<S>;

    fn layer(&self, inner: S) -> Measure<S> {
        Measure { inner, with: self.clone() }
    }
}

#[derive(Clone, Debug)]
pub struct Measure<S> {
    inner: S,
    with: MeasureLayer,
}

impl<S> Service<Request<Body>> for Measure<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        if self.with.except.iter().any(|except| path.starts_with(except)) {
            return self.inner.call(request).boxed();
        }
        let with = self.with.clone();
        let since = Instant::now();
        let path = path.to_owned();
        let answering = self.inner.call(request);
        async move {
            let response = answering.await?;
            with.note(&path, &response, since);
            Ok(response)
        }
        .boxed()
    }
}

impl MeasureLayer {
    /// tonic puts the status of a failed call into the headers, and that of a successful one into
    /// the trailers.
    fn note(&self, path: &str, response: &Response<Body>, since: Instant) {
        let status = Status::from_header_map(response.headers());
        let failure = status.filter(|status| status.code() != Code::Ok).map(Failure::from);
        let method = match &failure {
            // An unknown method has only the caller's name for it, which must not become a label.
            Some(failure) if failure.code() == Code::Unimplemented => OTHER,
            _ => path.trim_start_matches('/'),
        };
        self.calls.ended(method, failure.as_ref(), since.elapsed());
        if let Some(failure) = &failure {
            (self.refused)(failure);
        }
    }
}
