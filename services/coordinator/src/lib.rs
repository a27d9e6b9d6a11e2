//! The coordinator: the only service that owns state. Reading order: `task` is what a task can do,
//! `core` keeps it and `writer` makes it durable, `loops` is what all of it lives by, `dispatch`
//! brings it to workers, `reports` and `losses` take it back; `cluster` lives with other
//! coordinators on the same store, `news` hears of them, `follow` and `foreign` reach what they
//! have, `absorb` takes what they did with ours, `spread` shares the workers out; `retry`,
//! `breaker` and `failover` say what is tried again, and where; `send`, `stream`, `repeat` and
//! `api` are what callers may ask, within what `caller` and `gate` allow; `mesh`, `view`, `pulse`,
//! `feed` and `operate` are what operators may; agents that call agents are in `delegation` and
//! `family`; `push` tells webhooks, `retention` forgets; `hub`, `link` and `grpc` are the doors,
//! `scaler` is KEDA's, and `health` is for probes.

mod agents;
mod answer;
mod artifact;
mod breaker;
mod budget;
mod depth;
mod fold;
mod frame;
mod judge;
mod questions;
mod retry;
mod run;
mod show;
mod task;

mod absorb;
mod away;
mod batch;
mod cluster;
mod core;
mod dispatch;
mod due;
mod elsewhere;
mod failover;
mod family;
mod feed;
mod follow;
mod foreign;
mod live;
mod loops;
mod losses;
mod meters;
mod news;
mod observed;
mod policy;
mod queue;
mod registry;
mod reports;
mod retention;
mod slots;
mod spans;
mod spread;
mod store;
mod sweep;
mod timers;
mod token;
mod tolerated;
mod writer;

mod access;
mod api;
mod caller;
mod delegation;
mod gate;
mod keys;
mod mesh;
mod operate;
mod pulse;
mod push;
mod repeat;
mod send;
mod stops;
mod stream;
mod subscription;
mod view;

mod bounds;
mod error;
mod grpc;
mod health;
mod hub;
mod introduce;
mod link;
mod scaler;

#[cfg(test)]
mod principal_tests;
#[cfg(test)]
mod testing;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use faultline_chassis::{
    Drain, Mesh, Metrics,
    credential::{self, Credentials},
    limits,
    server::{self, Hosts, Listener},
    tls,
};
use faultline_proto::{
    Failure,
    a2a::a2a_service_server::A2aServiceServer,
    keda::external_scaler_server::ExternalScalerServer,
    v1::{hub_server::HubServer, link_server::LinkServer, mesh_server::MeshServer},
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::{
    core::{Closed, Core, State},
    grpc::Doors,
    health::Condition,
    hub::HubService,
    link::LinkService,
    loops::Loops,
    scaler::Scaler,
};

pub use error::StartError as Error;
pub use health::Readiness;
pub use push::Push;
pub use store::{
    fill::{Past, fill},
    postgres::Database,
};

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
    /// What a message without a tenant goes to. Unset: the only agent there is.
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
    /// What a success gives back to the budget, of which each failure takes one.
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
    /// Where probes and numbers are served, to whoever reaches it. Default: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<SocketAddr>,
    /// Refused: the port asks everybody for a credential. Default: false.
    pub insecure: bool,
    /// The credentials that gateways, workers and operators present. Default: a token that is
    /// generated, on loopback with SQLite; elsewhere there must be some.
    #[serde(skip)]
    pub mesh: Mesh,
    /// Where its numbers are kept.
    #[serde(skip)]
    pub metrics: Metrics,
    /// How webhooks are called.
    pub push: Push,
    /// What differs for one agent, by name.
    pub agents: BTreeMap<String, AgentPolicy>,
}

/// What differs for one agent. Unset: what the agent says itself.
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

/// What becomes of a task whose worker died.
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
            mesh: Mesh::default(),
            metrics: Metrics::default(),
            push: Push::default(),
            agents: BTreeMap::new(),
        }
    }
}

/// Bound and recovered, not yet serving.
pub struct Service {
    listener: Listener,
    hosts: Hosts,
    credentials: Credentials,
    core: Arc<Core>,
}

impl Config {
    /// Opens the store, reads back what has not ended, and binds the socket.
    pub async fn bind(self) -> Result<Service, Error> {
        self.check()?;
        if self.insecure {
            return Err(Error::Insecure);
        }
        if self.timeout_ms_max == Some(0) {
            let what = "nobody could ask for any time; leave it out to let callers ask for all";
            return Err(Error::Setting { key: "timeout_ms_max", value: 0, what });
        }
        if self.sqlite().is_none() && !self.is_postgres() {
            return Err(Error::StoreUrl(shown_store(&self.store)));
        }
        let bounds = self.bounds()?;
        // Generates a token where none is configured, so after everything that may be refused.
        let credentials = Credentials::load(&self.mesh, self.port())?;
        let store = self.open_store().await?;
        let network = self.mesh.network.as_ref();
        let listener = Listener::bind_on(network, self.listen, self.tls.as_ref()).await?;
        let listener = listener.bounds(bounds);
        let hosts = Hosts::new("coordinator", listener.addr().ip().is_loopback(), &self.hosts)?;
        let core = Arc::new(Core::new(store, self));
        core.recover().await.map_err(|e| Error::Recover(e.to_string()))?;
        observed::watch(&core);
        Ok(Service { listener, hosts, credentials, core })
    }

    /// The port, as far as its credentials are concerned.
    pub fn port(&self) -> credential::Port {
        credential::Port { listen: self.listen, shared_store: self.is_postgres() }
    }

    fn sqlite(&self) -> Option<&Path> {
        self.store.strip_prefix("sqlite:").filter(|path| !path.is_empty()).map(Path::new)
    }

    fn is_postgres(&self) -> bool {
        ["postgres://", "postgresql://"].iter().any(|scheme| self.store.starts_with(scheme))
    }

    async fn open_store(&self) -> Result<Box<dyn store::Store>, Error> {
        if let Some(path) = self.sqlite() {
            return Ok(Box::new(store::sqlite::Sqlite::open(path)?));
        }
        // `bind` has refused every other store.
        let settings = store::postgres::Settings {
            lease: Duration::from_millis(self.lease_ms),
            connections: self.store_connections,
        };
        Ok(Box::new(store::postgres::Postgres::open(&self.store, settings).await?))
    }
}

/// A store as it may be printed: a password in it is stars.
pub fn shown_store(url: &str) -> String {
    store::postgres::without_password(url)
}

fn without_password<S: serde::Serializer>(url: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&shown_store(url))
}

impl Service {
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// To be asked while it runs.
    pub fn readiness(&self) -> Readiness {
        Readiness::of(&self.core)
    }

    /// Serves until drained. Tasks that run go on in their workers, which come back to the next
    /// coordinator on the same store. An error: something that it cannot do without has ended, and
    /// only a new start mends it.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let Self { listener, hosts, credentials, core } = self;
        let readiness = Readiness::of(&core);
        let health = HealthServer::new(Condition::new(readiness, core.farewell.clone()))
            .max_decoding_message_size(limits::HEALTH_BYTES_MAX);
        let doors = Doors::new(Arc::clone(&core));
        let bytes = limits::GRPC_BYTES_MAX;
        let routes = Routes::new(health)
            .add_service(
                LinkServer::new(LinkService::new(Arc::clone(&core)))
                    .max_decoding_message_size(bytes)
                    .max_encoding_message_size(bytes),
            )
            .add_service(
                HubServer::new(HubService { core: Arc::clone(&core) })
                    .max_decoding_message_size(bytes)
                    .max_encoding_message_size(bytes),
            )
            .add_service(
                A2aServiceServer::new(doors.clone())
                    .max_decoding_message_size(bytes)
                    .max_encoding_message_size(bytes),
            )
            .add_service(MeshServer::new(doors).max_encoding_message_size(bytes))
            .add_service(
                ExternalScalerServer::new(Scaler::new(Arc::clone(&core)))
                    .max_decoding_message_size(limits::SCALER_BYTES_MAX),
            );
        let router = server::refuse_undecodable(routes.prepare().into_axum_router());
        let authorized =
            server::CredentialLayer::new(credentials, &[scaler::PATH], access::authorize);
        let router = router.layer(authorized);
        let router = router.layer(server::OpenLayer(bounds::OPEN));
        // Outside of the credentials: defence in depth against DNS rebinding.
        let router = router.layer(server::HostLayer(hosts));
        // The guard stands outermost: it must see the panics and clocks of everything inside.
        let router = router.layer(server::GuardLayer);
        let router = router.layer(measure(&core)).layer(server::GrpcOnlyLayer);
        let mut loops = Loops::start(&core);
        // The door stays open until everybody has been told where to go.
        let closing = Drain::new();
        let leaving = async {
            let broken = tokio::select! {
                () = drain.signalled() => None,
                broken = loops.broken() => Some(broken),
            };
            // One that is broken has nothing to hand over: whoever is here is only cut off.
            if broken.is_none() {
                loops.rest();
                core.leave().await;
            }
            closing.start();
            broken
        };
        // Long-lived streams never finish by themselves, so patience here is only for calls.
        let patience = Duration::from_millis(500);
        let serving = server::serve(listener, router, closing.clone(), patience);
        if let (Some(broken), ()) = tokio::join!(leaving, serving) {
            return Err(broken);
        }
        core.flushed().await;
        let ended = loops.end().await;
        if let Some(cluster) = core.store.cluster()
            && timeout(limits::LEAVE_TIMEOUT, cluster.leave()).await.is_err()
        {
            tracing::warn!("the store does not answer: what was ours waits for the lease to end");
        }
        core.released().await;
        ended
    }
}

impl Core {
    /// Takes nothing more, and sends everybody elsewhere: gateways with what they wait for, workers
    /// with what they run. What is stored is for the next coordinator, or for the others.
    async fn leave(&self) {
        // Gateways hear of it first: what they have sent by then is still taken.
        self.farewell.cancel();
        tokio::time::sleep(limits::LEAVING_NOTICE).await;
        self.change(|state| {
            // First: who is refused from here on is told that it is for this.
            self.left.store(true, Ordering::Relaxed);
            state.close(Closed::Leaving);
            state.deliveries.stop_all();
        });
        // Whoever is told where its task is must find it there.
        self.flushed().await;
        self.send_waiters_away();
        self.change(State::say_goodbye);
    }
}

/// Calls with a stream of their own. Links and workers have theirs for as long as they live, and
/// what gateways ask is measured on their links.
fn measure(core: &Arc<Core>) -> server::MeasureLayer {
    let except = &["/faultline.v1.Link/", "/faultline.v1.Hub/", "/grpc.health.v1.Health/"];
    let meters = Arc::clone(&core.meters);
    // Without an origin it becomes the caller's, which is an agent here, and is counted there.
    let refused = move |failure: &Failure| {
        if failure.origin.is_some() {
            meters.refused(failure);
        }
    };
    server::MeasureLayer::new(&core.config.metrics, except, refused)
}
