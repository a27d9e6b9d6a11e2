//! The server: one accept loop for HTTP/1.1 and HTTP/2 on one port, with or without TLS; quotas
//! that bound the cost of a slow or hostile client; and the layers around every gRPC service. May
//! depend on every folder but `process`.
//!
//! May use: every other folder but process.

mod address;
mod authenticate;
mod connection;
mod grpc_only;
mod guard;
mod head;
mod host;
mod measure;
mod message_budget;
mod preface_timeout;
mod quota;
mod streams;
mod unauthenticated;
mod undecodable;
mod unread;

use std::{
    future::{pending, ready},
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::Router;
use futures::{FutureExt, future::Either as EitherFuture};
use http::Request;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::{either::Either, sync::CancellationToken};
use tower::ServiceExt;

use self::{connection::Connection, quota::QuotaTable, streams::StreamExecutor};
use crate::{
    drain::Drain,
    limits,
    net::{
        network::{Network, Socket, Wire},
        tls,
        write_stall::WriteTimeout,
    },
};

pub use address::{BadCidr, Cidr};
pub use authenticate::{CredentialGuard, CredentialLayer};
pub use connection::{Client, ReservedBytes, acquire, client};
pub use grpc_only::{GrpcOnly, GrpcOnlyLayer};
pub use guard::{Guard, GuardLayer};
pub use host::{BadHost, HostGuard, HostLayer, Hosts};
pub use measure::{Measure, MeasureLayer};
pub use message_budget::{MessageBudget, MessageBudgetLayer};
pub use quota::{QuotaPermit, Quotas, Resource};
pub use streams::{peer_stall, stream_reset};
pub use unauthenticated::{UnauthenticatedGuard, UnauthenticatedLayer};
pub use undecodable::refuse_undecodable;
pub use unread::charge_until_read;

/// A bound socket with the settings for its connections.
pub struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
    reader_stall: Duration,
    bounds: Bounds,
}

/// The limits of one listener. The default is for clients with a credential of the mesh.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Quotas per address and in total.
    pub limits: Quotas,
    /// Buffered bytes of the requests of one connection.
    pub connection_bytes: usize,
    /// An HTTP/2 connection without open streams is closed after this time.
    pub idle: Option<Duration>,
    /// Flow-control windows of a stream and of a connection: bytes that a peer may send unread. A
    /// connection beyond the quota of windows gets the smallest.
    pub windows: (u32, u32),
    /// Streams that may be reset before the connection is closed: by the peer before they are
    /// served, and by the server because of the peer's errors.
    pub resets: (usize, usize),
    /// Open streams of one connection.
    pub streams: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            limits: Quotas::default(),
            connection_bytes: usize::MAX,
            idle: None,
            windows: (limits::STREAM_WINDOW_BYTES, limits::CONNECTION_WINDOW_BYTES),
            resets: (limits::PENDING_RESETS_MAX, limits::PENDING_RESETS_MAX),
            streams: limits::STREAMS_PER_CONNECTION_MAX,
        }
    }
}

impl Bounds {
    /// For a public port.
    pub fn public(limits: Quotas, connection_bytes: usize, idle: Duration) -> Self {
        Self {
            limits,
            connection_bytes,
            idle: Some(idle),
            windows: (limits::PUBLIC_STREAM_WINDOW_BYTES, limits::PUBLIC_CONNECTION_WINDOW_BYTES),
            resets: limits::PUBLIC_RESETS_MAX,
            streams: limits::PUBLIC_STREAMS_PER_CONNECTION_MAX,
        }
    }
}

/// The reason for which there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address} (port 0 takes any free one)")]
    Address { address: SocketAddr, source: io::Error },
    #[error("TLS cannot be set up")]
    Tls(#[from] tls::Error),
}

impl Listener {
    /// Listens on `address` of the machine, with TLS if there are files for it.
    pub async fn bind(address: SocketAddr, tls: Option<&tls::Files>) -> Result<Self, BindError> {
        Self::bind_on(None, address, tls).await
    }

    /// Listens on an in-process network, if there is one.
    pub async fn bind_on(
        network: Option<&Network>,
        address: SocketAddr,
        tls: Option<&tls::Files>,
    ) -> Result<Self, BindError> {
        let tls = tls.map(tls::Files::acceptor).transpose()?;
        let socket = Socket::bind(network, address).await;
        let socket = socket.map_err(|source| BindError::Address { address, source })?;
        Ok(Self { tls, ..Self::of(socket) })
    }

    fn of(socket: Socket) -> Self {
        Self { socket, tls: None, reader_stall: limits::READER_STALL, bounds: Bounds::default() }
    }

    /// Sets the limits of the listener.
    pub fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets the time after which a client that takes no bytes of its responses is disconnected.
    pub fn reader_stall(self, reader_stall: Duration) -> Self {
        Self { reader_stall, ..self }
    }

    /// The address it listens on, with the assigned port.
    pub fn addr(&self) -> SocketAddr {
        self.socket.addr()
    }
}

/// Without TLS.
impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self::of(Socket::Tcp(tcp))
    }
}

/// Serves `router` on `listener` until the drain starts, then waits for open requests, at most
/// `patience`.
pub async fn serve(
    listener: impl Into<Listener>,
    router: Router,
    drain: Drain,
    patience: Duration,
) {
    let Listener { mut socket, tls, reader_stall, bounds } = listener.into();
    let quotas = QuotaTable::new(bounds.limits.clone());
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let patience_ended = CancellationToken::new();
    let port = Arc::new(Port { router, tls, reader_stall, bounds, drain, patience_ended });
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&permits).acquire_owned() => permit,
            () = port.drain.signalled() => break,
        };
        let (stream, peer) = tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely there are no free file descriptors: gives others time to close
                    // some.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = port.drain.signalled() => break,
        };
        let address = quotas.address(peer.ip(), matches!(stream, Either::Right(_)));
        // A connection above the quota is closed at once and does not wait for others to end.
        let Ok(place) = address.acquire(Resource::Connection, 1) else { continue };
        let (port, connection) =
            (Arc::clone(&port), Connection::new(address, port.bounds.connection_bytes));
        tokio::spawn(async move {
            port.serve(stream, peer, connection).await;
            drop((place, permit));
        });
    }
    drop(socket);
    // All permits are back once all connections are closed.
    let _ = timeout(patience, permits.acquire_many(limits::CONNECTIONS_MAX as u32)).await;
    port.patience_ended.cancel();
}

/// The state that all connections of one listener share.
struct Port {
    router: Router,
    tls: Option<TlsAcceptor>,
    reader_stall: Duration,
    bounds: Bounds,
    drain: Drain,
    patience_ended: CancellationToken,
}

impl Port {
    async fn serve(&self, stream: Wire, peer: SocketAddr, connection: Arc<Connection>) {
        let opened = tokio::select! {
            opened = open(stream, self.tls.clone()) => opened,
            () = self.drain.signalled() => return,
        };
        let stream = match opened {
            Ok(stream) => stream,
            Err(error) => {
                return tracing::debug!(%peer, %error, "connection failed before its first request");
            }
        };
        let router = self.router.clone();
        let service =
            service_fn(move |request: Request<hyper::body::Incoming>| {
                match head::charge(&request) {
                    Ok(charged) => {
                        let answer = router.clone().oneshot(request);
                        EitherFuture::Left(answer.inspect(move |_| drop(charged)))
                    }
                    Err(_) => EitherFuture::Right(ready(Ok(unread::budget_exhausted()))),
                }
            });
        // hyper closes an idle HTTP/1 connection itself.
        let is_http2 = stream.is_http2();
        let idle = self.bounds.idle.filter(|_| is_http2);
        let (windows, _window_permit) = connection.windows(self.bounds.windows);
        let builder = builder(StreamExecutor(Arc::clone(&connection)), &self.bounds, windows);
        let stream = WriteTimeout::new(stream, Some(limits::READER_RETURN_TIMEOUT))
            .warning(self.reader_stall, connection.warning.clone());
        let driving = async {
            let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
            let mut closing = pin!(self.closing(&connection, idle));
            let mut unread_timeout = pin!(async {
                if is_http2 {
                    connection.unread_timeout(self.reader_stall).await
                } else {
                    pending().await
                }
            });
            let mut is_closing = false;
            loop {
                tokio::select! {
                    biased;
                    ended = serving.as_mut() => {
                        // An error of the client: a reset, a broken connection, a malformed request
                        // that was answered.
                        if let Err(error) = ended {
                            tracing::debug!(%peer, error, "connection ended with an error");
                        }
                        return;
                    }
                    () = closing.as_mut(), if !is_closing => {
                        is_closing = true;
                        serving.as_mut().graceful_shutdown();
                    }
                    () = unread_timeout.as_mut() => {
                        return tracing::debug!(%peer, "closed a connection with unread responses");
                    }
                    () = self.patience_ended.cancelled() => return,
                }
            }
        };
        streams::with_connection(Arc::clone(&connection), driving).await;
    }

    /// Returns when a connection should finish its requests and close: the server drains, or the
    /// connection was idle for too long.
    async fn closing(&self, connection: &Connection, idle: Option<Duration>) {
        let unused = async {
            match idle {
                Some(idle) => connection.idle(idle).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.drain.signalled() => {}
            () = unused => {}
        }
    }
}

/// The accepted connection.
type Stream =
    preface_timeout::WithPreface<Either<Wire, Box<tokio_rustls::server::TlsStream<Wire>>>>;

/// Prepares a connection up to the point where hyper's timeouts begin: completes the TLS handshake,
/// and reads enough bytes to know the HTTP version.
async fn open(stream: Wire, tls: Option<TlsAcceptor>) -> io::Result<Stream> {
    if let Either::Left(tcp) = &stream {
        tcp.set_nodelay(true)?;
    }
    let stream = match tls {
        Some(tls) => {
            let handshake = timeout(limits::HEADER_READ_TIMEOUT, tls.accept(stream)).await?;
            Either::Right(Box::new(handshake?))
        }
        None => Either::Left(stream),
    };
    preface_timeout::read_preface(stream).await
}

fn builder(
    streams: StreamExecutor,
    bounds: &Bounds,
    windows: (u32, u32),
) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(streams);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_READ_TIMEOUT)
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits::PING_INTERVAL)
        .keep_alive_timeout(limits::PING_TIMEOUT)
        .initial_stream_window_size(windows.0)
        .initial_connection_window_size(windows.1)
        .max_header_list_size(limits::REQUEST_HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(bounds.resets.0)
        .max_local_error_reset_streams(bounds.resets.1)
        .max_concurrent_streams(bounds.streams);
    builder
}
