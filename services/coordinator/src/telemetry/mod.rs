//! Metrics and spans of tasks.
//!
//! May use: task and policy.

pub(crate) mod metrics;
pub(crate) mod spans;
