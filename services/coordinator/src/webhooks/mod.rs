//! The HTTP client of webhooks: targets, requests, limits per host, and running deliveries.
//!
//! May use: task, policy, telemetry and store.

pub(crate) mod courier;
pub(crate) mod deliveries;
pub(crate) mod target;

use serde::{Deserialize, Serialize};

/// How webhooks are called.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Push {
    /// May webhooks be at private, loopback and link-local addresses? Where others can reach the
    /// mesh, that lets them reach what it can. Default: false.
    pub allow_private: bool,
    /// How long a webhook may take to answer. Default: 10 s.
    pub timeout_ms: u64,
    /// Before the second attempt; it doubles up to a minute. Default: 1 s.
    pub pause_ms: u64,
    /// How long one notification is tried before the webhook is given up. Default: 1 h.
    pub give_up_ms: u64,
}

impl Default for Push {
    fn default() -> Self {
        Self { allow_private: false, timeout_ms: 10_000, pause_ms: 1000, give_up_ms: 3_600_000 }
    }
}
