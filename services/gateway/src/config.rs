//! The configuration of a gateway: plain data, with its defaults.

use std::{net::SocketAddr, path::PathBuf};

use faultline_chassis::{MeshConfig, Metrics, limits, server::Cidr, tls};
use serde::{Deserialize, Serialize};

use crate::{
    http::{auth::Auth, failure::ErrorTable},
    protocol::binding::Binding,
};

/// How a gateway runs. Read once from the configuration; a running gateway never changes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address that clients connect to. Default: 127.0.0.1:8080.
    pub listen: SocketAddr,
    /// The addresses of the coordinators: one, or several with commas between them. A name stands
    /// for every address it resolves to. Default: http://127.0.0.1:8081.
    pub coordinator: String,
    /// The URL of this gateway on agent cards. Default: the address it listens on, or the request's
    /// Host header when that is a wildcard.
    pub public_url: Option<String>,
    /// The host names that this gateway answers to besides loopback ones and that of `public_url`.
    /// Default: every name; without tokens on a loopback address: no other.
    pub hosts: Vec<String>,
    /// The host and port of gRPC on agent cards. Default: cards do not list gRPC.
    pub public_grpc: Option<String>,
    /// The edition of A2A's error table that answers follow, "1.0.1" or "1.0.0". Default: 1.0.1.
    pub a2a_error_table: ErrorTable,
    /// The bindings of A2A that are served and listed on agent cards, of `jsonrpc`, `rest` and
    /// `grpc`. Default: all.
    pub bindings: Vec<Binding>,
    /// Whether clients of A2A 0.3 are served too. Default: true.
    pub serve_v03: bool,
    /// The key that signs agent cards: a PEM file with a PKCS#8 key of EC P-256 or Ed25519.
    /// On a wildcard address it needs `public_url`. Default: cards are not signed.
    pub card_key: Option<PathBuf>,
    /// The key id under which verifiers find the public half of `card_key`.
    pub card_key_id: Option<String>,
    /// Whether the console is served at `/console`. Default: true.
    pub console: bool,
    /// How long a client may read nothing of a stream while an event waits for it. Then the stream
    /// ends with an event that tells how to resume it. Default: 60000.
    pub reader_stall_ms: u64,
    /// How long the gateway looks for another coordinator when one breaks or leaves in the middle
    /// of a stream, or of a send that waits. Then the client gets an error that tells how to
    /// continue. Default: 15000.
    pub resume_ms: u64,
    /// Proxies and balancers in front of this gateway, as addresses or networks. Each stands for
    /// many clients, so the limits per address do not apply to it. Default: none.
    pub trusted_proxies: Vec<Cidr>,
    /// Connections that one address may have. Default: 2500, of 10000 in all.
    pub connections_per_address_max: usize,
    /// Watches of health that one address may have. Default: 128, of 1024 in all.
    pub health_watches_per_address_max: usize,
    /// Calls in flight that one caller may have, streams included: a principal, or an address
    /// where no token is configured. Default: 6144.
    pub calls_per_caller_max: usize,
    /// How long an HTTP/2 connection may have no open stream before it is closed. Default: 120000.
    pub idle_connection_ms: u64,
    /// Memory for bodies that have not arrived completely, of all requests together. Default: 64.
    pub body_budget_mib: usize,
    /// How long a draining gateway still accepts requests while its health says that it is not
    /// ready, so that balancers notice before the port closes. Default: 0.
    pub drain_delay_ms: u64,
    /// The certificate to serve with. Default: no TLS.
    pub tls: Option<tls::Files>,
    /// An address for probes and metrics, without authentication. Operators also find the metrics
    /// at `/metrics` of `listen`. Default: none.
    pub admin: Option<SocketAddr>,
    /// Whether a port beyond this machine may be served without tokens. Default: false.
    pub insecure: bool,
    /// Whether operators may cancel and answer the tasks of all principals, at /mesh and in the
    /// console. Default: false; `faultline up` for this machine alone, without tokens: true.
    pub operators_act: bool,
    /// The URL of a trace in a trace viewer, with a place for its id: `https://…/{trace_id}`.
    /// Default: none.
    pub trace_url: Option<String>,
    /// The credentials for the coordinator. Default: none.
    #[serde(skip)]
    pub mesh: MeshConfig,
    /// The tokens of callers. Default: none; every caller is `local`.
    #[serde(skip)]
    pub auth: Auth,
    /// The registry of its metrics.
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
