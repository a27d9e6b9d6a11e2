//! The configuration of a gateway: plain data, with its defaults.

use std::{net::SocketAddr, path::PathBuf};

use faultline_chassis::{MeshConfig, Metrics, limits, server::Cidr, tls};
use serde::{Deserialize, Serialize};

use crate::{
    http::{auth::Auth, failure::ErrorTable},
    protocol::binding::Binding,
};

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
    pub mesh: MeshConfig,
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
            resume_ms: limits::RESUME_TIMEOUT.as_millis() as u64,
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
            mesh: MeshConfig::default(),
            auth: Auth::default(),
            metrics: Metrics::default(),
        }
    }
}
