//! `[remote.NAME]`: the configuration of a remote agent.

use std::{path::PathBuf, time::Duration};

use faultline_chassis::Secret;
use faultline_client as client;
use http::{HeaderName, Uri};
use serde::{Deserialize, Serialize};

/// How long a remote task is polled whose server does not respond. The mesh does not run an attempt
/// again that lost its remote task, so the server has the time of a restart.
const LOST_PATIENCE: Duration = Duration::from_secs(120);

/// An agent outside this mesh, which the worker offers as NAME. Read once at the worker's start.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Remote {
    /// The URL of the agent's card, of the agent itself or of its server.
    pub card: String,
    /// The token for its server. Default: none.
    #[serde(skip_serializing)]
    pub token: Option<Secret>,
    /// A file with the token, in place of `token`. It is read again when the server rejects the
    /// token, so the token may expire.
    pub token_file: Option<PathBuf>,
    /// The header that carries the token as it is. Default: `authorization`, as a bearer token.
    pub header: Option<String>,
    /// Further origins that the card may lead to, and that receive the token, as
    /// `https://HOST:PORT`. Default: public addresses without a token, none with a token.
    pub allow_origins: Vec<String>,
    /// The only CA to trust for it, a PEM file. Default: the CAs of the system.
    pub ca: Option<PathBuf>,
    /// The description of the agent, in place of that on its card.
    pub description: Option<String>,
    /// The binding: `jsonrpc`, `http+json` or `grpc`. Default: the first one on its card.
    pub binding: Option<Binding>,
    /// The error codes of its server: `auto`, or `stack-a2a` for codes older than A2A's. Default:
    /// `auto`.
    pub dialect: Dialect,
    /// Permits sending the token to another machine without encryption. Default: false.
    pub insecure_http: bool,
    /// The maximum number of concurrent calls, streams included. Default: 256.
    pub max_calls: u32,
    /// The timeouts of a call.
    pub timeouts: Timeouts,
}

/// The timeouts of one call to a remote agent; a task has none of them. 0: no timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Timeout for connecting. Default: 5000.
    pub connect_ms: u64,
    /// Timeout for a write without progress. Default: 5000.
    pub write_ms: u64,
    /// Timeout for waiting until fewer than `max_calls` calls run. Default: 10000.
    pub pool_ms: u64,
    /// Timeout for a read without data. Slow models need 30 to 120 s. Default: 60000.
    pub read_ms: u64,
    /// Timeout for a whole call that is not a stream. Default: 90000.
    pub total_ms: u64,
}

/// The A2A binding of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Binding {
    #[serde(rename = "jsonrpc")]
    JsonRpc,
    #[serde(rename = "http+json")]
    HttpJson,
    #[serde(rename = "grpc")]
    Grpc,
}

/// The error codes of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    #[default]
    Auto,
    StackA2a,
}

/// A configuration with which an agent cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRemote {
    #[error("`remote.{name}.card` is missing: say where the agent is, as https://HOST/PATH")]
    MissingCard { name: String },
    #[error("`remote.{name}.card`: '{card}' is no http:// or https:// URL")]
    InvalidUrl { name: String, card: String },
    #[error("`remote.{name}.header`: '{header}' is not the name of a header")]
    InvalidHeader { name: String, header: String },
    #[error(
        "`remote.{name}.token` would go to another machine unencrypted: use https:// in \
         `remote.{name}.card`, or set `remote.{name}.insecure_http`"
    )]
    UnencryptedToken { name: String },
    #[error("`remote.{name}.token_file` goes without `{other}`: leave one of them out")]
    ConflictingTokens { name: String, other: &'static str },
    #[error("`remote.{name}.allow_origins`: '{origin}' is no http:// or https:// URL")]
    InvalidOrigin { name: String, origin: String },
    #[error("`remote.{name}.max_calls` is 0: it could never be called")]
    ZeroCalls { name: String },
    #[error("`remote.{name}` cannot be used")]
    Unusable { name: String, source: Box<client::Error> },
}

impl Default for Remote {
    fn default() -> Self {
        Self {
            card: String::new(),
            token: None,
            token_file: None,
            header: None,
            allow_origins: Vec::new(),
            ca: None,
            description: None,
            binding: None,
            dialect: Dialect::default(),
            insecure_http: false,
            max_calls: 256,
            timeouts: Timeouts::default(),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let client::Timeouts { connect, write, pool, read, total } = client::Timeouts::default();
        let ms = |layer: Option<Duration>| layer.map_or(0, |time| time.as_millis() as u64);
        Self {
            connect_ms: ms(connect),
            write_ms: ms(write),
            pool_ms: ms(pool),
            read_ms: ms(read),
            total_ms: ms(total),
        }
    }
}

impl From<Timeouts> for client::Timeouts {
    fn from(timeouts: Timeouts) -> Self {
        let layer = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        Self {
            connect: layer(timeouts.connect_ms),
            write: layer(timeouts.write_ms),
            pool: layer(timeouts.pool_ms),
            read: layer(timeouts.read_ms),
            total: layer(timeouts.total_ms),
        }
    }
}

impl Remote {
    /// The builder of a client. The client does not retry, because the mesh retries tasks.
    pub(super) fn builder(&self, name: &str) -> Result<client::Builder, InvalidRemote> {
        let name = || name.to_owned();
        if self.card.is_empty() {
            return Err(InvalidRemote::MissingCard { name: name() });
        }
        let Some(uri) = url(&self.card) else {
            return Err(InvalidRemote::InvalidUrl { name: name(), card: self.card.clone() });
        };
        let mut told = vec![uri];
        for origin in &self.allow_origins {
            let missing = || InvalidRemote::InvalidOrigin { name: name(), origin: origin.clone() };
            told.push(url(origin).ok_or_else(missing)?);
        }
        let has_token = self.token.is_some() || self.token_file.is_some();
        if has_token && !self.insecure_http && told.iter().any(sends_unencrypted) {
            return Err(InvalidRemote::UnencryptedToken { name: name() });
        }
        let other = [("token", self.token.is_some()), ("header", self.header.is_some())];
        if let (Some(_), Some((other, _))) = (&self.token_file, other.iter().find(|o| o.1)) {
            return Err(InvalidRemote::ConflictingTokens { name: name(), other });
        }
        if self.max_calls == 0 {
            return Err(InvalidRemote::ZeroCalls { name: name() });
        }
        let mut builder = client::Client::builder(&self.card)
            .retry(client::Retry::never())
            .reconnect(client::Reconnect { patience: LOST_PATIENCE, ..<_>::default() })
            .public_only()
            .timeouts(self.timeouts.into())
            .max_calls(self.max_calls as usize)
            .dialect(match self.dialect {
                Dialect::Auto => client::Dialect::Auto,
                Dialect::StackA2a => client::Dialect::StackA2a,
            });
        if let Some(binding) = self.binding {
            builder = builder.binding(match binding {
                Binding::JsonRpc => client::Binding::JsonRpc,
                Binding::HttpJson => client::Binding::HttpJson,
                Binding::Grpc => client::Binding::Grpc,
            });
        }
        for origin in &self.allow_origins {
            builder = builder.allow_origin(origin);
        }
        if let Some(ca) = &self.ca {
            builder = builder.ca(ca);
        }
        if let Some(path) = self.token_file.clone() {
            builder = builder.bearer_from(move || read_token(path.clone()));
        }
        Ok(match (&self.token, &self.header) {
            (None, _) => builder,
            (Some(token), None) => builder.bearer(token.reveal()),
            (Some(token), Some(header)) => {
                if header.parse::<HeaderName>().is_err() {
                    return Err(InvalidRemote::InvalidHeader {
                        name: name(),
                        header: header.clone(),
                    });
                }
                builder.header(header, token.reveal())
            }
        })
    }
}

async fn read_token(path: PathBuf) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let read = tokio::fs::read_to_string(&path).await;
    let text = read.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Secret::new(text.trim())?.reveal().to_owned())
}

fn url(text: &str) -> Option<Uri> {
    let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    text.parse().ok().filter(|uri: &Uri| uri.host().is_some() && is_http(uri))
}

/// Whether requests to this URL leave the machine without encryption.
fn sends_unencrypted(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    uri.scheme_str() == Some("http") && !here
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(toml: &str) -> String {
        let remote: Remote = toml::from_str(toml).unwrap();
        remote.builder("billing").err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn invalid_configuration_names_its_key() {
        let card = "card = 'https://x.example'\n";
        let cases = [
            ("", "`remote.billing.card` is missing"),
            ("card = 'x.example'", "`remote.billing.card`: 'x.example' is no"),
            ("card = 'ftp://x'", "is no http://"),
            ("card = 'http://x.example'\ntoken = 't'", "`remote.billing.token` would go"),
            (&format!("{card}token = 't'\nheader = 'a b'"), "`remote.billing.header`: 'a b'"),
            (&format!("{card}token_file = 'f'\ntoken = 't'"), "without `token`"),
            (&format!("{card}token_file = 'f'\nheader = 'h'"), "without `header`"),
            ("card = 'http://x.example'\ntoken_file = 'f'", "`remote.billing.token` would go"),
            (&format!("{card}allow_origins = ['x:1']"), "`remote.billing.allow_origins`: 'x:1'"),
            (
                &format!("{card}token = 't'\nallow_origins = ['http://y.example']"),
                "`remote.billing.token` would go",
            ),
            (&format!("{card}max_calls = 0"), "`remote.billing.max_calls` is 0"),
        ];
        for (toml, expected) in cases {
            assert!(refused(toml).contains(expected), "{toml}: {}", refused(toml));
        }
        for fine in [
            card.to_owned(),
            format!("{card}token = 't'\nheader = 'x-api-key'"),
            "card = 'http://127.0.0.1:1'\ntoken = 't'".to_owned(),
            "card = 'http://x.example'\ntoken = 't'\ninsecure_http = true".to_owned(),
            format!("{card}dialect = 'stack-a2a'\nbinding = 'http+json'"),
        ] {
            assert_eq!(refused(&fine), "", "{fine}");
        }
    }

    #[test]
    fn timeouts_default_to_those_of_the_client() {
        let default = client::Timeouts::from(Timeouts::default());
        assert_eq!(default, client::Timeouts::default());
        let told: Remote = toml::from_str("timeouts = { read_ms = 0, connect_ms = 3000 }").unwrap();
        let told = client::Timeouts::from(told.timeouts);
        assert_eq!((told.read, told.connect), (None, Some(Duration::from_secs(3))));
        assert_eq!(told.total, default.total);
    }
}
