//! `faultline worker`: the role that runs agents, alone in its process.

use std::process;

use anyhow::Context;
use faultline_chassis::config::Environment;
use faultline_worker::Worker;

use crate::{
    cmd::config::Source,
    config::Config,
    exit::{CannotStart, Exit},
    remote, role,
    watch::{self, Watch},
};

const EXAMPLES: &str = "\
Examples:
  faultline worker
  faultline worker --coordinator http://127.0.0.1:8081 --agents echo --slots 8
  FAULTLINE_MESH__TOKEN=… faultline worker --coordinator https://hub:8081

Prints `ready` on stdout once the coordinator has welcomed it. One that is refused from the start
ends with 77, denied, or 65, bad input; one that had to be cut off while it left, with 70.";

/// Run a worker: it attaches to a coordinator and runs agents. Add as many as there is work.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The coordinators, with commas between them; a name stands for all it resolves to [default:
    /// http://127.0.0.1:8081].
    #[arg(long, value_name = "URLS")]
    coordinator: Option<String>,
    /// The built-in agents to run, with commas between them [default: echo,script].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    agents: Option<Vec<String>>,
    /// How many tasks may compute at once [default: 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// What people know this worker by [default: the host's name and the process id].
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    admin: watch::Flag,
    #[command(flatten)]
    threads: role::Threads,
    #[command(flatten)]
    source: Source,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let config = self.source.load(Config::default(), env)?;
        let mut worker = config.worker;
        worker.coordinator = self.coordinator.unwrap_or(worker.coordinator);
        worker.agents = self.agents.unwrap_or(worker.agents);
        worker.slots = self.slots.unwrap_or(worker.slots);
        let name = self.name.or(worker.name).unwrap_or_else(|| name(env));
        worker.name = Some(name);
        let (log, endpoint) = (config.log.clone(), config.log.otlp_endpoint);
        let (service, endpoint) = ("faultline-worker", endpoint.as_deref());
        let watch = Watch::new(service, self.admin, worker.admin, endpoint, env);
        worker.metrics = watch.metrics.clone();
        role::serve(self.threads.count(), log, service, watch, async |drain, probes| {
            let what = format!("the coordinator at {}", worker.coordinator);
            let offers = remote::offers(&config.remote).await.context(CannotStart("worker"))?;
            let worker = offers.into_iter().fold(Worker::new(worker), Worker::offer);
            let service = worker.bind().await.context(CannotStart("worker"))?;
            let readiness = service.readiness();
            let look = readiness.clone();
            probes.started(move || look.look());
            let announce = async {
                if role::until(&drain, &what, async || readiness.look().is_ok()).await {
                    role::ready("ready")?;
                }
                anyhow::Ok(())
            };
            let running = service.run(drain.clone());
            tokio::pin!(announce, running);
            tokio::select! {
                ended = &mut running => return Ok(ended?),
                announced = &mut announce => announced?,
            }
            Ok(running.await?)
        })
    }
}

/// Unique on its host; on Kubernetes, where a process is alone in its pod, the pod's name.
fn name(env: &Environment) -> String {
    let host = env.get("HOSTNAME").cloned();
    let host = host.or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let host = host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| "worker".to_owned());
    match process::id() {
        1 => host,
        id => format!("{host}-{id}"),
    }
}
