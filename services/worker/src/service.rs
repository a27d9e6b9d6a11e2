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

use faultline_chassis::{Drain, Members, Mesh, Metrics, admin::Ready, limits};
use faultline_proto::id::check_agent_name;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::{Offer, ServiceError, agents, attach, desk::Desk, way::Way};

/// How long attempts that were handed back may wait for their acknowledgement.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the coordinator may take to close its half of the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Between two looks for attempts that only wait for people, while leaving.
const ASKING_LOOK: Duration = Duration::from_millis(100);

/// Where a worker attaches and what it offers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the coordinators are: one address, or several with commas between them. A name stands
    /// for every address it resolves to. The worker attaches to one of them. Default:
    /// `http://127.0.0.1:8081`.
    pub coordinator: String,
    /// Built-in agents to run, of `echo` and `script`. Default: none.
    pub agents: Vec<String>,
    /// How many tasks may compute at once. Default: 64.
    pub slots: u32,
    /// What people know the worker by. Default: the host's name.
    pub name: Option<String>,
    /// Where probes and numbers are served, to whoever reaches it. Default: nowhere.
    pub admin: Option<SocketAddr>,
    /// What the coordinator asks for. Default: nothing.
    #[serde(skip)]
    pub mesh: Mesh,
    /// Where its numbers are kept.
    #[serde(skip)]
    pub metrics: Metrics,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coordinator: "http://127.0.0.1:8081".to_owned(),
            agents: Vec::new(),
            slots: limits::WORKER_SLOTS,
            name: None,
            admin: None,
            mesh: Mesh::default(),
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

/// A worker in the making.
///
/// ```no_run
/// # use faultline_worker::{Agent, Config, Context, Error, Offer, ServiceError, Worker};
/// # struct Shout;
/// # impl Agent for Shout {
/// #     async fn run(&self, _: &Context) -> Result<(), Error> { Ok(()) }
/// # }
/// # async fn main_() -> Result<(), ServiceError> {
/// let worker = Worker::new(Config::default()).offer(Offer::new("shout", Shout));
/// worker.bind().await?.run_until_signalled().await
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
            let offer = agents::built_in(&name);
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
        let name = config.name.unwrap_or_else(host_name);
        let way = Way::new(members.anyone());
        let desk = Desk::new(name, config.slots, offers, way, &config.metrics);
        let patience = limits::DRAIN_TIMEOUT - Duration::from_secs(2);
        Ok(Service { desk, members, patience })
    }
}

/// The pod's name on Kubernetes.
fn host_name() -> String {
    let set = std::env::var("HOSTNAME").ok();
    let name = set.or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let name = name.map(|n| n.trim().to_owned()).filter(|n| !n.is_empty());
    name.unwrap_or_else(|| "worker".to_owned())
}

/// A worker that is ready to run.
pub struct Service {
    desk: Desk,
    members: Members,
    /// How long running attempts may go on after the signal to leave.
    pub(crate) patience: Duration,
}

impl Service {
    /// To be asked while it runs.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.desk.attached())
    }

    /// Attaches to the coordinator and works, through any number of broken connections, until
    /// drained. Then running attempts may finish for a while, and what is left is handed back.
    pub async fn run(self, drain: Drain) -> Result<(), ServiceError> {
        let staying = attach::stay(&self.desk, &self.members);
        tokio::pin!(staying);
        tokio::select! {
            ended = &mut staying => return ended,
            () = self.leave(drain) => {}
        }
        // All is said and acknowledged, or out of time: how the connection ends is a courtesy.
        let _ = timeout(CLOSE_TIMEOUT, staying).await;
        Ok(())
    }

    /// The same until the process is asked to end by SIGTERM or Ctrl-C.
    pub async fn run_until_signalled(self) -> Result<(), ServiceError> {
        let drain = Drain::new();
        let running = self.run(drain.clone());
        tokio::pin!(running);
        tokio::select! {
            ended = &mut running => return ended,
            () = signalled() => drain.start(),
        }
        running.await
    }

    async fn leave(&self, drain: Drain) {
        drain.signalled().await;
        self.desk.outbox.leave();
        let finished = async {
            self.desk.fence().await;
            loop {
                self.desk.release_asking();
                // Agents that go on may come to ask yet.
                if timeout(ASKING_LOOK, self.desk.idle()).await.is_ok() {
                    break;
                }
            }
        };
        if timeout(self.patience, finished).await.is_err() {
            self.desk.release();
            if timeout(SETTLE_TIMEOUT, self.desk.idle()).await.is_err() {
                tracing::warn!("left before the coordinator acknowledged everything");
            }
        }
        self.desk.outbox.finish();
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

async fn signalled() {
    let interrupted = async {
        // Without a handler the process simply dies at the signal, as it would have anyway.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut terminated) = signal(SignalKind::terminate()) else {
            return interrupted.await;
        };
        tokio::select! {
            () = interrupted => {}
            _ = terminated.recv() => {}
        }
    }
    #[cfg(not(unix))]
    interrupted.await;
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
}
