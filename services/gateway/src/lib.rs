//! The front door of the mesh: the only service that speaks HTTP and JSON. It turns requests into
//! calls to the coordinator and answers back into JSON; it holds no task and stores nothing.

mod auth;
mod binding;
mod body;
mod card;
mod error;
mod extensions;
mod form;
mod grpc;
mod http;
mod jsonrpc;
mod link;
mod mesh;
mod operation;
mod rest;
mod route;
mod sign;
mod sse;
mod v03;
mod validate;
mod version;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::Router;
use faultline_chassis::{
    Drain, Mesh,
    client::{CannotDial, Channel},
    limits,
    server::{self, BindError, Listener},
    tls,
};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    auth::Callers,
    card::{Cards, Public},
    link::Link,
    sign::Signer,
};
pub use crate::{
    auth::{Auth, BadToken, Scope, Token, Wrong},
    binding::Binding,
    error::ErrorTable,
    sign::BadKey,
};

/// How long before the end of a drain open calls are ended, so that their last words get out.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where clients connect. Default: 127.0.0.1:8080.
    pub listen: SocketAddr,
    /// Where the coordinator is. Default: http://127.0.0.1:8081.
    pub coordinator: String,
    /// What clients call this gateway, as agent cards should say it. Default: the address it
    /// listens on, or the request's Host header when that is a wildcard.
    pub public_url: Option<String>,
    /// Where clients reach gRPC, as agent cards should say it: a host and a port. Default: cards
    /// do not list it.
    pub public_grpc: Option<String>,
    /// Which edition of A2A's error table answers follow, "1.0.1" or "1.0.0". Default: 1.0.1.
    pub a2a_error_table: ErrorTable,
    /// Which bindings of A2A are served and listed on agent cards, of `jsonrpc`, `rest` and `grpc`.
    /// Default: all.
    pub bindings: Vec<Binding>,
    /// Whether clients of A2A 0.3 are served too. Default: true.
    pub serve_v03: bool,
    /// What agent cards are signed with: a PEM file with a PKCS#8 key of EC P-256 or Ed25519.
    /// Default: they are not signed.
    pub card_key: Option<PathBuf>,
    /// The name under which verifiers find the public half of `card_key`.
    pub card_key_id: Option<String>,
    /// How long a reader may take nothing of a stream while something waits for it. Then the stream
    /// ends with an event that tells how to resume it. Default: 60000.
    pub reader_stall_ms: u64,
    /// The certificate to serve with. Default: no TLS.
    pub tls: Option<tls::Files>,
    /// Whether everybody who reaches a port beyond this machine may call. Default: false.
    pub insecure: bool,
    /// What the coordinator asks for. Default: nothing.
    #[serde(skip)]
    pub mesh: Mesh,
    /// Who may call. Default: everybody, as `local`.
    #[serde(skip)]
    pub auth: Auth,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            coordinator: "http://127.0.0.1:8081".to_owned(),
            public_url: None,
            public_grpc: None,
            a2a_error_table: ErrorTable::default(),
            bindings: Binding::ALL.to_vec(),
            serve_v03: true,
            card_key: None,
            card_key_id: None,
            reader_stall_ms: limits::READER_STALL.as_millis() as u64,
            tls: None,
            insecure: false,
            mesh: Mesh::default(),
            auth: Auth::default(),
        }
    }
}

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Listen(#[from] BindError),
    #[error(
        "{0} can be reached from other machines, and nobody is asked who they are: configure \
         [[auth.token]], listen on 127.0.0.1, or say --insecure"
    )]
    Exposed(SocketAddr),
    #[error(transparent)]
    Coordinator(#[from] CannotDial),
    #[error("not a public URL: '{0}' (say http://HOST or https://HOST/PATH)")]
    PublicUrl(String),
    #[error("not a public gRPC address: '{0}' (say HOST:PORT)")]
    PublicGrpc(String),
    #[error("gateway.reader_stall_ms is 0: nobody could read that fast")]
    NoReaders,
    #[error(
        "gateway.bindings is empty: name some of jsonrpc, rest and grpc, or leave it out for all"
    )]
    NoBindings,
    #[error(transparent)]
    CardKey(#[from] BadKey),
    #[error(transparent)]
    Token(#[from] BadToken),
}

/// Bound, but not serving yet.
pub struct Service {
    listener: Listener,
    link: Link,
    coordinator: Channel,
    cards: Cards,
    callers: Callers,
    error_table: ErrorTable,
    is_tls: bool,
}

impl Config {
    /// Opens the socket; no traffic yet.
    pub async fn bind(self) -> Result<Service, Error> {
        if self.bindings.is_empty() {
            return Err(Error::NoBindings);
        }
        if self.reader_stall_ms == 0 {
            return Err(Error::NoReaders);
        }
        let callers = Callers::new(&self.auth)?;
        let signer = Signer::load(self.card_key.as_deref(), self.card_key_id.as_deref())?;
        if let Some(bad) = self.public_grpc.as_ref().filter(|text| !card::is_grpc_address(text)) {
            return Err(Error::PublicGrpc(bad.clone()));
        }
        if !self.listen.ip().is_loopback() && self.auth.token.is_empty() && !self.insecure {
            return Err(Error::Exposed(self.listen));
        }
        let coordinator = Channel::lazy(&self.mesh.dial(&self.coordinator))?;
        let network = self.mesh.network.as_ref();
        let reader_stall = Duration::from_millis(self.reader_stall_ms);
        let listener = Listener::bind_on(network, self.listen, self.tls.as_ref()).await?;
        let listener = listener.reader_stall(reader_stall);
        let public = Public::new(self.public_url, listener.addr(), self.tls.is_some())
            .map_err(Error::PublicUrl)?;
        let cards = Cards {
            public,
            grpc: self.public_grpc,
            signer,
            secured: callers.are_known(),
            bindings: self.bindings,
            v03: self.serve_v03,
            since: SystemTime::now(),
        };
        let link = Link::new(reader_stall);
        let (error_table, is_tls) = (self.a2a_error_table, self.tls.is_some());
        Ok(Service { listener, link, coordinator, cards, callers, error_table, is_tls })
    }
}

impl Service {
    /// The address it listens on, with the port it really got.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// To be asked while it runs.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.link.clone())
    }

    /// Serves until drained.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let link = self.link;
        let _connection = AbortOnDropHandle::new(tokio::spawn(link.clone().run(self.coordinator)));
        let _watch = AbortOnDropHandle::new(tokio::spawn(link.clone().watch_readers()));
        let gateway = Gateway {
            link: link.clone(),
            grpc: grpc::router(&link, &drain),
            cards: self.cards,
            callers: self.callers,
            error_table: self.error_table,
            is_tls: self.is_tls,
        };
        let router = http::router(Arc::new(gateway));
        let last_words = async {
            drain.signalled().await;
            sleep(limits::DRAIN_TIMEOUT - LAST_WORDS).await;
            link.leave();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server::serve(self.listener, router, drain.clone(), limits::DRAIN_TIMEOUT) => {}
            () = last_words => {}
        }
        Ok(())
    }
}

/// Whether a gateway is of use: it is once it has reached the coordinator.
#[derive(Clone)]
pub struct Readiness(Link);

impl Readiness {
    pub fn is_ready(&self) -> bool {
        self.0.is_up()
    }
}

/// What every request shares.
struct Gateway {
    link: Link,
    grpc: Router,
    cards: Cards,
    callers: Callers,
    error_table: ErrorTable,
    /// Clients are told to keep to it.
    is_tls: bool,
}
