//! The layer that corrects tonic's status for a request that is not protobuf: tonic answers
//! INTERNAL, but the mistake is the caller's. Request streams are not covered: they break after the
//! response has begun.

use axum::{Router, body::Body, middleware::map_response};
use faultline_proto::status::undecodable;
use http::Response;
use tonic::Status;

/// Answers INVALID_ARGUMENT if a service of `router` cannot decode the request.
pub fn refuse_undecodable(router: Router) -> Router {
    router.layer(map_response(corrected))
}

async fn corrected(response: Response<Body>) -> Response<Body> {
    let refused = Status::from_header_map(response.headers());
    match refused.as_ref().and_then(undecodable) {
        Some(failure) => Status::from(failure).into_http(),
        None => response,
    }
}
