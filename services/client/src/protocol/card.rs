//! Agent card: its URL, its parsing, and the choice of the interface to call. Includes the origin
//! check that keeps credentials at the card's origin and, with `public_only`, restricts other
//! origins to public addresses (SSRF guard).

use std::fmt;

use faultline_proto::{
    a2a::{AgentCard, AgentInterface},
    json, v03,
};
use http::{Uri, uri::Scheme};

/// The path of an agent card below the URL of its agent or server.
const WELL_KNOWN: &str = "/.well-known/agent-card.json";
/// The supported major version of A2A.
const MAJOR: &str = "1";
/// The version of servers that support only 0.3, on JSON-RPC and HTTP+JSON.
pub(crate) const V0_3: &str = "0.3";
/// The assumed version of a server that states none.
pub(crate) const V1_0: &str = "1.0";

/// A protocol binding: the wire format of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// JSON-RPC 2.0 over HTTP.
    JsonRpc,
    /// Plain HTTP with JSON bodies.
    HttpJson,
    /// gRPC.
    Grpc,
}

impl Binding {
    /// All known bindings, in order of preference.
    pub const ALL: [Binding; 3] = [Binding::JsonRpc, Binding::HttpJson, Binding::Grpc];

    /// The name in agent cards.
    pub fn name(self) -> &'static str {
        match self {
            Binding::JsonRpc => "JSONRPC",
            Binding::HttpJson => "HTTP+JSON",
            Binding::Grpc => "GRPC",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|binding| binding.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reasons for which a card offers nothing to call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CardProblem {
    /// The document is not JSON, or not a card.
    #[error("it is not an agent card: {0}")]
    Unreadable(String),
    /// `supportedInterfaces` is absent or empty, and so is the `url` of a card of A2A 0.3.
    #[error("it lists no supportedInterfaces")]
    NoInterfaces,
    /// No interface has a known binding, or the requested one.
    #[error("none of its interfaces is {wanted}: it lists {listed}")]
    NoBinding {
        /// The acceptable bindings.
        wanted: String,
        /// The bindings on the card.
        listed: String,
    },
    /// No interface has a supported version: A2A 1.x, or 0.3 on JSON-RPC or HTTP+JSON.
    #[error(
        "none of its interfaces speaks A2A {MAJOR}.x, or {V0_3} by JSONRPC or HTTP+JSON: it lists \
         {listed}"
    )]
    NoVersion {
        /// The versions on the card.
        listed: String,
    },
    /// Every interface is at another origin than the card, and credentials are sent to the card's
    /// origin alone.
    #[error(
        "it leads to {called}, and credentials that are meant for {card} are not sent there: \
         allow that origin by its name (Builder::allow_origin)"
    )]
    OtherOrigin {
        /// Scheme, host and port of the card.
        card: String,
        /// Scheme, host and port of the last interface that was tried.
        called: String,
    },
    /// The interface is at another origin than the card, and its address is not public.
    #[error(
        "it leads to {called}, which is not a public address: allow that origin by its name \
         (Builder::allow_origin)"
    )]
    NotPublic {
        /// Scheme, host and port of the card.
        card: String,
        /// Scheme, host and port of the interface.
        called: String,
    },
    /// No interface has a valid URL.
    #[error("none of its interfaces has a URL that can be called: {url} ({why})")]
    NoUrl {
        /// The last URL that was tried.
        url: String,
        /// The problem of that URL.
        why: String,
    },
}

/// The interface that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) binding: Binding,
    /// With a scheme and without a trailing slash.
    pub(crate) url: String,
    pub(crate) tenant: String,
    /// Major and minor version.
    pub(crate) version: String,
}

/// Parses a card of A2A 1.x, or one of 0.3, which is converted.
pub(crate) fn read(json: &[u8]) -> Result<AgentCard, CardProblem> {
    let unreadable = |error: json::Error| CardProblem::Unreadable(error.to_string());
    let read = json::from_slice::<AgentCard>(json);
    if read.as_ref().is_ok_and(|card| !card.supported_interfaces.is_empty()) {
        return read.map_err(unreadable);
    }
    let Ok(card) = serde_json::from_slice(json) else { return read.map_err(unreadable) };
    match v03::new::card(card) {
        Ok(Some(card)) => json::from_str(&card.to_string()).map_err(unreadable),
        Ok(None) => read.map_err(unreadable),
        Err(misfit) => {
            Err(CardProblem::Unreadable(format!("{} {}", misfit.path, misfit.description)))
        }
    }
}

/// The URL of the card: the given URL if it ends in `.json`, otherwise the well-known path below
/// it.
pub(crate) fn card_url(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    if path.ends_with(".json") {
        url.to_owned()
    } else {
        format!("{}{WELL_KNOWN}", path.trim_end_matches('/'))
    }
}

/// The origins that a card may lead to.
#[derive(Clone, Debug)]
pub(crate) struct AllowedOrigins {
    /// The URL of the card.
    pub(crate) card: String,
    /// Further origins that are treated like the card's own.
    pub(crate) allowed: Vec<String>,
    /// Whether calls carry credentials, which are sent to the card's origin and the allowed ones.
    pub(crate) has_credentials: bool,
    /// Whether other origins need a public address.
    pub(crate) public_only: bool,
}

impl AllowedOrigins {
    fn allows(&self, url: &str) -> Result<(), CardProblem> {
        if !self.has_credentials || self.is_named(url) {
            Ok(())
        } else {
            let card = origin(&self.card);
            let called = origin(url);
            Err(CardProblem::OtherOrigin { card, called })
        }
    }

    /// Whether the user of the client named this origin: as that of the card, or as an allowed one.
    pub(crate) fn is_named(&self, url: &str) -> bool {
        let called = origin(url);
        called == origin(&self.card) || self.allowed.contains(&called)
    }

    /// Only the card names this origin, and `public_only` is set: the address must be public.
    pub(crate) fn must_be_public(&self, url: &str) -> bool {
        self.public_only && !self.is_named(url)
    }

    /// An encrypted card must not lead to an unencrypted interface.
    fn is_secure(&self) -> bool {
        self.card.starts_with("https://")
    }
}

/// Scheme, host and port in normal form; empty if the URL is invalid.
pub(crate) fn origin(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else { return String::new() };
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else { return String::new() };
    let host = host.to_ascii_lowercase();
    match (scheme, uri.port_u16()) {
        (scheme, None) | (scheme @ "http", Some(80)) | (scheme @ "https", Some(443)) => {
            format!("{scheme}://{host}")
        }
        (scheme, Some(port)) => format!("{scheme}://{host}:{port}"),
    }
}

/// The first interface that is supported and allowed. Order: interfaces that must prove to be
/// public come last, those of 0.3 after those of 1.x, otherwise the order of the card.
pub(crate) fn choose(
    card: &AgentCard,
    wanted: Option<Binding>,
    reach: &AllowedOrigins,
) -> Result<Interface, CardProblem> {
    let all = &card.supported_interfaces;
    if all.is_empty() {
        return Err(CardProblem::NoInterfaces);
    }
    let fits = |binding: Binding| wanted.is_none_or(|wanted| wanted == binding);
    let bound: Vec<_> = all
        .iter()
        .filter_map(|i| Binding::named(&i.protocol_binding).filter(|b| fits(*b)).map(|b| (b, i)))
        .collect();
    if bound.is_empty() {
        let wanted = wanted.map_or("JSONRPC, HTTP+JSON or GRPC".to_owned(), |b| b.to_string());
        return Err(CardProblem::NoBinding { wanted, listed: list(all, |i| &i.protocol_binding) });
    }
    let mut spoken: Vec<_> =
        bound.into_iter().filter_map(|(b, i)| Some((b, i, version(b, i)?))).collect();
    if spoken.is_empty() {
        return Err(CardProblem::NoVersion { listed: list(all, |i| &i.protocol_version) });
    }
    spoken.sort_by_key(|(binding, interface, version)| {
        let url = checked_url(&interface.url, *binding, reach.is_secure());
        (url.is_ok_and(|url| reach.must_be_public(&url)), version == V0_3)
    });
    let mut problem = CardProblem::NoInterfaces;
    for (binding, interface, version) in spoken {
        let url = checked_url(&interface.url, binding, reach.is_secure())
            .map_err(|why| CardProblem::NoUrl { url: format!("'{}'", interface.url), why })
            .and_then(|url| reach.allows(&url).map(|()| url));
        match url {
            Ok(url) => {
                let tenant = interface.tenant.clone();
                return Ok(Interface { binding, url, tenant, version });
            }
            Err(why) => problem = why,
        }
    }
    Err(problem)
}

fn list(all: &[AgentInterface], what: impl Fn(&AgentInterface) -> &String) -> String {
    let names = all.iter().take(8).map(|i| format!("'{}'", what(i)));
    names.collect::<Vec<_>>().join(", ")
}

/// Major and minor version of the interface, if it is supported.
fn version(binding: Binding, interface: &AgentInterface) -> Option<String> {
    let text = match interface.protocol_version.trim() {
        "" => V1_0,
        text => text,
    };
    let mut numbers = text.split('.');
    let major = numbers.next()?;
    let minor = numbers.next().unwrap_or("0");
    let version = format!("{major}.{minor}");
    let is_old = version == V0_3 && binding != Binding::Grpc;
    (is_old || major == MAJOR && minor.parse::<u16>().is_ok()).then_some(version)
}

/// The URL with a scheme, which only gRPC may omit, or its problem.
pub(crate) fn checked_url(url: &str, binding: Binding, secure: bool) -> Result<String, String> {
    let url = match (binding, url.contains("://")) {
        (Binding::Grpc, false) if secure => format!("https://{url}"),
        (Binding::Grpc, false) => format!("http://{url}"),
        _ => url.to_owned(),
    };
    let why = |text: &str| text.to_owned();
    let uri: Uri = url.parse().map_err(|_| why("it is not a URL"))?;
    if uri.host().is_none_or(str::is_empty) {
        return Err(why("it names no host"));
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => {}
        Some(scheme) if *scheme == Scheme::HTTP && !secure => {}
        Some(scheme) if *scheme == Scheme::HTTP => {
            return Err(why("the card was encrypted, and this URL is not"));
        }
        Some(_) => return Err(why("its scheme is neither http nor https")),
        None => return Err(why("it has no scheme")),
    }
    if uri.query().is_some() && binding != Binding::JsonRpc {
        return Err(why("it has a query, below which there are no routes"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use faultline_proto::json;

    use super::*;

    fn any_origin() -> AllowedOrigins {
        AllowedOrigins {
            card: "http://x".to_owned(),
            allowed: Vec::new(),
            has_credentials: false,
            public_only: false,
        }
    }

    fn chosen(interfaces: &str, wanted: Option<Binding>) -> Result<Interface, CardProblem> {
        let card = json::from_str(&format!(r#"{{"supportedInterfaces":[{interfaces}]}}"#));
        choose(&card.unwrap(), wanted, &any_origin())
    }

    #[test]
    fn first_supported_interface_is_chosen() {
        let card = r#"{"url":"quic://x","protocolBinding":"urn:mine","protocolVersion":"1.0"},
            {"url":"http://x/old","protocolBinding":"JSONRPC","protocolVersion":"0.3"},
            {"url":"relative","protocolBinding":"JSONRPC","protocolVersion":"1.0"},
            {"url":"http://x/v1/","protocolBinding":"HTTP+JSON","protocolVersion":"1.0.1",
             "tenant":"acme"},
            {"url":"x:443","protocolBinding":"GRPC","protocolVersion":"1.0"}"#;
        let rest = chosen(card, None).unwrap();
        assert_eq!((rest.binding, rest.url.as_str()), (Binding::HttpJson, "http://x/v1"));
        assert_eq!((rest.tenant.as_str(), rest.version.as_str()), ("acme", "1.0"));
        let grpc = chosen(card, Some(Binding::Grpc)).unwrap();
        assert_eq!(grpc.url, "http://x:443");
    }

    #[test]
    fn unusable_card_error_names_the_problem() {
        let one = |url: &str, binding: &str, version: &str| {
            let fields = [("url", url), ("protocolBinding", binding), ("protocolVersion", version)];
            let fields = fields.map(|(key, value)| format!(r#""{key}":"{value}""#));
            chosen(&format!("{{{}}}", fields.join(",")), None).unwrap_err().to_string()
        };
        let cases = [
            (chosen("", None).unwrap_err().to_string(), "it lists no supportedInterfaces"),
            (one("http://x", "CARRIER-PIGEON", "1.0"), "it lists 'CARRIER-PIGEON'"),
            (one("http://x", "JSONRPC", "0.2"), "HTTP+JSON: it lists '0.2'"),
            (one("http://x", "GRPC", "0.3"), "HTTP+JSON: it lists '0.3'"),
            (one("", "JSONRPC", "1.0"), "'' (it is not a URL)"),
            (one("/agents/x", "JSONRPC", "1.0"), "'/agents/x' (it names no host)"),
            (one("ftp://x", "JSONRPC", "1.0"), "neither http nor https"),
            (one("x:443", "HTTP+JSON", "1.0"), "it has no scheme"),
            (one("http://x?a=b", "HTTP+JSON", "1.0"), "it has a query"),
        ];
        for (text, expected) in cases {
            assert!(text.contains(expected), "{text}");
        }
        let card = r#"{"url":"http://x","protocolBinding":"JSONRPC","protocolVersion":"1.0"}"#;
        let asked = chosen(card, Some(Binding::Grpc)).unwrap_err();
        assert!(asked.to_string().contains("is GRPC: it lists 'JSONRPC'"), "{asked}");
    }

    #[test]
    fn card_of_0_3_offers_its_preferred_transport_and_the_others() {
        let old = r#"{"name":"a","protocolVersion":"0.3.0","url":"http://x/rpc",
            "preferredTransport":"JSONRPC","capabilities":{"streaming":true,
            "stateTransitionHistory":true},"supportsAuthenticatedExtendedCard":true,
            "security":[{"k":[]}],"securitySchemes":{"k":{"type":"http","scheme":"bearer"}},
            "additionalInterfaces":[{"url":"http://x/rpc","transport":"JSONRPC"},
            {"url":"http://x/rest","transport":"HTTP+JSON"}]}"#;
        let card = read(old.as_bytes()).unwrap();
        assert_eq!((card.supported_interfaces.len(), card.name.as_str()), (2, "a"));
        assert!(card.capabilities.as_ref().unwrap().streaming());
        let rpc = choose(&card, None, &any_origin()).unwrap();
        assert_eq!((rpc.binding, rpc.version.as_str()), (Binding::JsonRpc, V0_3));
        let rest = choose(&card, Some(Binding::HttpJson), &any_origin()).unwrap();
        assert_eq!((rest.url.as_str(), rest.version.as_str()), ("http://x/rest", V0_3));
        let bare = read(br#"{"url":"http://x"}"#).unwrap();
        let bare = choose(&bare, None, &any_origin()).unwrap();
        assert_eq!((bare.binding, bare.version.as_str()), (Binding::JsonRpc, V0_3));
        let invalid = read(br#"{"url":"http://x","additionalInterfaces":[{"url":1}]}"#);
        let invalid = invalid.unwrap_err().to_string();
        assert!(invalid.contains("additionalInterfaces[0].url must be a string"), "{invalid}");
    }

    #[test]
    fn encrypted_card_allows_no_unencrypted_interface() {
        let secure = |url, binding| checked_url(url, binding, true);
        assert!(secure("http://x", Binding::JsonRpc).is_err());
        assert_eq!(secure("https://x/", Binding::JsonRpc), Ok("https://x".to_owned()));
        assert_eq!(secure("x:443", Binding::Grpc), Ok("https://x:443".to_owned()));
    }

    #[test]
    fn origin_is_normalised_scheme_host_and_port() {
        for same in ["http://x", "http://X:80/a/b", "HTTP://u:p@x/?q"] {
            assert_eq!(origin(same), "http://x", "{same}");
        }
        assert_eq!(origin("https://x:443/a"), "https://x");
        assert_eq!(origin("https://x:80"), "https://x:80");
        assert_eq!(origin("http://[::1]:9/"), "http://[::1]:9");
        assert_eq!(origin("x:443"), "");
    }

    #[test]
    fn card_url_is_a_json_file_or_the_well_known_path() {
        let cases = [
            ("http://x", "http://x/.well-known/agent-card.json"),
            ("http://x/agents/echo/", "http://x/agents/echo/.well-known/agent-card.json"),
            ("http://x/.well-known/agent-card.json", "http://x/.well-known/agent-card.json"),
            ("http://x/cards/me.json?v=1", "http://x/cards/me.json?v=1"),
        ];
        for (given, expected) in cases {
            assert_eq!(card_url(given), expected);
        }
    }
}
