//! The operations of callers: send, follow, get, list, cancel and delegate, with idempotency keys
//! and access checks. Independent of the transport.
//!
//! May use: task, policy, telemetry, store, calls, webhooks, engine and cluster.

pub(crate) mod delegation;
pub(crate) mod replay;
pub(crate) mod send;
pub(crate) mod send_stream;
pub(crate) mod subscription;
pub(crate) mod tasks;
