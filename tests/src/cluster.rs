//! A mesh of several processes that tests kill and restart: coordinators, gateways and workers, on
//! fixed addresses, so that a restarted process is reachable under its old address. A
//! [`CuttableProxy`] stands before each coordinator, and each gateway and worker has a proxy of its
//! own in front of that one: the first cuts a coordinator off from all others, the second from one
//! process.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
};

use faultline_chassis::{
    Secret,
    client::{Channel, Dial},
    config::Environment,
};
use faultline_proto::v1::{AgentsRequest, mesh_client::MeshClient};
use futures::future::join_all;
use rand::Rng;
use tempfile::TempDir;

use crate::{
    CuttableProxy, Process, Rpc, Store, TOKEN,
    postgres::{Database, Server},
    until,
    wait::SOON,
};

/// The processes of a cluster. Built by a test, consumed by [`Cluster`] at the start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The agents of each worker, separated by commas.
    pub workers: Vec<&'static str>,
    pub slots: u32,
    pub gateways: usize,
    /// More than one needs a PostgreSQL store.
    pub coordinators: usize,
    pub store: Store,
    /// Each gateway and worker knows one coordinator only, round robin; otherwise all of them.
    pub one_coordinator_each: bool,
    /// Lines of `[coordinator]` in the configuration file.
    pub coordinator: String,
    /// Environment of every process.
    pub env: Environment,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            workers: vec!["echo,script"],
            slots: 64,
            gateways: 1,
            coordinators: 1,
            store: Store::default(),
            one_coordinator_each: false,
            coordinator: "default_agent = \"echo\"\n".to_owned(),
            env: Environment::new(),
        }
    }
}

impl Plan {
    /// This number of coordinators on one PostgreSQL database.
    pub fn replicas(coordinators: usize) -> Self {
        Self { coordinators, store: Store::Postgres, ..Self::default() }
    }

    /// Adds a line to `[coordinator]`.
    pub fn with(mut self, line: &str) -> Self {
        self.coordinator.push_str(line);
        self.coordinator.push('\n');
        self
    }

    /// A variable in the environment of every process.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    pub fn workers(self, agents: &[&'static str]) -> Self {
        Self { workers: agents.to_vec(), ..self }
    }

    pub fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    pub fn gateways(self, gateways: usize) -> Self {
        Self { gateways, ..self }
    }

    pub fn store(self, store: Store) -> Self {
        Self { store, ..self }
    }

    pub fn one_coordinator_each(self) -> Self {
        Self { one_coordinator_each: true, ..self }
    }

    pub async fn start(self) -> Cluster {
        Cluster::start(self).await
    }
}

/// Running processes, owned by one test; the drop kills them.
#[derive(Debug)]
pub struct Cluster {
    pub coordinators: Vec<Process>,
    pub gateways: Vec<Process>,
    pub workers: Vec<Process>,
    /// Listening addresses of the gateways.
    pub addresses: Vec<SocketAddr>,
    /// One before each coordinator: every call to it passes here.
    pub coordinator_proxies: Vec<CuttableProxy>,
    /// For each gateway, one to each coordinator that it knows.
    pub gateway_proxies: Vec<Vec<CuttableProxy>>,
    /// For each worker, one to each coordinator that it knows.
    pub worker_proxies: Vec<Vec<CuttableProxy>>,
    /// One between each coordinator and its PostgreSQL database.
    pub store_proxies: Vec<CuttableProxy>,
    env: Environment,
    /// Declared after the processes, which are dropped first.
    pub database: Option<Database>,
    /// Present with [`Store::OwnPostgres`].
    pub server: Option<Server>,
    /// Declared last, so that files are deleted after the processes.
    pub dir: TempDir,
}

impl Cluster {
    async fn start(plan: Plan) -> Self {
        assert!(
            plan.coordinators == 1 || plan.store != Store::Sqlite,
            "a SQLite file serves one coordinator"
        );
        let dir = tempfile::tempdir().expect("there is room for a temporary directory");
        let config = format!("[mesh]\ntoken = \"{TOKEN}\"\n[coordinator]\n{}", plan.coordinator);
        std::fs::write(dir.path().join("faultline.toml"), config).expect("a file can be written");
        let path = dir.path();
        let server = (plan.store == Store::OwnPostgres).then(Server::start);
        let database = match (plan.store, &server) {
            (Store::Sqlite, _) => None,
            (_, None) => Some(Database::shared()),
            (_, Some(server)) => Some(Database::on(server.url())),
        };
        let mut coordinator_proxies = Vec::new();
        let mut store_proxies = Vec::new();
        let mut starting = Vec::new();
        for n in 0..plan.coordinators {
            let hub = free_address();
            coordinator_proxies.push(CuttableProxy::to(hub).await);
            let store = match &database {
                None => format!("sqlite:{}", path.join("tasks.db").display()),
                Some(database) => {
                    let proxy = CuttableProxy::to(database.address()).await;
                    let store = database.url_via(proxy.address);
                    store_proxies.push(proxy);
                    store
                }
            };
            starting.push(coordinator(path, n, hub, store, &plan.env));
        }
        // In parallel, as a cluster starts them.
        let coordinators = join_all(starting).await;
        let addresses: Vec<_> = (0..plan.gateways).map(|_| free_address()).collect();
        let known = |n: usize| {
            if plan.one_coordinator_each {
                std::slice::from_ref(&coordinator_proxies[n % coordinator_proxies.len()])
            } else {
                coordinator_proxies.as_slice()
            }
        };
        let mut gateways = Vec::new();
        let mut gateway_proxies = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            let name = format!("gateway-{n}");
            let own = proxies_to(known(n)).await;
            gateways.push(gateway(path, &name, *address, &urls(&own), &plan.env).await);
            gateway_proxies.push(own);
        }
        let mut workers = Vec::new();
        let mut worker_proxies = Vec::new();
        for (n, agents) in plan.workers.iter().enumerate() {
            let name = format!("worker-{n}");
            let own = proxies_to(known(n)).await;
            workers.push(worker(path, &name, &urls(&own), agents, plan.slots, &plan.env).await);
            worker_proxies.push(own);
        }
        if plan.coordinators > 1 {
            let agents = plan.workers.iter().flat_map(|agents| agents.split(','));
            let agents: BTreeSet<&str> = agents.collect();
            join_all(coordinator_proxies.iter().map(|proxy| until_known(proxy, &agents))).await;
        }
        let env = plan.env;
        Self {
            coordinators,
            gateways,
            workers,
            addresses,
            coordinator_proxies,
            gateway_proxies,
            worker_proxies,
            store_proxies,
            env,
            database,
            server,
            dir,
        }
    }

    /// JSON-RPC client of the first gateway.
    pub fn rpc(&self) -> Rpc {
        self.rpc_at(0)
    }

    /// JSON-RPC client of this gateway.
    pub fn rpc_at(&self, gateway: usize) -> Rpc {
        Rpc::at(self.addresses[gateway])
    }

    /// Starts one more worker, which knows all coordinators.
    pub async fn add_worker(&mut self, agents: &str, slots: u32) {
        let own = proxies_to(&self.coordinator_proxies).await;
        self.add_worker_behind(own, agents, slots).await;
    }

    /// Starts one more worker, which knows only this coordinator.
    pub async fn add_worker_of(&mut self, coordinator: usize, agents: &str, slots: u32) {
        let own = proxies_to(&self.coordinator_proxies[coordinator..=coordinator]).await;
        self.add_worker_behind(own, agents, slots).await;
    }

    async fn add_worker_behind(&mut self, own: Vec<CuttableProxy>, agents: &str, slots: u32) {
        let name = format!("worker-{}", self.workers.len());
        let hubs = urls(&own);
        self.workers.push(worker(self.dir.path(), &name, &hubs, agents, slots, &self.env).await);
        self.worker_proxies.push(own);
    }
}

/// A private proxy in front of each of these, for one gateway or worker.
async fn proxies_to(proxies: &[CuttableProxy]) -> Vec<CuttableProxy> {
    join_all(proxies.iter().map(|proxy| CuttableProxy::to(proxy.address))).await
}

/// Waits until a coordinator knows these agents, including those of workers at its peers.
async fn until_known(proxy: &CuttableProxy, agents: &BTreeSet<&str>) {
    let token = Secret::new(TOKEN).ok();
    let channel = Channel::lazy(&Dial { address: url(proxy), token, ..Dial::default() });
    let mesh = MeshClient::new(channel.expect("a valid URL"));
    until("every coordinator knows every agent", SOON, || {
        let mut mesh = mesh.clone();
        async move {
            let known = mesh.agents(AgentsRequest::default()).await.ok()?.into_inner().agents;
            let known: BTreeSet<_> = known.iter().map(|agent| agent.name.as_str()).collect();
            agents.is_subset(&known).then_some(())
        }
    })
    .await;
}

fn url(proxy: &CuttableProxy) -> String {
    format!("http://{}", proxy.address)
}

fn urls(proxies: &[CuttableProxy]) -> String {
    proxies.iter().map(url).collect::<Vec<_>>().join(",")
}

async fn coordinator(
    dir: &Path,
    number: usize,
    listen: SocketAddr,
    store: String,
    env: &Environment,
) -> Process {
    let name = format!("coordinator-{number}");
    let listen = listen.to_string();
    let args = ["coordinator", "--listen", &listen, "--store", &store];
    Process::start_with(dir, &name, &args, env).await
}

async fn gateway(
    dir: &Path,
    name: &str,
    listen: SocketAddr,
    hubs: &str,
    env: &Environment,
) -> Process {
    let listen = listen.to_string();
    let args = ["gateway", "--listen", &listen, "--coordinator", hubs];
    Process::start_with(dir, name, &args, env).await
}

async fn worker(
    dir: &Path,
    name: &str,
    hubs: &str,
    agents: &str,
    slots: u32,
    env: &Environment,
) -> Process {
    let slots = slots.to_string();
    let args = ["worker", "--coordinator", hubs, "--agents", agents, "--slots", &slots];
    Process::start_with(dir, name, &args, env).await
}

/// An address that stays free while its process restarts: its port is below the ephemeral range,
/// from which the system takes the ports of outgoing connections.
pub fn free_address() -> SocketAddr {
    for _ in 0..1000 {
        let address =
            SocketAddr::from((Ipv4Addr::LOCALHOST, rand::rng().random_range(12_000..32_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port is free");
}
