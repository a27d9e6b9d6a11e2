//! The coordinator: the only service that owns state. It takes tasks from gateways, makes every
//! change durable before anybody sees it, and assigns the tasks to workers.
//!
//! Folders, lowest first; a folder may use those before it (`tests/tidy.rs` enforces it):
//!
//! - `task`: the state machine of one task. Pure.
//! - `policy`: retry, circuit breaker, agent policy, card capabilities. Pure.
//! - `telemetry`: metrics and spans.
//! - `store`: durable events and rows on SQLite or PostgreSQL.
//! - `engine`: the in-memory state, its lock, the commit pipeline, dispatch and timers.
//! - `cluster`: leases, take-over and tasks of other coordinators.
//! - `api`: the operations of callers and agents.
//! - `push`: webhooks. `operators`: overview, queries and actions for operators.
//! - `server`: the gRPC services. `background`: periodic loops.

mod api;
mod background;
mod calls;
mod clock;
mod cluster;
mod config;
mod engine;
mod error;
mod operators;
mod policy;
mod push;
mod server;
mod service;
mod store;
mod task;
mod telemetry;
mod webhooks;

#[cfg(test)]
mod principal_tests;
#[cfg(test)]
mod testing;

pub use config::{AgentPolicy, Config, OnWorkerLost, shown_store};
pub use error::StartError as Error;
pub use server::health::Readiness;
pub use service::Service;
pub use store::{
    postgres::Database,
    seed::{SeedTask, seed},
};
pub use webhooks::Push;
