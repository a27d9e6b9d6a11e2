//! Dialling of gRPC peers. Only this module opens gRPC connections: the generated clients cannot. A
//! layer between tonic's channel and its codec replaces every status that tonic reports wrongly.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Once, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use faultline_proto::{Failure, reason};
use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use http::{
    HeaderValue, Request, Response, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use tokio::time::Instant;
use tonic::{
    body::Body,
    transport::{Channel as Transport, Endpoint},
};
use tower::Service;

use crate::{
    auth::{mesh_config::MeshConfig, secret::Secret, token_file},
    error_chain::{causes, one_line},
    grpc::{
        body::{self, GuardedBody, Side},
        deadline::{Timeouts, format_grpc_timeout},
    },
    limits,
    net::{
        dial::{self, Connector},
        network::Network,
        tls::{self, Trust},
        write_stall::Stalled,
    },
};

impl MeshConfig {
    /// How a member dials the coordinator at `address`.
    pub fn dial(&self, address: &str) -> Dial {
        let token = self.in_process_token.as_ref().or(self.token.as_ref()).cloned();
        // The generated token belongs to this machine and is not sent to others.
        let local = self.network.is_none() && is_local(address);
        let generated = local.then(|| token_file::in_data(self.data.as_deref()));
        let token_file = self.token_file.clone().or(generated).filter(|_| token.is_none());
        Dial {
            address: address.to_owned(),
            ca: self.ca.clone(),
            token,
            token_file,
            network: self.network.clone(),
            at: None,
            public_only: false,
        }
    }
}

/// Whether an address, as it is written, names this machine.
fn is_local(address: &str) -> bool {
    let uri = url_of(address).parse::<Uri>();
    uri.is_ok_and(|uri| is_loopback_host(uri.host().map_or("", dial::bare)))
}

fn url_of(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

fn is_loopback_host(host: &str) -> bool {
    host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()) || host == "localhost"
}

/// A peer and the way to it. Plain data: a [`Channel`] is made from it.
#[derive(Clone, Debug, Default)]
pub struct Dial {
    /// `http://HOST:PORT`, `https://HOST:PORT` or just `HOST:PORT`.
    pub address: String,
    /// PEM: the only CA to trust. None: those the system trusts.
    pub ca: Option<PathBuf>,
    /// The bearer token of every call.
    pub token: Option<Secret>,
    /// A file with the token, if `token` is none. It is read when a call first needs it, because a
    /// coordinator that starts later may generate it.
    pub token_file: Option<PathBuf>,
    /// The in-process network of the address. None: the machine's network.
    pub network: Option<Network>,
    /// The socket address to connect to instead of the resolved host of `address`. TLS still
    /// verifies that host.
    pub at: Option<SocketAddr>,
    /// Refuses addresses that are not public (SSRF): see [`Connector::public_only`].
    pub public_only: bool,
}

/// The reason for which a peer cannot be dialled at all.
#[derive(Debug, thiserror::Error)]
pub enum CannotDial {
    #[error("not an address to dial: '{0}' (say http://HOST:PORT or https://HOST:PORT)")]
    Address(String),
    #[error("no CA to verify '{address}' with")]
    Ca { address: String, source: tls::Error },
    #[error("no token for '{address}'")]
    Token { address: String, source: token_file::Error },
}

/// A connection to one peer, made again after a break. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Channel {
    transport: Transport,
    spec: Arc<ChannelSpec>,
}

/// Everything that is needed to connect again.
#[derive(Debug)]
struct ChannelSpec {
    endpoint: Endpoint,
    connector: Connector,
    authorization: Authorization,
    /// The peer is outside the mesh.
    is_external: bool,
}

/// The `authorization` header.
#[derive(Debug)]
enum Authorization {
    None,
    Fixed(HeaderValue),
    /// Read once for each connection: a restarted coordinator may have another token.
    File {
        path: PathBuf,
        read: OnceLock<HeaderValue>,
    },
}

impl Authorization {
    fn of(dial: &Dial) -> Result<Self, CannotDial> {
        let Dial { address, token, token_file, .. } = dial;
        match (token, token_file) {
            (Some(token), _) => Ok(Self::Fixed(bearer(token))),
            (None, None) => Ok(Self::None),
            (None, Some(path)) => {
                let bad = |source| CannotDial::Token { address: address.clone(), source };
                token_file::read(path).map_err(bad)?;
                Ok(Self::File { path: path.clone(), read: OnceLock::new() })
            }
        }
    }

    /// The same for a new connection.
    fn anew(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Fixed(value) => Self::Fixed(value.clone()),
            Self::File { path, .. } => Self::File { path: path.clone(), read: OnceLock::new() },
        }
    }

    /// `None`: there is no token, or not yet. The coordinator's refusal contains the remedy.
    fn value(&self) -> Result<Option<HeaderValue>, Failure> {
        let (path, read) = match self {
            Self::None => return Ok(None),
            Self::Fixed(value) => return Ok(Some(value.clone())),
            Self::File { path, read } => (path, read),
        };
        if let Some(value) = read.get() {
            return Ok(Some(value.clone()));
        }
        let token = token_file::read(path)
            .map_err(|error| Failure::new(&reason::UNAUTHENTICATED).because(error.to_string()))?;
        Ok(token.map(|token| read.get_or_init(|| bearer(&token)).clone()))
    }
}

impl ChannelSpec {
    fn new(dial: &Dial, ping_interval: Duration) -> Result<Self, CannotDial> {
        let address = &dial.address;
        let uri = url_of(address).parse::<Uri>().ok().filter(|uri| {
            let has_host = uri.host().is_some_and(|host| !host.is_empty());
            has_host && matches!(uri.scheme_str(), Some("http" | "https"))
        });
        let uri = uri.ok_or_else(|| CannotDial::Address(address.clone()))?;
        if (dial.token.is_some() || dial.token_file.is_some()) && sends_plaintext(&uri) {
            warn_once(address);
        }
        let endpoint = Endpoint::from(uri)
            .http2_keep_alive_interval(ping_interval)
            .keep_alive_timeout(limits::PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
            .http2_max_header_list_size(limits::HEADER_LIST_BYTES_MAX);
        let trust = Trust::with_ca(dial.ca.as_deref());
        let trust = trust.map_err(|source| CannotDial::Ca { address: address.clone(), source })?;
        let connector = Connector::new(trust).http2_only().on(dial.network.clone());
        let connector = connector.at(dial.at);
        let connector = if dial.public_only { connector.public_only() } else { connector };
        let authorization = Authorization::of(dial)?;
        Ok(Self { endpoint, connector, authorization, is_external: false })
    }

    fn transport(&self) -> Transport {
        self.endpoint.connect_with_connector_lazy(self.connector.clone())
    }
}

impl Channel {
    /// Prepares a connection. The first call opens it.
    pub fn lazy(dial: &Dial) -> Result<Self, CannotDial> {
        ChannelSpec::new(dial, limits::PING_INTERVAL).map(Self::by)
    }

    /// Prepares a connection to a server outside the mesh, where frequent pings count as abuse and
    /// connecting and writing may be slow: see [`Connector::within`].
    pub fn external(
        dial: &Dial,
        connect: Option<Duration>,
        write: Option<Duration>,
    ) -> Result<Self, CannotDial> {
        let spec = ChannelSpec::new(dial, limits::EXTERNAL_PING_INTERVAL)?;
        let connector = spec.connector.within(connect, write);
        Ok(Self::by(ChannelSpec { connector, is_external: true, ..spec }))
    }

    /// The same peer at another address of its host name: see [`Dial::at`].
    pub fn at(&self, at: SocketAddr) -> Self {
        let ChannelSpec { endpoint, connector, authorization, is_external } = &*self.spec;
        Self::by(ChannelSpec {
            endpoint: endpoint.clone(),
            connector: connector.clone().at(Some(at)),
            authorization: authorization.anew(),
            is_external: *is_external,
        })
    }

    pub(crate) fn uri(&self) -> &Uri {
        self.spec.endpoint.uri()
    }

    /// Host and port of the peer, for the attributes of spans.
    pub fn peer(&self) -> (String, Option<u16>) {
        let uri = self.spec.endpoint.uri();
        (uri.host().map_or("", dial::bare).to_owned(), uri.port_u16())
    }

    fn by(spec: ChannelSpec) -> Self {
        Self { transport: spec.transport(), spec: Arc::new(spec) }
    }

    /// A connection to a peer that requires no token.
    pub fn without_token(address: &str) -> Result<Self, CannotDial> {
        Self::lazy(&Dial { address: address.to_owned(), ..Dial::default() })
    }

    /// A new connection to the same peer. The old one may be dead without a sign of it.
    pub fn anew(&self) -> Self {
        let ChannelSpec { endpoint, connector, authorization, is_external } = &*self.spec;
        Self::by(ChannelSpec {
            endpoint: endpoint.clone(),
            connector: connector.clone(),
            authorization: authorization.anew(),
            is_external: *is_external,
        })
    }
}

/// Whether others on the network can read the traffic to this URL.
fn sends_plaintext(uri: &Uri) -> bool {
    let host = uri.host().map_or("", dial::bare);
    uri.scheme_str() == Some("http") && !is_loopback_host(host)
}

/// Logs the warning once: a process dials its coordinator often.
fn warn_once(address: &str) {
    static WARNED: Once = Once::new();
    let text =
        "the token is sent to another machine unencrypted: give that machine TLS, and dial https";
    WARNED.call_once(|| tracing::warn!(address, "{text}"));
}

fn bearer(token: &Secret) -> HeaderValue {
    let text = format!("Bearer {}", token.reveal());
    let mut value = HeaderValue::try_from(text).expect("a secret is visible ASCII");
    value.set_sensitive(true);
    value
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    /// Always ready: the call reports a transport that is not.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let timeouts = request.extensions().get::<Timeouts>().copied().unwrap_or_default();
        if let Some(total) = timeouts.total
            && let Ok(value) = HeaderValue::from_str(&format_grpc_timeout(total))
        {
            request.headers_mut().insert("grpc-timeout", value);
        }
        match self.spec.authorization.value() {
            Ok(Some(value)) => drop(request.headers_mut().insert(AUTHORIZATION, value)),
            Ok(None) => {}
            Err(failure) => return ready(Ok(body::response(failure))).boxed(),
        }
        let deadline = timeouts.total.map(|t| Instant::now() + t);
        let mut transport = self.transport.clone();
        let is_external = self.spec.is_external;
        async move {
            let answer = async {
                futures::future::poll_fn(|cx| transport.poll_ready(cx)).await?;
                transport.call(request).await
            };
            let answer = match deadline {
                None => answer.await,
                Some(at) => match tokio::time::timeout_at(at, answer).await {
                    Ok(answer) => answer,
                    Err(_) => return Ok(body::response(body::expired())),
                },
            };
            Ok(match answer {
                Ok(response) => normalize(response, deadline, timeouts),
                Err(error) if is_external => {
                    body::response(timed_out(&error).unwrap_or_else(|| lost(&error)))
                }
                Err(error) => body::response(lost(&error)),
            })
        }
        .boxed()
    }
}

fn normalize(
    response: Response<Body>,
    deadline: Option<Instant>,
    timeouts: Timeouts,
) -> Response<Body> {
    let (mut parts, inner) = response.into_parts();
    let grpc = parts
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"));
    if !grpc {
        return body::response(not_grpc(parts.status));
    }
    body::sanitize(&mut parts.headers);
    let has_status = body::has_status(&parts.headers);
    let guarded = GuardedBody::new(inner, Side::Client, has_status, deadline, timeouts.idle);
    Response::from_parts(parts, Body::new(guarded))
}

/// The failure for an answer of a proxy or of a wrong port instead of a gRPC peer.
fn not_grpc(status: http::StatusCode) -> Failure {
    let reason = match status.as_u16() {
        401 => &reason::UNAUTHENTICATED,
        403 => &reason::PERMISSION_DENIED,
        404 => &reason::UNIMPLEMENTED,
        429 | 502 | 503 | 504 => &reason::UNAVAILABLE,
        400..=599 => &reason::INTERNAL,
        _ => &reason::UNKNOWN,
    };
    Failure::new(reason).because(format!(
        "the peer answered HTTP {status}, not gRPC: is this the address of a coordinator?"
    ))
}

/// The failure for a connect or write timeout of a peer outside the mesh.
fn timed_out(error: &tonic::transport::Error) -> Option<Failure> {
    let slow = causes(error).find_map(|cause| cause.downcast_ref::<dial::Error>());
    let failure = match slow {
        Some(dial::Error::Slow { within, .. }) => {
            let text = format!("the peer took no connection within {within:?}");
            Failure::new(&reason::CONNECT_TIMEOUT).because(text)
        }
        _ => Failure::new(&reason::WRITE_TIMEOUT).because(Stalled::find_in(error)?),
    };
    Some(failure.with_plane(faultline_proto::v1::Plane::Transport))
}

/// The failure for a call without an answer. The channel has a timer of its own for `grpc-timeout`,
/// which may fire before ours.
fn lost(error: &tonic::transport::Error) -> Failure {
    use dial::Error::{NotTls, Untrusted};
    let text = one_line(error);
    for cause in causes(error) {
        if cause.is::<tonic::TimeoutExpired>() {
            return body::expired();
        }
        // The text names the configured address and its TLS problem only, so it may be public.
        if let Some(wrong @ (Untrusted { .. } | NotTls { .. })) = cause.downcast_ref() {
            return body::unreachable_peer(&text).because(wrong.to_string());
        }
    }
    // The text is private: only the log gets it, and no status.
    tracing::debug!(cause = text, "no response from a peer");
    body::unreachable_peer(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_to_another_machine_is_overheard() {
        let plaintext = |url: &str| sends_plaintext(&url.parse().unwrap());
        for open in ["http://hub:8081", "http://10.0.0.1:8081", "http://[2001:db8::1]:8081"] {
            assert!(plaintext(open), "{open}");
        }
        for safe in ["https://hub:8081", "http://localhost:1", "http://127.0.0.2:1", "http://[::1]"]
        {
            assert!(!plaintext(safe), "{safe}");
        }
    }
}
