//! The front door of the mesh: the only service that speaks HTTP and JSON. It turns requests into
//! calls to the coordinator and answers back into JSON; it holds no task and stores nothing.

mod auth;
mod binding;
mod body;
mod bounds;
mod card;
mod conditional;
mod console;
mod error;
mod extensions;
mod forgery;
mod form;
mod grpc;
mod http;
mod jsonrpc;
mod link;
mod links;
mod mesh;
mod meters;
mod operation;
mod rest;
mod route;
mod sign;
mod sse;
mod trace_link;
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
    Drain, Members, Mesh, Metrics, TraceContext,
    admin::Ready,
    client::CannotDial,
    limits,
    server::{self, BadHost, BindError, Cidr, Hosts, Listener},
    telemetry::Calling,
    tls,
};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{
    auth::Callers,
    card::{Cards, KeptCards, Public},
    console::Console,
    link::Shares,
    links::Links,
    meters::Meters,
    sign::Signer,
    trace_link::TraceLink,
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
    /// Where the coordinators are: one address, or several with commas between them. A name stands
    /// for every address it resolves to. Default: http://127.0.0.1:8081.
    pub coordinator: String,
    /// What clients call this gateway, as agent cards should say it. Default: the address it
    /// listens on, or the request's Host header when that is a wildcard.
    pub public_url: Option<String>,
    /// The host names that this gateway answers to besides loopback ones and that of `public_url`.
    /// Default: every name; without tokens on a loopback address: no other.
    pub hosts: Vec<String>,
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
    /// On a wildcard address it needs `public_url`. Default: they are not signed.
    pub card_key: Option<PathBuf>,
    /// The name under which verifiers find the public half of `card_key`.
    pub card_key_id: Option<String>,
    /// Whether operators find pages at `/console`. Default: true.
    pub console: bool,
    /// How long a reader may take nothing of a stream while something waits for it. Then the stream
    /// ends with an event that tells how to resume it. Default: 60000.
    pub reader_stall_ms: u64,
    /// How long another coordinator is looked for when one breaks or leaves in the middle of a
    /// stream, or of a send that waits. Then its client is told how to go on. Default: 15000.
    pub resume_ms: u64,
    /// Proxies and balancers in front of this gateway, as addresses or networks: each stands for
    /// many clients, so no limit for one address holds for them. Default: none.
    pub trusted_proxies: Vec<Cidr>,
    /// Connections that one address may have. Default: 2500, of 10000 in all.
    pub connections_per_address_max: usize,
    /// Watches of health that one address may have. Default: 128, of 1024 in all.
    pub health_watches_per_address_max: usize,
    /// Calls that one caller may have under way, streams among them: a principal, or an address
    /// where no token is configured. Default: 6144.
    pub calls_per_caller_max: usize,
    /// How long an HTTP/2 connection may have no open stream before it is closed. Default: 120000.
    pub idle_connection_ms: u64,
    /// Memory for bodies that have not arrived whole, of all requests together. Default: 64.
    pub body_budget_mib: usize,
    /// How long it goes on as before when it is told to leave, although it says that it is not
    /// ready: so long it takes others to hear of it. Default: 0.
    pub drain_delay_ms: u64,
    /// The certificate to serve with. Default: no TLS.
    pub tls: Option<tls::Files>,
    /// Where probes and numbers are served, to whoever reaches it; the numbers are also at
    /// `/metrics` of `listen`, for operators. Default: nowhere else.
    pub admin: Option<SocketAddr>,
    /// Whether everybody who reaches a port beyond this machine may call. Default: false.
    pub insecure: bool,
    /// Whether operators may cancel and answer everybody's tasks, at /mesh and in the console.
    /// Default: false; `faultline up` for this machine alone, without tokens: true.
    pub operators_act: bool,
    /// Where traces are shown, with a place for the id: `https://…/{trace_id}`. Default: nowhere.
    pub trace_url: Option<String>,
    /// What the coordinator asks for. Default: nothing.
    #[serde(skip)]
    pub mesh: Mesh,
    /// Who may call. Default: everybody, as `local`.
    #[serde(skip)]
    pub auth: Auth,
    /// Where its numbers are kept.
    #[serde(skip)]
    pub metrics: Metrics,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            coordinator: "http://127.0.0.1:8081".to_owned(),
            public_url: None,
            hosts: Vec::new(),
            public_grpc: None,
            a2a_error_table: ErrorTable::default(),
            bindings: Binding::ALL.to_vec(),
            serve_v03: true,
            card_key: None,
            card_key_id: None,
            console: true,
            reader_stall_ms: limits::READER_STALL.as_millis() as u64,
            resume_ms: limits::RESUME_PATIENCE.as_millis() as u64,
            trusted_proxies: Vec::new(),
            connections_per_address_max: limits::CONNECTIONS_PER_ADDRESS_MAX,
            health_watches_per_address_max: limits::HEALTH_WATCHES_PER_ADDRESS_MAX,
            calls_per_caller_max: limits::CALLS_PER_CALLER_MAX,
            idle_connection_ms: limits::IDLE_CONNECTION.as_millis() as u64,
            body_budget_mib: limits::BODY_BUDGET_BYTES / (1024 * 1024),
            drain_delay_ms: 0,
            tls: None,
            admin: None,
            insecure: false,
            operators_act: false,
            trace_url: None,
            mesh: Mesh::default(),
            auth: Auth::default(),
            metrics: Metrics::default(),
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
    #[error("gateway.trace_url '{0}' is no link to a trace (say https://HOST/PATH/{{trace_id}})")]
    TraceUrl(String),
    #[error("gateway.{key} is {value}: {what}")]
    Setting { key: &'static str, value: u64, what: &'static str },
    #[error("gateway.reader_stall_ms is 0: nobody could read that fast")]
    NoReaders,
    #[error(
        "gateway.bindings is empty: name some of jsonrpc, rest and grpc, or leave it out for all"
    )]
    NoBindings,
    #[error(transparent)]
    Host(#[from] BadHost),
    #[error(transparent)]
    CardKey(#[from] BadKey),
    #[error(
        "gateway.card_key without gateway.public_url on {0}: a card names the address of its \
         agent, and would be signed for whatever Host a request names; set public_url to the \
         address that clients use, such as https://mesh.example, or listen on one address"
    )]
    SignsAnyHost(SocketAddr),
    #[error(transparent)]
    Token(#[from] BadToken),
}

/// Bound, but not serving yet.
pub struct Service {
    listener: Listener,
    links: Links,
    drain_delay: Duration,
    cards: Cards,
    callers: Callers,
    hosts: Hosts,
    operators_act: bool,
    trace_link: Option<TraceLink>,
    error_table: ErrorTable,
    metrics: Metrics,
    /// Host and port of the coordinators, for spans.
    peer: (String, Option<u16>),
    is_tls: bool,
    console: Option<Console>,
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
        let bounds = self.bounds()?;
        let callers = Callers::new(&self.auth)?;
        let shares = Shares::new(callers.principals(), self.calls_per_caller_max);
        let signer = Signer::load(self.card_key.as_deref(), self.card_key_id.as_deref())?;
        if signer.is_some() && self.public_url.is_none() && self.listen.ip().is_unspecified() {
            return Err(Error::SignsAnyHost(self.listen));
        }
        if let Some(bad) = self.public_grpc.as_ref().filter(|text| !card::is_grpc_address(text)) {
            return Err(Error::PublicGrpc(bad.clone()));
        }
        let trace_link = self.trace_url.map(TraceLink::new).transpose().map_err(Error::TraceUrl)?;
        if !self.listen.ip().is_loopback() && self.auth.token.is_empty() && !self.insecure {
            return Err(Error::Exposed(self.listen));
        }
        let members = Members::new(&self.mesh, &self.coordinator)?;
        let network = self.mesh.network.as_ref();
        let reader_stall = Duration::from_millis(self.reader_stall_ms);
        let listener = Listener::bind_on(network, self.listen, self.tls.as_ref()).await?;
        let listener = listener.reader_stall(reader_stall).bounds(bounds);
        let resume = Duration::from_millis(self.resume_ms);
        let known = callers.are_known();
        let is_guarded = listener.addr().ip().is_loopback() && !known;
        let public_host = self.public_url.as_deref().and_then(card::host);
        let hosts = Hosts::new("gateway", is_guarded, &self.hosts)?.and(public_host.as_deref());
        let public = Public::new(self.public_url, listener.addr(), self.tls.is_some())
            .map_err(Error::PublicUrl)?;
        let cards = Cards {
            public,
            grpc: self.public_grpc,
            signer,
            secured: known,
            bindings: self.bindings,
            v03: self.serve_v03,
            since: SystemTime::now(),
        };
        Ok(Service {
            listener,
            peer: members.peer(),
            links: Links::new(members, reader_stall, resume, shares),
            drain_delay: Duration::from_millis(self.drain_delay_ms),
            cards,
            callers,
            hosts,
            operators_act: self.operators_act,
            trace_link,
            error_table: self.a2a_error_table,
            metrics: self.metrics,
            is_tls: self.tls.is_some(),
            console: self.console.then(Console::new),
        })
    }
}

impl Service {
    /// The address it listens on, with the port it really got.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// To be asked while it runs.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.links.clone())
    }

    /// Serves until drained.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let links = self.links;
        let gateway = Gateway {
            grpc: grpc::router(&links, &drain),
            meters: Meters::new(&self.metrics, &links),
            links: links.clone(),
            drain: drain.clone(),
            cards: self.cards,
            kept_cards: KeptCards::default(),
            callers: self.callers,
            hosts: self.hosts,
            operators_act: self.operators_act,
            trace_link: self.trace_link,
            error_table: self.error_table,
            metrics: self.metrics,
            peer: self.peer,
            is_tls: self.is_tls,
            console: self.console,
        };
        let router = http::router(Arc::new(gateway));
        // Whoever sends requests here hears only after a while that it should not.
        let closing = Drain::new();
        let last_words = async {
            drain.signalled().await;
            sleep(self.drain_delay).await;
            links.drain();
            closing.start();
            sleep(limits::DRAIN_TIMEOUT - LAST_WORDS).await;
            links.leave();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server::serve(self.listener, router, closing.clone(), limits::DRAIN_TIMEOUT) => {}
            () = last_words => {}
            // Here and not beside: a gateway without these had better end than seem to live.
            () = links.clone().run() => {}
            () = links.clone().watch_readers() => {}
        }
        Ok(())
    }
}

/// Whether a gateway is of use: it is once it has reached the coordinator.
#[derive(Clone)]
pub struct Readiness(Links);

impl Readiness {
    pub fn is_ready(&self) -> bool {
        self.0.is_up()
    }

    pub fn look(&self) -> Ready {
        self.is_ready().then_some(()).ok_or("the coordinator has not been reached")
    }
}

/// What every request shares.
struct Gateway {
    links: Links,
    /// It is told to leave.
    drain: Drain,
    grpc: Router,
    cards: Cards,
    kept_cards: KeptCards,
    callers: Callers,
    hosts: Hosts,
    /// Whether operators may change tasks.
    operators_act: bool,
    trace_link: Option<TraceLink>,
    error_table: ErrorTable,
    metrics: Metrics,
    meters: Arc<Meters>,
    peer: (String, Option<u16>),
    /// Clients are told to keep to it.
    is_tls: bool,
    console: Option<Console>,
}

impl Gateway {
    /// The span of a call to the coordinator.
    fn calling(&self, method: &str, parent: &TraceContext) -> Calling {
        let (host, port) = &self.peer;
        Calling::begin("gateway", method, parent).to(host, *port)
    }
}
