//! Agent cards: what an agent says of itself, with the addresses only the gateway knows. It owns
//! the public name of this gateway.

use std::{net::SocketAddr, time::Duration};

use axum::body::Body;
use faultline_proto::{
    Failure,
    a2a::AgentInterface,
    json, reason,
    v1::{Agent, AgentsRequest, call, reply},
};
use http::{
    HeaderValue, Response, Uri,
    header::{CACHE_CONTROL, HOST},
    request::Parts,
    uri::Authority,
};

use crate::{
    error::Refused,
    http::{self as surface, Exchange},
    validate,
};

/// A card changes when a worker with another one attaches, which is rare.
const CACHE: HeaderValue = HeaderValue::from_static("public, max-age=60");

/// What clients call this gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Public {
    /// Without a slash at its end.
    Url(String),
    /// Bound to every address: whatever the client found us by, else this.
    AsAsked(SocketAddr),
}

impl Public {
    /// The refused text is given back.
    pub(crate) fn new(url: Option<String>, bound: SocketAddr) -> Result<Self, String> {
        let Some(url) = url else {
            return Ok(match bound.ip().is_unspecified() {
                true => Public::AsAsked(bound),
                false => Public::Url(format!("http://{bound}")),
            });
        };
        let parsed = url.parse::<Uri>().ok();
        let web = parsed.as_ref().and_then(Uri::scheme_str);
        let plain = parsed.as_ref().is_some_and(|u| u.host().is_some() && u.query().is_none());
        match web {
            Some("http" | "https") if plain => {
                Ok(Public::Url(url.trim_end_matches('/').to_owned()))
            }
            _ => Err(url),
        }
    }

    fn url(&self, head: &Parts) -> String {
        let bound = match self {
            Public::Url(url) => return url.clone(),
            Public::AsAsked(bound) => bound,
        };
        // HTTP/2 has the host in the URI. What is no host is not put into a card.
        let header = || head.headers.get(HOST)?.to_str().ok()?.parse::<Authority>().ok();
        let asked = head.uri.authority().cloned().or_else(header);
        match asked.filter(|host| !host.host().is_empty() && !host.as_str().contains('@')) {
            Some(host) => format!("http://{host}"),
            None => format!("http://{bound}"),
        }
    }
}

/// The card of one agent, or of the one that serves the root.
pub(crate) async fn answer(
    exchange: &Exchange,
    name: Option<&str>,
) -> Result<Response<Body>, Refused> {
    let request = AgentsRequest { name: name.unwrap_or_default().to_owned() };
    let caller = exchange.caller(Duration::ZERO);
    let agents = match exchange.gateway.link.call(caller, call::Body::Agents(request)).await? {
        reply::Body::Agents(response) => response.agents,
        _ => return Err(validate::wrong_answer().into()),
    };
    let meant = |agent: &Agent| name.map_or(agent.is_default, |name| agent.name == name);
    let Some(agent) = agents.into_iter().find(meant) else {
        return Err(not_found(name).into());
    };
    let public = exchange.gateway.public.url(&exchange.head);
    let url = match name {
        Some(name) => format!("{public}/agents/{name}"),
        None => format!("{public}/"),
    };
    let mut card = agent.card.unwrap_or_default();
    if card.name.is_empty() {
        card.name = agent.name;
    }
    card.supported_interfaces = vec![AgentInterface {
        url,
        protocol_binding: "JSONRPC".to_owned(),
        protocol_version: "1.0".to_owned(),
        ..AgentInterface::default()
    }];
    let mut response = surface::json(json::to_vec(&card).into());
    response.headers_mut().insert(CACHE_CONTROL, CACHE);
    Ok(response)
}

fn not_found(name: Option<&str>) -> Failure {
    let failure = Failure::new(&reason::AGENT_NOT_FOUND);
    match name {
        Some(name) => failure.because(format!(
            "no agent '{name}' was ever offered here; POST /mesh/Agents lists those that were"
        )),
        None => failure.because(
            "no agent serves the root: start a worker that offers the default agent, or ask for \
             /agents/{agent}/.well-known/agent-card.json; POST /mesh/Agents lists the agents",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(host: &str) -> Parts {
        http::Request::get("/").header(HOST, host).body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_card_names_the_address_the_client_can_use() {
        let local: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let every: SocketAddr = "0.0.0.0:8080".parse().unwrap();
        let public = |url: Option<&str>, bound| Public::new(url.map(str::to_owned), bound).unwrap();
        let asked = head("mesh.example:99");
        assert_eq!(public(Some("https://a.example/x/"), every).url(&asked), "https://a.example/x");
        assert_eq!(public(None, local).url(&asked), "http://127.0.0.1:8080");
        assert_eq!(public(None, every).url(&asked), "http://mesh.example:99");
        for bad in ["a b", "", "x@y", "a/b"] {
            assert_eq!(public(None, every).url(&head(bad)), "http://0.0.0.0:8080", "{bad}");
        }
    }

    #[test]
    fn a_public_url_must_be_one() {
        let bound: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        for bad in ["", "example.com", "ftp://example.com", "http://", "http://x?y=1"] {
            assert!(Public::new(Some(bad.to_owned()), bound).is_err(), "{bad}");
        }
    }
}
