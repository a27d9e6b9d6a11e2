//! CSRF protection of a gRPC port. A web page can make a browser send HTTP/1.1, or any request with
//! a content type of a form; none of that is gRPC, and every cross-site request of a page carries
//! `Origin`.

use std::task::{Context, Poll};

use axum::body::Body;
use futures::future::{Either, Ready, ready};
use http::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    header::{CONTENT_TYPE, ORIGIN, X_CONTENT_TYPE_OPTIONS},
};
use tower::{Layer, Service};

use super::charge_until_read;

const GRPC: &[u8] = b"application/grpc";

/// Admits gRPC over HTTP/2 and refuses everything else.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcOnlyLayer;

impl<S> Layer<S> for GrpcOnlyLayer {
    type Service = GrpcOnly<S>;

    fn layer(&self, inner: S) -> GrpcOnly<S> {
        GrpcOnly { inner }
    }
}

#[derive(Clone, Debug)]
pub struct GrpcOnly<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for GrpcOnly<S>
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
        match check(&request) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err((status, text)) => {
                tracing::debug!(%status, reason = text, "refused a request that is not gRPC");
                Either::Left(ready(Ok(charge_until_read(refusal(status, text)))))
            }
        }
    }
}

/// A plain HTTP response, because the sender does not speak gRPC.
fn refusal(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    response
}

fn check<B>(request: &Request<B>) -> Result<(), (StatusCode, &'static str)> {
    let headers = request.headers();
    if headers.contains_key(ORIGIN) {
        let text = "this port does not serve web pages: it refuses requests that carry Origin; \
                    call the gateway instead\n";
        return Err((StatusCode::FORBIDDEN, text));
    }
    if request.version() != Version::HTTP_2 {
        let text = "this port speaks gRPC over HTTP/2 only; HTTP clients call the gateway\n";
        return Err((StatusCode::HTTP_VERSION_NOT_SUPPORTED, text));
    }
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "gRPC calls are POST requests\n"));
    }
    if is_grpc(headers) {
        Ok(())
    } else {
        let text = "this port takes content-type application/grpc only\n";
        Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
    }
}

/// `application/grpc`, alone or with a codec or parameters. gRPC-Web, which browsers speak, is
/// refused.
fn is_grpc(headers: &HeaderMap) -> bool {
    let mut all = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return false };
    let Some((kind, rest)) = value.as_bytes().split_at_checked(GRPC.len()) else { return false };
    kind.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(
        version: Version,
        method: Method,
        headers: &[(&str, &str)],
    ) -> Result<(), StatusCode> {
        let mut request = Request::builder().version(version).method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap()).map_err(|(status, _)| status)
    }

    #[test]
    fn only_grpc_over_http2_without_origin_passes() {
        let grpc = ("content-type", "application/grpc");
        for good in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
            let sent = status(Version::HTTP_2, Method::POST, &[("content-type", good)]);
            assert_eq!(sent, Ok(()), "{good}");
        }
        let bad = ["text/plain", "application/grpc-web", "application/grpc-web+proto", "a", ""];
        for bad in bad {
            let sent = status(Version::HTTP_2, Method::POST, &[("content-type", bad)]);
            assert_eq!(sent, Err(StatusCode::UNSUPPORTED_MEDIA_TYPE), "{bad}");
        }
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8081"] {
            let sent = status(Version::HTTP_2, Method::POST, &[grpc, ("origin", origin)]);
            assert_eq!(sent, Err(StatusCode::FORBIDDEN), "{origin}");
        }
        for version in [Version::HTTP_10, Version::HTTP_11] {
            let sent = status(version, Method::POST, &[grpc]);
            assert_eq!(sent, Err(StatusCode::HTTP_VERSION_NOT_SUPPORTED));
        }
        let twice = [grpc, ("content-type", "text/plain")];
        assert!(status(Version::HTTP_2, Method::POST, &twice).is_err());
        assert_eq!(
            status(Version::HTTP_2, Method::OPTIONS, &[grpc]),
            Err(StatusCode::METHOD_NOT_ALLOWED)
        );
    }
}
