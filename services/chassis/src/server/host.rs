//! Host check against DNS rebinding. A web page with a name server that points at this machine
//! reaches a loopback listener as if both had the same origin, but its browser still sends the
//! page's own name as `Host` or `:authority`. Such a name is refused before any route.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use faultline_proto::{Failure, reason};
use futures::future::{Either, Ready, ready};
use http::{HeaderMap, Request, Response, Uri, header::HOST, uri::Authority};
use tower::{Layer, Service};

use crate::grpc::body;

/// Health checks use any address that a load balancer knows, and reveal nothing else.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// The host names that a listener accepts. Immutable; cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Option<Arc<Names>>);

#[derive(Debug, PartialEq, Eq)]
struct Names {
    /// In lower case.
    listed: Vec<String>,
    /// The table of the configuration file that has the `hosts` setting.
    section: &'static str,
}

/// An entry of `hosts` that is no host name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{section}.hosts: '{entry}' is not a host name (write agents.example.org or 10.0.0.1, without \
     scheme, port and path)"
)]
pub struct BadHost {
    pub section: &'static str,
    pub entry: String,
}

impl Hosts {
    /// Every name is accepted.
    pub fn any() -> Self {
        Self(None)
    }

    /// Accepts the names of `listed`, and loopback names, which no name server can redirect. An
    /// empty list accepts every name unless the listener `is_guarded`: bound to loopback without
    /// authentication.
    pub fn new(
        section: &'static str,
        is_guarded: bool,
        listed: &[String],
    ) -> Result<Self, BadHost> {
        for entry in listed {
            if !is_host(entry) {
                return Err(BadHost { section, entry: entry.clone() });
            }
        }
        let listed: Vec<_> = listed.iter().map(|name| name.to_ascii_lowercase()).collect();
        let names = Names { listed, section };
        Ok(Self((is_guarded || !names.listed.is_empty()).then(|| Arc::new(names))))
    }

    /// The check for listeners without a list: only on loopback, and only loopback names.
    pub fn for_loopback(section: &'static str, bound: SocketAddr) -> Self {
        let names = Names { listed: Vec::new(), section };
        Self(bound.ip().is_loopback().then(|| Arc::new(names)))
    }

    /// Accepts one more name if names are checked at all, such as that of the public URL.
    pub fn with_name(self, name: Option<&str>) -> Self {
        match (self.0, name) {
            (Some(names), Some(name)) => {
                let mut listed = names.listed.clone();
                listed.push(name.to_ascii_lowercase());
                Self(Some(Arc::new(Names { listed, section: names.section })))
            }
            (names, _) => Self(names),
        }
    }

    /// Refuses a request that was sent to another name, or to none: RFC 9112 requires `Host` of
    /// every HTTP/1.1 client, and HTTP/2 clients send `:authority`.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(names) = &self.0 else { return Ok(()) };
        let authority = uri.authority().map(Authority::as_str);
        let hosts = headers.get_all(HOST).iter().map(|value| value.to_str().unwrap_or("?"));
        let mut sent = authority.into_iter().chain(hosts).peekable();
        if sent.peek().is_some() && sent.all(|name| names.accept(name)) {
            Ok(())
        } else {
            Err(names.refusal())
        }
    }

    /// Whether a host with an optional port is a listed name. Without a check no name is listed.
    pub fn contains(&self, authority: &str) -> bool {
        let listed = |names: &Arc<Names>| host_of(authority).is_some_and(|h| names.has(h));
        self.0.as_ref().is_some_and(listed)
    }
}

impl Names {
    fn accept(&self, authority: &str) -> bool {
        host_of(authority).is_some_and(|host| is_loopback(host) || self.has(host))
    }

    fn has(&self, host: &str) -> bool {
        self.listed.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    fn refusal(&self) -> Failure {
        let section = self.section;
        Failure::new(&reason::PERMISSION_DENIED).because(format!(
            "this listener does not answer to the host name of the request: use localhost, a \
             loopback address, or a name that `hosts` in [{section}] lists"
        ))
    }
}

/// The host of `HOST` or `HOST:PORT`; none of anything else, user information included.
fn host_of(authority: &str) -> Option<&str> {
    let end = if authority.starts_with('[') {
        authority.find(']')? + 1
    } else {
        authority.find(':').unwrap_or(authority.len())
    };
    let (host, port) = authority.split_at(end);
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    (has_port && is_host(host)).then_some(host)
}

fn is_host(host: &str) -> bool {
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    match bracketed(host) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_name),
    }
}

fn bracketed(host: &str) -> Option<&str> {
    host.strip_prefix('[')?.strip_suffix(']')
}

fn is_loopback(host: &str) -> bool {
    match bracketed(host).unwrap_or(host).parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        // The machine itself resolves names below localhost (RFC 6761).
        Err(_) => {
            let below =
                host.len().checked_sub("localhost".len()).and_then(|n| host.split_at_checked(n));
            below.is_some_and(|(before, name)| {
                name.eq_ignore_ascii_case("localhost")
                    && (before.is_empty() || before.ends_with('.'))
            })
        }
    }
}

/// Checks the host name of every gRPC call but health checks.
#[derive(Clone, Debug)]
pub struct HostLayer(pub Hosts);

impl<S> Layer<S> for HostLayer {
    type Service = HostGuard<S>;

    fn layer(&self, inner: S) -> HostGuard<S> {
        HostGuard { inner, hosts: self.0.clone() }
    }
}

#[derive(Clone, Debug)]
pub struct HostGuard<S> {
    inner: S,
    hosts: Hosts,
}

impl<S> Service<Request<Body>> for HostGuard<S>
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
        let checked = if request.uri().path().starts_with(HEALTH) {
            Ok(())
        } else {
            self.hosts.check(request.uri(), request.headers())
        };
        match checked {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(failure) => Either::Left(ready(Ok(body::response(failure).map(Body::new)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION: &str = "gateway";

    fn accepts(hosts: &Hosts, host: &str) -> bool {
        let head = Request::post("/mesh/Agents").header(HOST, host).body(()).unwrap();
        hosts.check(head.uri(), head.headers()).is_ok()
    }

    fn guarded() -> Hosts {
        Hosts::new(SECTION, true, &[]).unwrap()
    }

    #[test]
    fn guarded_listener_accepts_loopback_names_and_its_public_name_only() {
        let own = guarded().with_name(Some("Mesh.example"));
        for name in [
            "127.0.0.1:8080",
            "127.0.0.2",
            "localhost",
            "LOCALHOST:8080",
            "mesh.localhost:1",
            "[::1]:8080",
            "mesh.example",
            "MESH.example:443",
        ] {
            assert!(accepts(&own, name), "{name}");
        }
        for name in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "10.0.0.1",
            "[::2]",
            "[::1",
            "::1",
            "a b",
            "",
            "localhost:x",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost/evil.example",
        ] {
            assert!(!accepts(&own, name), "{name}");
        }
        assert!(!accepts(&guarded(), "mesh.example"));
    }

    #[test]
    fn every_name_of_a_request_counts_and_one_is_required() {
        let check = |request: http::request::Builder| {
            let head = request.body(()).unwrap();
            guarded().check(head.uri(), head.headers()).is_ok()
        };
        assert!(!check(Request::get("/metrics")), "without a name");
        assert!(check(Request::get("http://localhost/metrics")), "HTTP/2 with an authority");
        assert!(!check(Request::get("http://evil.example/metrics")));
        let both = Request::get("http://localhost/metrics").header(HOST, "evil.example");
        assert!(!check(both), "authority and Host must agree");
        let twice = Request::get("/").header(HOST, "localhost").header(HOST, "evil.example");
        assert!(!check(twice));
    }

    #[test]
    fn unguarded_listener_checks_names_only_where_they_are_listed() {
        let any = Hosts::new(SECTION, false, &[]).unwrap();
        assert!(accepts(&any, "evil.example"));
        let listed = Hosts::new(SECTION, false, &["Agents.example".to_owned()]).unwrap();
        for (name, accepted) in
            [("agents.example:443", true), ("evil.example", false), ("localhost:8080", true)]
        {
            assert_eq!(accepts(&listed, name), accepted, "{name}");
        }
        for (bound, accepted) in [("127.0.0.1:1", false), ("[::1]:1", false), ("0.0.0.0:1", true)] {
            let hosts = Hosts::for_loopback(SECTION, bound.parse().unwrap());
            assert_eq!(accepts(&hosts, "evil.example"), accepted, "{bound}");
        }
    }

    #[test]
    fn invalid_host_name_is_quoted_in_the_error() {
        for entry in ["", "https://agents.example", "agents.example:443", "*.example", "a b"] {
            let bad = Hosts::new(SECTION, false, &[entry.to_owned()]).unwrap_err();
            assert!(bad.to_string().starts_with(&format!("gateway.hosts: '{entry}'")), "{bad}");
        }
    }
}
