//! Push notifications by webhook. The events of a task are the outbox: each configuration
//! stores its position in them, so a delivery delays no task and survives a restart.
//!
//! May use: task, policy, telemetry, store, calls, webhooks, engine, cluster and api.

mod deliver;
mod operations;
mod pending;

#[cfg(test)]
mod tests;
