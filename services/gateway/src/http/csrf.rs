//! Keeps requests that a web page forges (CSRF) from a gateway without tokens. A browser sends a
//! "simple" request of any page without asking first, and says in `Origin` which page it was;
//! everything else it asks for by a preflight, which this gateway never grants.

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
    /// Checks every request but health checks before anything else of it is read: that it came by
    /// a name of this gateway (DNS rebinding), and that no foreign page made a browser send it.
    pub(crate) fn check_host_and_origin(
        &self,
        head: &Parts,
        route: &Route<'_>,
    ) -> Result<(), Rejection> {
        if matches!(route, Route::Health | Route::GrpcHealth) {
            return Ok(());
        }
        let checked = self.hosts.check(&head.uri, &head.headers);
        // A bearer token is nothing that a browser adds by itself.
        let requires_token = self.authenticator.requires_token();
        let checked =
            checked.and_then(|()| if requires_token { Ok(()) } else { self.check_origin(head) });
        checked.map_err(|failure| Rejection::new(StatusCode::FORBIDDEN, failure))?;
        if !requires_token && is_simple(head, route) {
            return Err(body::wrong_type(
                "say Content-Type: application/json, also without a body: a request that changes \
                 a task must be none that a browser sends for any web page",
            ));
        }
        Ok(())
    }

    /// Refuses a request of a page that this gateway did not serve.
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

/// Whether a page is from the host and port that the request was sent to.
fn is_same(page: &str, head: &Parts) -> bool {
    let (uri, headers): (&Uri, &HeaderMap) = (&head.uri, &head.headers);
    let header = || headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(Authority::as_str).or_else(header);
    host.is_some_and(|host| host.eq_ignore_ascii_case(page))
}

/// Whether a browser would send this for any page without a preflight, although it changes a task.
/// Only a cancel has no body to be refused for its type; DELETE is never simple.
fn is_simple(head: &Parts, route: &Route<'_>) -> bool {
    let Route::Rest(rest) = route else { return false };
    head.method == Method::POST
        && rest.resource.operation(&head.method) == Some(Operation::CancelTask)
        && !head.headers.get(CONTENT_TYPE).is_some_and(body::is_json)
        && !head.headers.contains_key(negotiation::HEADER)
}
