//! The worker as a service: configuration, offered agents, and the life cycle from the first
//! connection to the drain.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use faultline_chassis::{
    Drain, Members, MeshConfig, Metrics,
    admin::{Admin, Probes, Ready},
    limits,
    process::{self, Signals},
};
use faultline_proto::id::check_agent_name;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Offer, ServiceError, agents,
    attempt::coordinator_channel::CoordinatorChannel,
    runtime::{attach, attempts::AttemptTable},
};

/// Limit for the acknowledgement of attempts that were handed back.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit for the coordinator to close its half of the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// During a drain: interval between two checks for attempts that wait for a human.
const QUESTION_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The section `[worker]`: the coordinators, the built-in agents, the slots and the admin port.
/// `Config::default()` reads neither file nor environment; [`main`](crate::main) and
/// [`Settings`](crate::Settings) do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses of the coordinators, separated by commas. A name stands for every address that it
    /// resolves to. The worker attaches to one of them. Default: `http://127.0.0.1:8081`.
    pub coordinator: String,
    /// Built-in agents to run: `echo`, `script`. Default: none.
    pub agents: Vec<String>,
    /// Whether the instructions `abort`, `panic` and `hang` of the agent `script` take effect. They
    /// harm this worker and every task that it runs. Default: false.
    pub drills: bool,
    /// Number of tasks that may compute at once. Default: 64.
    pub slots: u32,
    /// Name of the worker for operators. Default: the host's name and the process id; the pod's
    /// name on Kubernetes.
    pub name: Option<String>,
    /// Address of the admin port with probes and metrics, which needs no credential. Opened by
    /// [`main`](crate::main) and [`Service::run_until_signalled`]. Default: none.
    pub admin: Option<SocketAddr>,
    /// The worker's token and the CA of the coordinators. Default: the token in
    /// `.faultline/mesh.token`, for coordinators on this machine.
    #[serde(skip)]
    pub mesh: MeshConfig,
    /// The registry of the worker's metrics.
    #[serde(skip)]
    pub metrics: Metrics,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coordinator: "http://127.0.0.1:8081".to_owned(),
            agents: Vec::new(),
            drills: false,
            slots: limits::WORKER_SLOTS,
            name: None,
            admin: None,
            mesh: MeshConfig::default(),
            metrics: Metrics::default(),
        }
    }
}

impl Config {
    /// Makes a worker with the built-in agents only.
    pub async fn bind(self) -> Result<Service, ServiceError> {
        Worker::new(self).bind().await
    }
}

/// A worker before it runs: a configuration and the offered agents. [`main`](crate::main) hands one
/// out. A program that runs a worker beside other things makes one itself:
///
/// ```no_run
/// # use faultline_worker::{Agent, Context, Drain, Error, Offer, ServiceError, Settings, Worker};
/// # struct Shout;
/// # impl Agent for Shout {
/// #     async fn run(&self, _: &Context) -> Result<(), Error> { Ok(()) }
/// # }
/// # async fn main_(leave: Drain) -> Result<(), Box<dyn std::error::Error>> {
/// let config = Settings::load(None)?.into_config();
/// let service = Worker::new(config).offer(Offer::new("shout", Shout)).bind().await?;
/// Ok(service.run(leave).await?)
/// # }
/// ```
pub struct Worker {
    config: Config,
    offers: Vec<Offer>,
}

impl Worker {
    pub fn new(config: Config) -> Self {
        Self { config, offers: Vec::new() }
    }

    /// Adds an agent.
    pub fn offer(mut self, offer: Offer) -> Self {
        self.offers.push(offer);
        self
    }

    /// Checks everything that can be checked without a coordinator.
    pub async fn bind(self) -> Result<Service, ServiceError> {
        let Self { config, mut offers } = self;
        let members = Members::new(&config.mesh, &config.coordinator)?;
        if config.slots == 0 {
            return Err(ServiceError::NoSlots);
        }
        for name in config.agents {
            let offer = agents::built_in(&name, config.drills);
            offers.push(offer.ok_or_else(|| ServiceError::NotBuiltIn {
                name,
                known: agents::NAMES.join(", "),
            })?);
        }
        if offers.is_empty() {
            return Err(ServiceError::NoAgents);
        }
        let mut seen = HashSet::new();
        for offer in &offers {
            check_agent_name(offer.name())?;
            if !seen.insert(offer.name()) {
                return Err(ServiceError::Twice { name: offer.name().to_owned() });
            }
        }
        let name = config.name.unwrap_or_else(default_name);
        let channel = CoordinatorChannel::new(members.first());
        let table = AttemptTable::new(name, config.slots, offers, channel, &config.metrics);
        let drain_timeout = limits::DRAIN_TIMEOUT - Duration::from_secs(2);
        let admin = config.admin;
        let metrics = config.metrics;
        Ok(Service { table, members, admin, metrics, drain_timeout })
    }

    /// Runs inside a process that the caller set up: reports start and readiness to the probes, and
    /// prints `ready` on stdout once a coordinator has accepted the worker.
    #[doc(hidden)]
    pub async fn serve(self, drain: Drain, probes: Probes) -> Result<(), ServiceError> {
        let coordinator = format!("the coordinator at {}", self.config.coordinator);
        let service = self.bind().await?;
        let readiness = service.readiness();
        let look = readiness.clone();
        probes.mark_started(move || look.look());
        let announce = async {
            if process::wait_until(&drain, &coordinator, async || readiness.look().is_ok()).await
                && let Err(error) = process::print_ready_line("ready")
            {
                tracing::warn!(%error, "stdout is closed: `ready` was not printed");
            }
        };
        let running = service.run(drain.clone());
        tokio::pin!(announce, running);
        tokio::select! {
            ended = &mut running => return ended,
            () = &mut announce => {}
        }
        running.await
    }
}

/// Unique on its host; the pod's name on Kubernetes, where the process id is 1.
fn default_name() -> String {
    let host = std::env::var("HOSTNAME").ok();
    let host = host.or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let host = host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| "worker".to_owned());
    match std::process::id() {
        1 => host,
        id => format!("{host}-{id}"),
    }
}

/// A worker that is ready to run.
pub struct Service {
    table: AttemptTable,
    members: Members,
    admin: Option<SocketAddr>,
    metrics: Metrics,
    /// Limit for running attempts after the drain began.
    pub(crate) drain_timeout: Duration,
}

impl Service {
    /// The readiness of the worker, to be read while it runs.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.table.attached())
    }

    /// Attaches to a coordinator and runs tasks, over any number of broken connections, until
    /// `drain` starts. Running attempts may then finish for 10 seconds at most; the rest is handed
    /// back.
    pub async fn run(self, drain: Drain) -> Result<(), ServiceError> {
        let attached = attach::keep_attached(&self.table, &self.members);
        tokio::pin!(attached);
        tokio::select! {
            ended = &mut attached => return ended,
            () = self.leave(drain) => {}
        }
        // Everything is acknowledged, or time is up: a clean close of the connection is optional.
        let _ = timeout(CLOSE_TIMEOUT, attached).await;
        Ok(())
    }

    /// Runs until SIGTERM or Ctrl-C, with the admin port of the configuration. Logs and OTLP are
    /// left to the program; [`main`](crate::main) sets them up.
    pub async fn run_until_signalled(mut self) -> Result<(), ServiceError> {
        let drain = Drain::new();
        let probes = Probes::default();
        let mut signals = Signals::new().map_err(ServiceError::Signals)?;
        let readiness = self.readiness();
        probes.mark_started(move || readiness.look());
        let _serving = match self.admin.take() {
            Some(address) => {
                let admin = Admin::bind(address, self.metrics.clone(), probes.clone()).await?;
                Some(AbortOnDropHandle::new(tokio::spawn(admin.serve())))
            }
            None => None,
        };
        let running = self.run(drain.clone());
        tokio::pin!(running);
        tokio::select! {
            ended = &mut running => return ended,
            _ = signals.next() => {}
        }
        probes.mark_leaving();
        drain.start();
        running.await
    }

    async fn leave(&self, drain: Drain) {
        drain.signalled().await;
        self.table.outbox.leave();
        let finished = async {
            self.table.flush_barrier().await;
            loop {
                self.table.release_waiting_for_people();
                // A running agent may open a question later.
                if timeout(QUESTION_CHECK_INTERVAL, self.table.idle()).await.is_ok() {
                    break;
                }
            }
        };
        if timeout(self.drain_timeout, finished).await.is_err() {
            self.table.release();
            if timeout(SETTLE_TIMEOUT, self.table.idle()).await.is_err() {
                tracing::warn!("worker ended before the coordinator acknowledged all reports");
            }
        }
        self.table.outbox.finish();
    }
}

/// Readiness of a worker: ready while a coordinator has accepted it.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub fn look(&self) -> Ready {
        self.0.load(Ordering::Relaxed).then_some(()).ok_or("not attached to a coordinator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_agents(agents: &[&str]) -> Config {
        let agents = agents.iter().map(|a| (*a).to_owned()).collect();
        Config { agents, ..Config::default() }
    }

    #[tokio::test]
    async fn invalid_configuration_is_refused_before_anything_runs() {
        assert!(with_agents(&["echo", "script"]).bind().await.is_ok());
        assert!(matches!(Config::default().bind().await, Err(ServiceError::NoAgents)));
        let twice = with_agents(&["echo", "echo"]).bind().await;
        assert!(matches!(twice, Err(ServiceError::Twice { .. })));
        let unknown = with_agents(&["ecko"]).bind().await.err().unwrap().to_string();
        assert_eq!(unknown, "there is no built-in agent 'ecko' (there are echo, script)");
        let slots = Config { slots: 0, ..with_agents(&["echo"]) }.bind().await;
        assert!(matches!(slots, Err(ServiceError::NoSlots)));
        let address =
            Config { coordinator: "http://a b".into(), ..with_agents(&["echo"]) }.bind().await;
        assert!(matches!(address, Err(ServiceError::Address(_))));
    }

    #[tokio::test]
    async fn configured_admin_port_is_opened() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = taken.local_addr().ok();
        let service = Config { admin, ..with_agents(&["echo"]) }.bind().await.unwrap();
        let refused = service.run_until_signalled().await;
        assert!(matches!(refused, Err(ServiceError::Admin(_))), "{refused:?}");
    }
}
