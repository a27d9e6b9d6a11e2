//! The configuration of a coordinator: plain data, with its defaults.

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use faultline_chassis::{MeshConfig, Metrics, credential, limits, tls};
use serde::{Deserialize, Serialize};

use crate::{store, webhooks::Push};

/// How a coordinator runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where gateways and workers reach it. Port 0: any free one.
    pub listen: SocketAddr,
    /// The host names that it answers to besides loopback ones. Default: every name; on a loopback
    /// address: no other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Where tasks are kept: `sqlite:PATH`, or `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, which
    /// several coordinators may share.
    #[serde(serialize_with = "without_password")]
    pub store: String,
    /// For how long a coordinator that says nothing keeps its tasks from the others. Of PostgreSQL.
    pub lease_ms: u64,
    /// Connections for reading from PostgreSQL; three more are for writing and for the others.
    pub store_connections: usize,
    /// How long tasks are kept once they have ended. Unset: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_ended_hours: Option<u64>,
    /// How long an agent without a worker is remembered, if it has no live tasks. 0: for ever.
    pub forget_agents_after_hours: u64,
    /// The agent for messages without a tenant. Unset: the only agent there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_agent: Option<String>,
    /// How often a task may lose its worker before it fails.
    pub max_attempts: u32,
    /// How long a worker without a stream keeps its tasks.
    pub reattach_grace_ms: u64,
    /// How often workers say that they live; three missed ones are a dead worker.
    pub heartbeat_ms: u64,
    /// How long a task waits for a worker that offers its agent before it fails. 0: what nobody
    /// offers is refused at once. After a start workers are given `reattach_grace_ms` first.
    pub wait_for_worker_ms: u64,
    /// The longest active time that callers may ask for their tasks; more is cut to it. Unset: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms_max: Option<u64>,
    /// How often a failed attempt is tried again. The agent may say otherwise.
    pub retries: u32,
    /// The same for a task that another agent gave it.
    pub delegated_retries: u32,
    /// The pause before the first retry; each later one is twice as long.
    pub retry_base_ms: u64,
    /// The longest pause. A failure that asks for a longer one is not tried again.
    pub retry_cap_ms: u64,
    /// How many failures of one agent are tried again before successes must pay for more. From
    /// half of it down nothing is. 0: all are.
    pub retry_budget: u32,
    /// The amount that a success gives back to the budget; each failure takes one.
    pub retry_budget_ratio: f64,
    /// Tasks in a row that end because an agent cannot serve before it is left alone. 0: never.
    pub breaker_failures: u32,
    /// How long it is left alone before one task is let through to see.
    pub breaker_open_ms: u64,
    /// Tasks of one agent that may wait for a slot.
    pub queue_max: usize,
    /// Connections that one address may have. Default: 5000, of 10000 in all.
    pub connections_per_address_max: usize,
    /// Watches of health that one address may have. Default: 128, of 1024 in all.
    pub health_watches_per_address_max: usize,
    /// Scaled objects that KEDA may watch from one address. Default: 256, of 1024 in all.
    pub scaler_streams_per_address_max: usize,
    /// The certificate to serve with. Default: no TLS.
    pub tls: Option<tls::Files>,
    /// The address of probes and metrics, without authentication. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<SocketAddr>,
    /// Refused: the port asks everybody for a credential. Default: false.
    pub insecure: bool,
    /// The credentials that gateways, workers and operators present. Default: a token that is
    /// generated, on loopback with SQLite; elsewhere there must be some.
    #[serde(skip)]
    pub mesh: MeshConfig,
    /// Where its numbers are kept.
    #[serde(skip)]
    pub metrics: Metrics,
    /// How webhooks are called.
    pub push: Push,
    /// Settings for single agents, by name.
    pub agents: BTreeMap<String, AgentPolicy>,
}

/// Settings for one agent. Unset: the value that the agent offers.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_worker_lost: Option<OnWorkerLost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How long a task of it may be active. 0: as long as it takes, whatever the agent says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegated_retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_base_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_cap_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker_failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker_open_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_max: Option<usize>,
    /// How many of its tasks may compute at once, over all workers: should they all hang, the other
    /// slots are still there for others. What goes on after it waited is not held up. Unset: as
    /// many as there are slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// How long its tasks are kept once they have ended. 0: for ever, whatever holds for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_ended_hours: Option<u64>,
    /// Agents that stand in for it, the best first, when it cannot serve and they have a skill in
    /// common.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failover: Vec<String>,
}

/// The policy for a task whose worker died.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnWorkerLost {
    Retry,
    Fail,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8081)),
            hosts: Vec::new(),
            store: "sqlite:faultline.db".to_owned(),
            store_connections: 8,
            keep_ended_hours: None,
            forget_agents_after_hours: 7 * 24,
            default_agent: None,
            max_attempts: 3,
            reattach_grace_ms: limits::REATTACH_GRACE.as_millis() as u64,
            lease_ms: 6000,
            heartbeat_ms: limits::HEARTBEAT.as_millis() as u64,
            wait_for_worker_ms: 60_000,
            timeout_ms_max: None,
            retries: 3,
            delegated_retries: 1,
            retry_base_ms: 1000,
            retry_cap_ms: 30_000,
            retry_budget: 100,
            retry_budget_ratio: 0.5,
            breaker_failures: 3,
            breaker_open_ms: 30_000,
            queue_max: limits::AGENT_QUEUE_MAX,
            connections_per_address_max: limits::MESH_CONNECTIONS_PER_ADDRESS_MAX,
            health_watches_per_address_max: limits::HEALTH_WATCHES_PER_ADDRESS_MAX,
            scaler_streams_per_address_max: limits::SCALER_STREAMS_PER_ADDRESS_MAX,
            tls: None,
            admin: None,
            insecure: false,
            mesh: MeshConfig::default(),
            metrics: Metrics::default(),
            push: Push::default(),
            agents: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The port, as far as its credentials are concerned.
    pub fn port(&self) -> credential::Port {
        credential::Port { listen: self.listen, shared_store: self.is_postgres() }
    }

    pub(crate) fn sqlite(&self) -> Option<&Path> {
        self.store.strip_prefix("sqlite:").filter(|path| !path.is_empty()).map(Path::new)
    }

    pub(crate) fn is_postgres(&self) -> bool {
        ["postgres://", "postgresql://"].iter().any(|scheme| self.store.starts_with(scheme))
    }
}

/// A store as it may be printed: a password in it is stars.
pub fn shown_store(url: &str) -> String {
    store::postgres::without_password(url)
}

fn without_password<S: serde::Serializer>(url: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&shown_store(url))
}
