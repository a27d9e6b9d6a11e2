//! The layer around the gRPC services without authentication, which probes and KEDA call. It counts
//! their calls per address, and bounds their bodies before anything is buffered.

use std::task::{Context, Poll};

use axum::body::Body;
use futures::{
    FutureExt,
    future::{BoxFuture, Either},
};
use http::{Request, Response};
use http_body_util::Limited;
use tokio::time::timeout;
use tower::{Layer, Service};

use super::{QuotaPermit, Resource, acquire};
use crate::{grpc::body, limits};

/// Paths that need no credential, each with the largest body of a request.
#[derive(Clone, Debug)]
pub struct UnauthenticatedLayer(pub &'static [(&'static str, usize)]);

impl<S> Layer<S> for UnauthenticatedLayer {
    type Service = UnauthenticatedGuard<S>;

    fn layer(&self, inner: S) -> UnauthenticatedGuard<S> {
        UnauthenticatedGuard { inner, paths: self.0 }
    }
}

#[derive(Clone, Debug)]
pub struct UnauthenticatedGuard<S> {
    inner: S,
    paths: &'static [(&'static str, usize)],
}

impl<S> Service<Request<Body>> for UnauthenticatedGuard<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let Some((_, bytes)) = self.paths.iter().find(|(open, _)| path.starts_with(open)) else {
            return Either::Left(self.inner.call(request));
        };
        let request = request.map(|body| Body::new(Limited::new(body, *bytes)));
        let answering =
            acquire(Resource::UnauthenticatedCall).map(|taken| (self.inner.call(request), taken));
        let answer = async move {
            let (answering, taken) = match answering {
                Ok(answering) => answering,
                Err(failure) => return Ok(body::response(failure).map(Body::new)),
            };
            // A request that never arrives whole must not be waited for.
            match timeout(limits::BODY_READ_TIMEOUT, answering).await {
                Ok(response) => response.map(|response| counted(response, taken)),
                Err(_) => Ok(body::response(body::expired()).map(Body::new)),
            }
        };
        Either::Right(answer.boxed())
    }
}

/// The call counts until the end of its response, also of a stream.
fn counted(response: Response<Body>, taken: Option<QuotaPermit>) -> Response<Body> {
    response.map(|inner| Body::new(body::WithGuard::new(inner, taken)))
}
