//! A mesh as several processes, each of which may die: a coordinator, gateways and workers, on
//! addresses that are fixed from the start so that whatever is started again is found again.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
};

use faultline_chassis::config::Environment;
use rand::Rng;
use tempfile::TempDir;

use crate::{Process, Rpc, Wire};

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The agents of each worker, with commas between them.
    pub workers: Vec<&'static str>,
    pub slots: u32,
    pub gateways: usize,
    /// Keys of `[coordinator]` in the configuration file.
    pub coordinator: String,
    /// Of every process.
    pub env: Environment,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            workers: vec!["echo,script"],
            slots: 64,
            gateways: 1,
            coordinator: "default_agent = \"echo\"\n".to_owned(),
            env: Environment::new(),
        }
    }
}

impl Plan {
    /// One more key of `[coordinator]`.
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

    pub async fn start(self) -> Cluster {
        Cluster::start(self).await
    }
}

/// Everything runs until it is dropped.
#[derive(Debug)]
pub struct Cluster {
    pub coordinator: Process,
    pub gateways: Vec<Process>,
    pub workers: Vec<Process>,
    pub addresses: Vec<SocketAddr>,
    /// Between the coordinator and everybody else.
    pub wire: Wire,
    env: Environment,
    /// Last, so that processes are gone before their files are.
    pub dir: TempDir,
}

impl Cluster {
    async fn start(plan: Plan) -> Self {
        let dir = tempfile::tempdir().expect("there is room for a temporary directory");
        let config = format!("[coordinator]\n{}", plan.coordinator);
        std::fs::write(dir.path().join("faultline.toml"), config).expect("a file can be written");
        let (hub, path) = (free_address(), dir.path());
        let store = format!("sqlite:{}", path.join("tasks.db").display());
        let listen = hub.to_string();
        let args = ["coordinator", "--listen", &listen, "--store", &store];
        let coordinator = Process::start_with(path, "coordinator", &args, &plan.env).await;
        let wire = Wire::to(hub).await;
        let hub = wire.address;
        let addresses: Vec<_> = (0..plan.gateways).map(|_| free_address()).collect();
        let mut gateways = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            gateways.push(gateway(path, &format!("gateway-{n}"), *address, hub, &plan.env).await);
        }
        let mut workers = Vec::new();
        for (n, agents) in plan.workers.iter().enumerate() {
            let name = format!("worker-{n}");
            workers.push(worker(path, &name, hub, agents, plan.slots, &plan.env).await);
        }
        Self { coordinator, gateways, workers, addresses, wire, env: plan.env, dir }
    }

    /// A client of the first gateway.
    pub fn rpc(&self) -> Rpc {
        Rpc::at(self.addresses[0])
    }

    /// One more worker.
    pub async fn add_worker(&mut self, agents: &str, slots: u32) {
        let name = format!("worker-{}", self.workers.len());
        let (path, hub) = (self.dir.path(), self.wire.address);
        self.workers.push(worker(path, &name, hub, agents, slots, &self.env).await);
    }
}

async fn gateway(
    dir: &Path,
    name: &str,
    listen: SocketAddr,
    hub: SocketAddr,
    env: &Environment,
) -> Process {
    let (listen, hub) = (listen.to_string(), format!("http://{hub}"));
    let args = ["gateway", "--listen", &listen, "--coordinator", &hub];
    Process::start_with(dir, name, &args, env).await
}

async fn worker(
    dir: &Path,
    name: &str,
    hub: SocketAddr,
    agents: &str,
    slots: u32,
    env: &Environment,
) -> Process {
    let (hub, slots) = (format!("http://{hub}"), slots.to_string());
    let args = ["worker", "--coordinator", &hub, "--agents", agents, "--slots", &slots];
    Process::start_with(dir, name, &args, env).await
}

/// One that stays free while its owner is being restarted: below the range from which the system
/// takes the ports of outgoing connections.
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
