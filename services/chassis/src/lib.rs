//! What every service is bolted to. It knows gRPC, HTTP and time, and nothing of tasks or agents.

pub mod limits;

pub mod client;
pub mod credential;
pub mod dial;
pub mod members;
pub mod network;
pub mod secret;
pub mod server;
pub mod tls;
pub mod token_file;

pub mod deadline;
pub mod drain;
pub mod error_chain;
pub mod trace;

pub mod admin;
pub mod config;
pub mod descriptors;
pub mod exit;
pub mod metrics;
pub mod process;
pub mod telemetry;

mod body;
mod write_stall;

pub use client::MeshConfig;
pub use deadline::Timeouts;
pub use drain::Drain;
pub use exit::Exit;
pub use members::Members;
pub use metrics::Metrics;
pub use network::Network;
pub use secret::Secret;
pub use trace::TraceContext;
pub use write_stall::Stalled;
