//! The operators' queries and actions: overview, task lists, activity over time, live changes.
//!
//! May use: task, policy, telemetry, store, calls, webhooks, engine, cluster and api.

pub(crate) mod actions;
pub(crate) mod change_feed;
pub(crate) mod gauges;
pub(crate) mod overview;
pub(crate) mod queries;
