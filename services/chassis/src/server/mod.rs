//! Serving. One accept loop for HTTP/1.1 and HTTP/2 on one port, encrypted or not, with the bounds
//! that keep a slow or hostile client from costing more than its connection, and the layers that
//! every gRPC service stands behind.

mod greet;
mod guard;
mod measure;
mod streams;
mod token;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use http::Request;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::{either::Either, sync::CancellationToken};
use tower::ServiceExt;

use self::streams::Streams;
use crate::{
    drain::Drain,
    limits,
    network::{Network, Socket, Wire},
    stall::{Impatient, Warning},
    tls,
};

pub use guard::{Guard, GuardLayer};
pub use measure::{Measure, MeasureLayer};
pub use streams::{peer_stall, stream_end};
pub use token::{TokenGuard, TokenLayer};

/// A socket that waits for clients, and what they must speak on it.
pub struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
    reader_stall: Duration,
}

/// Why there is no listener.
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

    /// The same on a network of this process's own, if there is one.
    pub async fn bind_on(
        network: Option<&Network>,
        address: SocketAddr,
        tls: Option<&tls::Files>,
    ) -> Result<Self, BindError> {
        let tls = tls.map(tls::Files::acceptor).transpose()?;
        let socket = Socket::bind(network, address).await;
        let socket = socket.map_err(|source| BindError::Address { address, source })?;
        Ok(Self { socket, tls, reader_stall: limits::READER_STALL })
    }

    /// How long a client may take nothing that waits for it before it is let go.
    pub fn reader_stall(self, reader_stall: Duration) -> Self {
        Self { reader_stall, ..self }
    }

    /// The address it listens on, with the port it really got.
    pub fn addr(&self) -> SocketAddr {
        self.socket.addr()
    }
}

/// Without TLS.
impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self { socket: Socket::Tcp(tcp), tls: None, reader_stall: limits::READER_STALL }
    }
}

/// Serves `router` on `listener` until drained, then waits for open requests to finish, at most
/// `patience`.
pub async fn serve(
    listener: impl Into<Listener>,
    router: Router,
    drain: Drain,
    patience: Duration,
) {
    let Listener { mut socket, tls, reader_stall } = listener.into();
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let patience_ended = CancellationToken::new();
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&permits).acquire_owned() => permit,
            () = drain.signalled() => break,
        };
        let (stream, peer) = tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file handles, most likely: give others time to close some.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = drain.signalled() => break,
        };
        let (router, watcher, drain) = (router.clone(), graceful.watcher(), drain.clone());
        let (tls, patience_ended) = (tls.clone(), patience_ended.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let opened = tokio::select! {
                opened = open(stream, tls) => opened,
                () = drain.signalled() => return,
            };
            let stream = match opened {
                Ok(stream) => stream,
                Err(error) => return tracing::debug!(%peer, %error, "cut off before any request"),
            };
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                router.clone().oneshot(request)
            });
            let warning = Warning::default();
            let builder = builder(Streams(warning.clone()));
            let stream = Impatient::new(stream, Some(limits::READER_FAREWELL))
                .warning(reader_stall, warning.clone());
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let connection = streams::warned(warning, watcher.watch(connection));
            // An error here is the client's: a reset, a cut, a malformed request already answered.
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%peer, error, "a connection broke");
                },
                () = patience_ended.cancelled() => {}
            }
        });
    }
    drop(socket);
    let _ = timeout(patience, graceful.shutdown()).await;
    patience_ended.cancel();
}

/// What a client is heard on.
type Stream = greet::Greeted<Either<Wire, Box<tokio_rustls::server::TlsStream<Wire>>>>;

/// A connection up to the point where hyper keeps the time: encrypted if it must be, and far
/// enough to know which HTTP the client speaks.
async fn open(stream: Wire, tls: Option<TlsAcceptor>) -> io::Result<Stream> {
    if let Either::Left(tcp) = &stream {
        tcp.set_nodelay(true)?;
    }
    let stream = match tls {
        Some(tls) => {
            let shaken = timeout(limits::HEADER_READ_TIMEOUT, tls.accept(stream)).await?;
            Either::Right(Box::new(shaken?))
        }
        None => Either::Left(stream),
    };
    greet::greet(stream).await
}

fn builder(streams: Streams) -> auto::Builder<Streams> {
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
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(limits::PENDING_RESETS_MAX)
        .max_local_error_reset_streams(limits::PENDING_RESETS_MAX)
        .max_concurrent_streams(4096);
    builder
}
