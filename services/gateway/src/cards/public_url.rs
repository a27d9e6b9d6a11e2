//! The public URL of this gateway, as agent cards name it.

use std::net::SocketAddr;

use http::{Uri, header::HOST, request::Parts, uri::Authority};

/// The public URL: configured, or derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublicUrl {
    /// The same for every request, without a slash at its end.
    Fixed(String),
    /// On a wildcard address: the host of the request, or `bound` without one.
    FromHostHeader { scheme: &'static str, bound: SocketAddr },
}

impl PublicUrl {
    /// An invalid URL is the error.
    pub(crate) fn new(url: Option<String>, bound: SocketAddr, tls: bool) -> Result<Self, String> {
        let scheme = if tls { "https" } else { "http" };
        let Some(url) = url else {
            return Ok(if bound.ip().is_unspecified() {
                PublicUrl::FromHostHeader { scheme, bound }
            } else {
                PublicUrl::Fixed(format!("{scheme}://{bound}"))
            });
        };
        let parsed = url.parse::<Uri>().ok();
        let web = parsed.as_ref().and_then(Uri::scheme_str);
        let plain = parsed.as_ref().is_some_and(|u| u.host().is_some() && u.query().is_none());
        match web {
            Some("http" | "https") if plain => {
                Ok(PublicUrl::Fixed(url.trim_end_matches('/').to_owned()))
            }
            _ => Err(url),
        }
    }

    pub(crate) fn url(&self, head: &Parts) -> String {
        let (scheme, bound) = match self {
            PublicUrl::Fixed(url) => return url.clone(),
            PublicUrl::FromHostHeader { scheme, bound } => (scheme, bound),
        };
        // HTTP/2 has the host in the URI. An invalid host does not get into a card.
        let header = || head.headers.get(HOST)?.to_str().ok()?.parse::<Authority>().ok();
        let asked = head.uri.authority().cloned().or_else(header);
        match asked.filter(|host| !host.host().is_empty() && !host.as_str().contains('@')) {
            Some(host) => format!("{scheme}://{host}"),
            None => format!("{scheme}://{bound}"),
        }
    }

    /// Whether the URL depends on the Host header.
    pub(crate) fn depends_on_host(&self) -> bool {
        matches!(self, PublicUrl::FromHostHeader { .. })
    }
}

/// The host of a URL.
pub(crate) fn host(url: &str) -> Option<String> {
    url.parse::<Uri>().ok()?.host().map(str::to_owned)
}

/// Whether the text is a gRPC address: a host and a port, and nothing else.
pub(crate) fn is_grpc_address(text: &str) -> bool {
    text.parse::<Authority>().is_ok_and(|address| {
        !address.host().is_empty() && address.port_u16().is_some() && !text.contains('@')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(host: &str) -> Parts {
        http::Request::get("/").header(HOST, host).body(()).unwrap().into_parts().0
    }

    #[test]
    fn card_names_an_address_that_the_client_can_use() {
        let local: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let every: SocketAddr = "0.0.0.0:8080".parse().unwrap();
        let asked = head("mesh.example:99");
        for (url, bound, tls, expected) in [
            (Some("https://a.example/x/"), every, false, "https://a.example/x"),
            (Some("http://a.example"), every, true, "http://a.example"),
            (None, local, false, "http://127.0.0.1:8080"),
            (None, local, true, "https://127.0.0.1:8080"),
            (None, every, false, "http://mesh.example:99"),
            (None, every, true, "https://mesh.example:99"),
        ] {
            let public = PublicUrl::new(url.map(str::to_owned), bound, tls).unwrap();
            assert_eq!(public.url(&asked), expected);
            assert_eq!(public.depends_on_host(), expected.contains("mesh"), "{expected}");
        }
        let public = PublicUrl::new(None, every, false).unwrap();
        for bad in ["a b", "", "x@y", "a/b"] {
            assert_eq!(public.url(&head(bad)), "http://0.0.0.0:8080", "{bad}");
        }
    }

    #[test]
    fn invalid_public_url_is_rejected() {
        let bound: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        for bad in ["", "example.com", "ftp://example.com", "http://", "http://x?y=1"] {
            assert!(PublicUrl::new(Some(bad.to_owned()), bound, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn grpc_address_is_a_host_and_a_port() {
        for good in ["agents.example.org:443", "10.0.0.1:8080", "[::1]:8080"] {
            assert!(is_grpc_address(good), "{good}");
        }
        for bad in ["", "agents.example.org", ":443", "http://x:1", "x:1/y", "u@x:1", "x:99999"] {
            assert!(!is_grpc_address(bad), "{bad}");
        }
    }
}
