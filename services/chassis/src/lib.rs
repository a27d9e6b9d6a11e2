//! The parts that every service is built from: dialling, serving, graceful shutdown, telemetry,
//! metrics and limits. This crate knows gRPC, HTTP and time, and nothing of tasks or agents.
//!
//! Folders, lowest first; a folder uses only those before it and the files beside this one:
//! `grpc`, `net` < `auth` < `client` < `telemetry`, `metrics` < `server` < `process`. The public
//! paths are flat: `faultline_chassis::tls` is `net/tls.rs`.

pub mod backoff;
pub mod config;
pub mod drain;
pub mod error_chain;
pub mod limits;

mod auth;
pub mod client;
mod grpc;
pub mod metrics;
mod net;
pub mod process;
pub mod server;
pub mod telemetry;

pub use auth::{
    credential,
    mesh_config::MeshConfig,
    secret::{self, Secret},
    token_file,
};
pub use client::members::{self, Members};
pub use drain::Drain;
pub use grpc::deadline::{self, Timeouts};
pub use metrics::Metrics;
pub use net::{
    dial,
    network::{self, Network},
    tls,
    write_stall::Stalled,
};
pub use process::{
    admin, descriptors,
    exit::{self, Exit},
};
pub use telemetry::trace::{self, TraceContext};
