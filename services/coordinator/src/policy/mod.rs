//! Decisions about agents: retry, circuit breaker, effective policy, capabilities of a card. Pure.
//!
//! May use: task only.

pub(crate) mod agent_policy;
pub(crate) mod capabilities;
pub(crate) mod circuit_breaker;
pub(crate) mod retry;
