//! The worker as a service: its configuration, the agents it is given, and its life from the first
//! attach to the last acknowledgement.

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

/// How long attempts that were handed back may wait for their acknowledgement.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the coordinator may take to close its half of the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Between two looks for attempts that only wait for people, while leaving.
const ASKING_LOOK: Duration = Duration::from_millis(100);

/// Where a worker attaches and what it offers: the section `[worker]`. The default reads neither
/// file nor environment; [`main`](crate::main) and [`Settings`](crate::Settings) do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the coordinators are: one address, or several with commas between them. A name stands
    /// for every address it resolves to. The worker attaches to one of them. Default:
    /// `http://127.0.0.1:8081`.
    pub coordinator: String,
    /// Built-in agents to run, of `echo` and `script`. Default: none.
    pub agents: Vec<String>,
    /// Whether `abort`, `panic` and `hang` of the agent `script` do what they say: they harm this
    /// worker, and everybody whose tasks it runs. Default: false.
    pub drills: bool,
    /// How many tasks may compute at once. Default: 64.
    pub slots: u32,
    /// What people know the worker by. Default: the host's name and the process id; the pod's name
    /// on Kubernetes.
    pub name: Option<String>,
    /// Where probes and metrics are served, to whoever reaches it, by [`main`](crate::main) and
    /// [`Service::run_until_signalled`]. Default: nowhere.
    pub admin: Option<SocketAddr>,
    /// The token that is presented, and the CA of the coordinators. Default: the token in
    /// `.faultline/mesh.token`, for coordinators on this machine.
    #[serde(skip)]
    pub mesh: MeshConfig,
    /// Where its numbers are kept.
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
    /// A worker with the built-in agents only.
    pub async fn bind(self) -> Result<Service, ServiceError> {
        Worker::new(self).bind().await
    }
}

/// A worker in the making, as [`main`](crate::main) hands it out. A program that runs a worker
/// beside other things makes one itself:
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

    /// Adds an agent of your own.
    pub fn offer(mut self, offer: Offer) -> Self {
        self.offers.push(offer);
        self
    }

    /// Checks everything that can be checked without the coordinator.
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

    /// Runs in a process that was started around it: tells the probes when it has started and
    /// whether it is ready, and prints `ready` on stdout once a coordinator has accepted it.
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
                tracing::warn!(%error, "stdout is closed: nobody is told that the worker is ready");
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

/// Unique on its host; on Kubernetes, where a process is alone in its pod, the pod's name.
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
    /// How long running attempts may go on after the signal to leave.
    pub(crate) drain_timeout: Duration,
}

impl Service {
    /// To be asked while it runs.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.table.attached())
    }

    /// Attaches to the coordinator and works, through any number of broken connections, until
    /// drained. Then running attempts may finish for a while, and what is left is handed back.
    pub async fn run(self, drain: Drain) -> Result<(), ServiceError> {
        let attached = attach::keep_attached(&self.table, &self.members);
        tokio::pin!(attached);
        tokio::select! {
            ended = &mut attached => return ended,
            () = self.leave(drain) => {}
        }
        // All is said and acknowledged, or out of time: how the connection ends is a courtesy.
        let _ = timeout(CLOSE_TIMEOUT, attached).await;
        Ok(())
    }

    /// The same until the process is asked to end by SIGTERM or Ctrl-C, with the admin port of the
    /// configuration. Logs and OTLP are the program's own business; [`main`](crate::main) has them.
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
                // Agents that go on may come to ask yet.
                if timeout(ASKING_LOOK, self.table.idle()).await.is_ok() {
                    break;
                }
            }
        };
        if timeout(self.drain_timeout, finished).await.is_err() {
            self.table.release();
            if timeout(SETTLE_TIMEOUT, self.table.idle()).await.is_err() {
                tracing::warn!("left before the coordinator acknowledged everything");
            }
        }
        self.table.outbox.finish();
    }
}

/// Whether a worker is of use: it is while a coordinator has it.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub fn look(&self) -> Ready {
        self.0.load(Ordering::Relaxed).then_some(()).ok_or("no coordinator has welcomed it")
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
    async fn what_cannot_work_is_refused_before_anything_runs() {
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
    async fn the_admin_port_of_the_configuration_is_opened() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = taken.local_addr().ok();
        let service = Config { admin, ..with_agents(&["echo"]) }.bind().await.unwrap();
        let refused = service.run_until_signalled().await;
        assert!(matches!(refused, Err(ServiceError::Admin(_))), "{refused:?}");
    }
}
