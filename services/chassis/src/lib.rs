//! What every service is bolted to. It knows gRPC, HTTP and time, and nothing of tasks or agents.

pub mod limits;

pub mod client;
pub mod server;

pub mod deadline;
pub mod drain;
pub mod trace;

pub mod config;
pub mod telemetry;

mod body;

pub use deadline::Timeouts;
pub use drain::Drain;
pub use trace::TraceContext;
