//! The layer that authenticates every call of the coordinator's port and authorises it by a
//! function. The caller's [`Identity`] becomes an extension of the request.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use faultline_proto::Failure;
use futures::future::{Either, Ready, ready};
use http::{Request, Response, request::Parts};
use tower::{Layer, Service};

use crate::{
    auth::credential::{Credentials, Identity},
    grpc::body,
};

/// Probes have no token. They learn only whether the coordinator serves.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Decides whether a known caller may make this call.
type Authorize = dyn Fn(&Identity, &Parts) -> Result<(), Failure> + Send + Sync;

/// Authenticates and authorises every call before its body is read.
#[derive(Clone)]
pub struct CredentialLayer {
    credentials: Arc<Credentials>,
    /// Prefixes of paths that need no credential, beside the health service.
    open: &'static [&'static str],
    authorize: Arc<Authorize>,
}

impl fmt::Debug for CredentialLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialLayer({:?}, open {:?})", self.credentials, self.open)
    }
}

impl CredentialLayer {
    pub fn new(
        credentials: Credentials,
        open: &'static [&'static str],
        authorize: impl Fn(&Identity, &Parts) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { credentials: Arc::new(credentials), open, authorize: Arc::new(authorize) }
    }

    fn check(&self, request: Request<Body>) -> Result<Request<Body>, Failure> {
        let path = request.uri().path();
        if path.starts_with(HEALTH) || self.open.iter().any(|open| path.starts_with(open)) {
            return Ok(request);
        }
        let (mut head, body) = request.into_parts();
        let known = self.credentials.identify(&head.headers);
        let allowed = known.and_then(|known| {
            (self.authorize)(known, &head)?;
            Ok(Arc::clone(known))
        });
        match allowed {
            Ok(known) => {
                head.extensions.insert(known);
                Ok(Request::from_parts(head, body))
            }
            Err(failure) => {
                let path = head.uri.path();
                let reason = &failure.public_message;
                tracing::debug!(path, reason, "refused a call");
                Err(failure)
            }
        }
    }
}

impl<S> Layer<S> for CredentialLayer {
    type Service = CredentialGuard<S>;

    fn layer(&self, inner: S) -> CredentialGuard<S> {
        CredentialGuard { inner, layer: self.clone() }
    }
}

#[derive(Clone, Debug)]
pub struct CredentialGuard<S> {
    inner: S,
    layer: CredentialLayer,
}

impl<S> Service<Request<Body>> for CredentialGuard<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<Ready<Result<Response<Body>, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.layer.check(request) {
            Ok(request) => Either::Right(self.inner.call(request)),
            Err(failure) => Either::Left(ready(Ok(body::response(failure).map(Body::new)))),
        }
    }
}
