//! CSRF and DNS rebinding checks of a gateway. A browser sends a "simple" request of any page
//! without a preflight, and names the page in `Origin`; other requests need a preflight, which this
//! gateway never grants.

use faultline_proto::{Failure, reason};
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{CONTENT_TYPE, HOST, ORIGIN},
    request::Parts,
    uri::Authority,
};

use crate::{
    http::{body, context::Gateway, failure::Rejection, negotiation, route::Route},
    protocol::operation::Operation,
};

impl Gateway {
    /// Checks a request before anything else of it is read: its host is a name of this gateway
    /// (DNS rebinding), and no foreign web page made a browser send it (CSRF). Health checks pass.
    pub(crate) fn check_host_and_origin(
        &self,
        head: &Parts,
        route: &Route<'_>,
    ) -> Result<(), Rejection> {
        if matches!(route, Route::Health | Route::GrpcHealth) {
            return Ok(());
        }
        let checked = self.hosts.check(&head.uri, &head.headers);
        // A browser does not add a bearer token by itself, so tokens make CSRF impossible.
        let requires_token = self.authenticator.requires_token();
        let checked =
            checked.and_then(|()| if requires_token { Ok(()) } else { self.check_origin(head) });
        checked.map_err(|failure| Rejection::new(StatusCode::FORBIDDEN, failure))?;
        if !requires_token && is_simple(head, route) {
            return Err(body::wrong_type(
                "send Content-Type: application/json, also without a body: a request that changes \
                 a task must not be one that a browser sends for any web page",
            ));
        }
        Ok(())
    }

    /// Rejects a request of a page that this gateway did not serve.
    fn check_origin(&self, head: &Parts) -> Result<(), Failure> {
        let is_own = |origin: &http::HeaderValue| {
            let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            origin.is_some_and(|(_, page)| is_same(page, head) || self.hosts.contains(page))
        };
        if head.headers.get_all(ORIGIN).iter().all(is_own) {
            return Ok(());
        }
        Err(Failure::new(&reason::PERMISSION_DENIED).because(
            "this gateway has no tokens and takes no requests of foreign web pages: configure \
             [[auth.token]], or list the page's host in `hosts` of [gateway]",
        ))
    }
}

/// Whether the page is from the host and port of the request.
fn is_same(page: &str, head: &Parts) -> bool {
    let (uri, headers): (&Uri, &HeaderMap) = (&head.uri, &head.headers);
    let header = || headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(Authority::as_str).or_else(header);
    host.is_some_and(|host| host.eq_ignore_ascii_case(page))
}

/// Whether a browser sends this request for any page without a preflight although it changes a
/// task. Only a cancel has no body whose type could be checked; DELETE is never simple.
fn is_simple(head: &Parts, route: &Route<'_>) -> bool {
    let Route::Rest(rest) = route else { return false };
    head.method == Method::POST
        && rest.resource.operation(&head.method) == Some(Operation::CancelTask)
        && !head.headers.get(CONTENT_TYPE).is_some_and(body::is_json)
        && !head.headers.contains_key(negotiation::HEADER)
}
