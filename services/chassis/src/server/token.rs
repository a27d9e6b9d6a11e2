//! The layer that asks every gRPC caller for the mesh's token.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use faultline_proto::{Failure, reason};
use futures::future::{Either, Ready, ready};
use http::{Request, Response, header::AUTHORIZATION};
use tower::{Layer, Service};

use crate::{body, secret::Secret};

/// Probes have no token; they learn only that somebody serves.
const HEALTH: &str = "/grpc.health.v1.Health/";
const SCHEME: &str = "bearer ";

/// Lets in who says the token, and everybody where there is none.
#[derive(Clone, Debug)]
pub struct TokenLayer {
    token: Option<Arc<Secret>>,
    /// Beginnings of paths that are open to everybody, like that of health.
    open: &'static [&'static str],
}

impl TokenLayer {
    pub fn new(token: Option<Secret>, open: &'static [&'static str]) -> Self {
        Self { token: token.map(Arc::new), open }
    }
}

impl<S> Layer<S> for TokenLayer {
    type Service = TokenGuard<S>;

    fn layer(&self, inner: S) -> TokenGuard<S> {
        TokenGuard { inner, token: self.token.clone(), open: self.open }
    }
}

#[derive(Clone, Debug)]
pub struct TokenGuard<S> {
    inner: S,
    token: Option<Arc<Secret>>,
    open: &'static [&'static str],
}

impl<S> TokenGuard<S> {
    fn check<B>(&self, request: &Request<B>) -> Result<(), Failure> {
        let Some(token) = &self.token else { return Ok(()) };
        let path = request.uri().path();
        if path.starts_with(HEALTH) || self.open.iter().any(|open| path.starts_with(open)) {
            return Ok(());
        }
        let said = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        let said = said.and_then(|value| value.split_at_checked(SCHEME.len()));
        let problem = match said {
            Some((scheme, said)) if scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) => {
                match token.is(said) {
                    true => return Ok(()),
                    false => "the token is not this mesh's",
                }
            }
            _ => "the call carries no token",
        };
        let remedy = "give both sides the same `token` in [mesh], or FAULTLINE_MESH__TOKEN";
        Err(Failure::new(&reason::UNAUTHENTICATED).because(format!("{problem}: {remedy}")))
    }
}

impl<S> Service<Request<Body>> for TokenGuard<S>
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
        match self.check(&request) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(failure) => {
                let path = request.uri().path();
                tracing::debug!(path, reason = failure.public_message, "refused a call");
                Either::Left(ready(Ok(body::response(failure).map(Body::new))))
            }
        }
    }
}
