//! Push notifications: what a task's owner asks for (`operations`), what is sent and what the
//! answer means (`request`), and the delivery that goes on until the webhook has taken everything
//! (`deliver`). The task's events are the outbox: a delivery follows them as any watcher does, and
//! its place in them is stored when the webhook has taken one. So nothing here can delay a task.

mod deliver;
mod operations;
mod pending;
mod request;
mod target;

#[cfg(test)]
mod tests;

pub(crate) use self::{deliver::Deliveries, operations::row, request::Courier};

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
