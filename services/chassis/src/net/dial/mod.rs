//! Dialling: name resolution, TCP, and TLS for https URLs. Every connection that leaves a process
//! is made here, both gRPC inside the mesh and HTTP to other servers.

mod public;

use std::{
    error::Error as StdError,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{Uri, uri::Scheme};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector, dns::Name},
    rt::TokioIo,
};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::lookup_host,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;
use tower::Service;

use crate::{
    error_chain::causes,
    limits,
    net::{
        network::{Network, Wire},
        tls::{self, Trust},
        write_stall::WriteTimeout,
    },
};

/// Idle time after which TCP keep-alive probes the peer's machine.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The reason for a failed connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("'{0}' names no host to dial")]
    NoHost(Uri),
    #[error("{} may not be dialled", .0.host)]
    Forbidden(#[from] Forbidden),
    #[error("cannot connect to {host}")]
    Connect { host: String, source: Box<dyn StdError + Send + Sync> },
    #[error("no connection to {host} within {within:?}")]
    Slow { host: String, within: Duration },
    #[error("the certificate of {host} cannot be trusted: {problem}")]
    Untrusted { host: String, problem: String },
    #[error("{host} does not speak TLS (if it should not, write http:// instead of https://)")]
    NotTls { host: String },
    #[error("no TLS with {host}")]
    Handshake { host: String, source: io::Error },
}

/// The address is reachable only from this machine or this network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{host}' is {address}, which is not a public address")]
pub struct Forbidden {
    pub host: String,
    pub address: IpAddr,
}

impl Forbidden {
    /// Finds the error in an error chain.
    pub fn find_in<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        causes(error).find_map(|cause| cause.downcast_ref())
    }
}

/// The reason for which a host is no target.
#[derive(Debug, thiserror::Error)]
pub enum BadTarget {
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error("'{host}' has no address")]
    Unknown { host: String, source: io::Error },
}

/// Whether a [`Connector::public_only`] may dial `host`, as its name resolves now.
pub async fn check_public(host: &str, port: u16) -> Result<(), BadTarget> {
    let host = bare(host);
    match (Resolver { public_only: true }).resolve(host, port).await {
        Ok(_) => Ok(()),
        Err(ResolveError::Forbidden(forbidden)) => Err(forbidden.into()),
        Err(ResolveError::Io(source)) => Err(BadTarget::Unknown { host: host.to_owned(), source }),
    }
}

/// Makes connections, for `hyper_util`'s client and for tonic's channel. Immutable after its
/// construction; cheap to clone.
#[derive(Clone, Debug)]
pub struct Connector {
    trust: Trust,
    protocols: &'static [&'static [u8]],
    public_only: bool,
    /// None: the machine's network.
    network: Option<Network>,
    /// The socket address to connect to instead of the resolved host.
    at: Option<SocketAddr>,
    /// Limits for connecting, and for a peer that takes no bytes.
    connect: Option<Duration>,
    write: Option<Duration>,
    /// Made for the first https URL: without one no certificates are needed.
    tls: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl Connector {
    /// Dials any address and offers HTTP/2 and HTTP/1.1 by ALPN.
    pub fn new(trust: Trust) -> Self {
        let protocols = &[tls::H2, tls::HTTP1];
        let connect = Some(limits::CONNECT_TIMEOUT);
        Self {
            trust,
            protocols,
            public_only: false,
            network: None,
            at: None,
            connect,
            write: None,
            tls: Arc::default(),
        }
    }

    /// Offers HTTP/2 only, as gRPC needs it.
    pub fn http2_only(self) -> Self {
        Self { protocols: &[tls::H2], tls: Arc::default(), ..self }
    }

    /// Offers HTTP/1.1 only.
    pub fn http1_only(self) -> Self {
        Self { protocols: &[tls::HTTP1], tls: Arc::default(), ..self }
    }

    /// SSRF guard: refuses every address that is not on the public internet, with [`Forbidden`].
    /// The checked address is the one that is dialled, so DNS rebinding gains nothing.
    pub fn public_only(self) -> Self {
        Self { public_only: true, ..self }
    }

    /// Dials inside this network only, if there is one.
    pub fn on(self, network: Option<Network>) -> Self {
        Self { network, ..self }
    }

    /// Connects to this socket address, if there is one, instead of the resolved host. The
    /// certificate is still verified for the host.
    pub fn at(self, at: Option<SocketAddr>) -> Self {
        Self { at, ..self }
    }

    /// Gives up connecting after `connect`, and closes a connection whose peer takes no bytes for
    /// `write`; none: no limit. The defaults are [`limits::CONNECT_TIMEOUT`] and no limit for
    /// writes.
    pub fn within(self, connect: Option<Duration>, write: Option<Duration>) -> Self {
        Self { connect, write, ..self }
    }

    async fn connect(self, uri: Uri) -> Result<TokioIo<Stream>, Error> {
        let host = uri.host().map(bare).ok_or_else(|| Error::NoHost(uri.clone()))?.to_owned();
        let connecting = async {
            let wire = match &self.network {
                Some(network) => connect_in_process(network, &host, &uri).await?,
                None => self.tcp(&host, &uri).await?,
            };
            if uri.scheme() == Some(&Scheme::HTTPS) {
                self.encrypt(host.clone(), wire).await
            } else {
                Ok(Either::Left(wire))
            }
        };
        let connected = match self.connect {
            None => connecting.await,
            Some(within) => match timeout(within, connecting).await {
                Ok(connected) => connected,
                Err(_) => return Err(Error::Slow { host, within }),
            },
        };
        connected.map(|wire| TokioIo::new(Stream(WriteTimeout::new(wire, self.write))))
    }

    async fn tcp(&self, host: &str, uri: &Uri) -> Result<Wire, Error> {
        let resolver = Resolver { public_only: self.public_only };
        // The connector below calls no resolver for a literal address.
        if let Some(address) = self.at.map(|at| at.ip()).or_else(|| host.parse().ok()) {
            resolver.check(host, address)?;
        }
        let mut tcp = HttpConnector::new_with_resolver(resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE));
        // The timeout covers all addresses of a name together.
        tcp.set_connect_timeout(self.connect);
        let there = match self.at {
            Some(at) => format!("http://{at}").parse().map_err(|_| Error::NoHost(uri.clone()))?,
            None => uri.clone(),
        };
        let connected = tcp.call(there).await;
        let connected = connected.map(|tcp| Either::Left(tcp.into_inner()));
        connected.map_err(|source| match Forbidden::find_in(&source) {
            Some(forbidden) => forbidden.clone().into(),
            None => match self.connect.filter(|_| is_timeout(&source)) {
                Some(within) => Error::Slow { host: host.to_owned(), within },
                None => Error::Connect { host: host.to_owned(), source: source.into() },
            },
        })
    }

    async fn encrypt(&self, host: String, wire: Wire) -> Result<MaybeTls, Error> {
        let Ok(name) = ServerName::try_from(host.clone()) else {
            let problem = "it could not be for a name like this".to_owned();
            return Err(Error::Untrusted { host, problem });
        };
        let config = self.tls.get_or_init(|| Arc::new(self.trust.client(self.protocols)));
        match TlsConnector::from(Arc::clone(config)).connect(name, wire).await {
            Ok(stream) => Ok(Either::Right(Box::new(stream))),
            Err(source) => Err(handshake_failed(host, source)),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<TokioIo<Stream>, Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        self.clone().connect(uri).boxed()
    }
}

/// An in-process network has addresses and no names.
async fn connect_in_process(network: &Network, host: &str, uri: &Uri) -> Result<Wire, Error> {
    let port = port(uri);
    let connected = match host.parse() {
        Ok(ip) => network.connect(SocketAddr::new(ip, port)).await,
        Err(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    let unreached =
        |source: io::Error| Error::Connect { host: host.to_owned(), source: source.into() };
    connected.map(Either::Right).map_err(unreached)
}

fn connected(wire: &Wire) -> Connected {
    match wire {
        Either::Left(tcp) => tcp.connected(),
        Either::Right(_) => Connected::new(),
    }
}

fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    let is = |e: &io::Error| e.kind() == io::ErrorKind::TimedOut;
    causes(error).any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is))
}

/// The port of a URL, explicit or the default of its scheme.
pub(crate) fn port(uri: &Uri) -> u16 {
    let usual = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    uri.port_u16().unwrap_or(usual)
}

/// The host without the brackets of an IPv6 literal.
pub(crate) fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn handshake_failed(host: String, source: io::Error) -> Error {
    use rustls::{CertificateError as Bad, Error as Tls};
    let inner = source.get_ref().and_then(|e| e.downcast_ref::<Tls>());
    match inner {
        // A CA made again under its old name has another key.
        Some(Tls::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature)) => {
            let problem = "it was not issued by a CA that is trusted here".to_owned();
            Error::Untrusted { host, problem }
        }
        Some(Tls::InvalidCertificate(bad)) => Error::Untrusted { host, problem: bad.to_string() },
        Some(Tls::InvalidMessage(_)) => Error::NotTls { host },
        _ => Error::Handshake { host, source },
    }
}

/// The system's resolver, with a check of each address before it is dialled.
#[derive(Clone, Copy, Debug)]
struct Resolver {
    public_only: bool,
}

impl Resolver {
    /// One forbidden address refuses the whole name: no honest name mixes them.
    async fn resolve(self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        let found: Vec<_> = lookup_host((host, port)).await?.collect();
        for address in &found {
            self.check(host, address.ip())?;
        }
        Ok(found)
    }

    fn check(self, host: &str, address: IpAddr) -> Result<(), Forbidden> {
        if !self.public_only || public::is_public(address) {
            Ok(())
        } else {
            Err(Forbidden { host: host.to_owned(), address })
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ResolveError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("refused")]
    Forbidden(#[from] Forbidden),
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = ResolveError;
    type Future = BoxFuture<'static, Result<Self::Response, ResolveError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), ResolveError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = *self;
        async move { Ok(resolver.resolve(name.as_str(), 0).await?.into_iter()) }.boxed()
    }
}

/// A plain or an encrypted connection.
type MaybeTls = Either<Wire, Box<TlsStream<Wire>>>;

/// One connection, closed when its peer stops reading.
#[derive(Debug)]
pub struct Stream(WriteTimeout<MaybeTls>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self.0.get_ref() {
            Either::Left(wire) => connected(wire),
            Either::Right(tls) => {
                let (wire, session) = tls.get_ref();
                if session.alpn_protocol() == Some(tls::H2) {
                    connected(wire).negotiated_h2()
                } else {
                    connected(wire)
                }
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, literals, and literals in spellings that only the system's resolver understands.
    const INSIDE: &[&str] =
        &["localhost", "127.0.0.1", "127.1", "0x7f000001", "[::1]", "[::ffff:10.0.0.1]"];

    #[tokio::test]
    async fn address_that_is_not_public_is_refused_before_dialling() {
        for host in INSIDE {
            let checked = check_public(host, 80).await;
            assert!(matches!(checked, Err(BadTarget::Forbidden(_))), "{host}: {checked:?}");
            let uri: Uri = format!("http://{host}:9/").parse().unwrap();
            let dialled = Connector::new(Trust::system()).public_only().call(uri).await;
            let error = dialled.err().unwrap_or_else(|| panic!("{host} was dialled"));
            assert!(Forbidden::find_in(&error).is_some(), "{host}: {error:?}");
        }
        assert!(check_public("8.8.8.8", 80).await.is_ok());
    }

    #[tokio::test]
    async fn loopback_address_is_dialled_without_the_ssrf_guard() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        let uri: Uri = format!("http://{closed}/").parse().unwrap();
        let dialled = Connector::new(Trust::system()).call(uri).await;
        assert!(matches!(dialled, Err(Error::Connect { .. })), "{dialled:?}");
    }
}
