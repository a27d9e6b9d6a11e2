//! By which name a gateway lets itself be called. One that is for its own machine only and asks
//! nobody who they are trusts whoever reaches it. A page from elsewhere reaches it too, once the
//! name of that page's server leads to this machine; but such a name is not one of ours, and a
//! browser says which one it used.

use std::net::{IpAddr, SocketAddr};

use faultline_proto::{Failure, reason};
use http::{Uri, header::HOST, request::Parts, uri::Authority};

/// The names that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// Callers are known, or come from elsewhere anyhow.
    Any,
    /// Those of this machine, and the public one if there is.
    Own { public: Option<String> },
}

impl Hosts {
    pub(crate) fn new(bound: SocketAddr, knows_callers: bool, public_url: Option<&str>) -> Self {
        match bound.ip().is_loopback() && !knows_callers {
            false => Hosts::Any,
            true => {
                let public = public_url.and_then(|url| url.parse::<Uri>().ok());
                Hosts::Own { public: public.and_then(|url| url.host().map(str::to_owned)) }
            }
        }
    }

    pub(crate) fn check(&self, head: &Parts) -> Result<(), Failure> {
        let Hosts::Own { public } = self else { return Ok(()) };
        // HTTP/2 has the host in the URI. No browser leaves it out.
        let header = || head.headers.get(HOST).map(|value| value.to_str().unwrap_or("?"));
        let Some(asked) = head.uri.authority().map(Authority::as_str).or_else(header) else {
            return Ok(());
        };
        let host = asked.parse::<Authority>().ok().map(|asked| asked.host().to_owned());
        let is_public = |host: &str| public.as_ref().is_some_and(|p| p.eq_ignore_ascii_case(host));
        match host.is_some_and(|host| is_own(&host) || is_public(&host)) {
            true => Ok(()),
            false => Err(Failure::new(&reason::PERMISSION_DENIED).because(
                "this gateway knows no callers and is for its own machine: call it by localhost, a \
                 loopback address or the host of its public_url",
            )),
        }
    }
}

fn is_own(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        // Nobody's name server may answer for what is below localhost.
        Err(_) => {
            let host = host.to_ascii_lowercase();
            host == "localhost" || host.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(hosts: &Hosts, host: &str) -> bool {
        let head = http::Request::post("/mesh/Agents").header(HOST, host).body(()).unwrap();
        hosts.check(&head.into_parts().0).is_ok()
    }

    #[test]
    fn a_gateway_without_callers_answers_to_the_names_of_its_machine() {
        let local: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let own = Hosts::new(local, false, Some("https://Mesh.example/x"));
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
            assert!(asked(&own, name), "{name}");
        }
        for name in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "10.0.0.1",
            "a b",
            "",
            "localhost@evil.example",
        ] {
            assert!(!asked(&own, name), "{name}");
        }
        assert!(!asked(&Hosts::new(local, false, None), "mesh.example"));
        let nameless = http::Request::post("/mesh/Agents").body(()).unwrap().into_parts().0;
        assert!(own.check(&nameless).is_ok(), "no browser says nothing");
    }

    #[test]
    fn who_knows_its_callers_or_serves_others_answers_to_any_name() {
        let local: SocketAddr = "[::1]:8080".parse().unwrap();
        let every: SocketAddr = "0.0.0.0:8080".parse().unwrap();
        assert!(asked(&Hosts::new(local, true, None), "evil.example"));
        assert!(asked(&Hosts::new(every, false, None), "evil.example"));
        assert!(!asked(&Hosts::new(local, false, None), "evil.example"));
    }
}
