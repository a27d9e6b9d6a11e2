//! `faultline worker`: the role that runs agents, alone in its process.

use anyhow::Context;
use faultline_chassis::{config::Environment, process::Process};
use faultline_worker::Worker;

use crate::{
    cmd::config::ConfigSource,
    config::Config,
    exit::{CannotStart, Exit},
    remote, service,
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
    /// The built-in agents to run, with commas between them [default: echo].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    agents: Option<Vec<String>>,
    /// How many tasks may compute at once [default: 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// What people know this worker by [default: the host's name and the process id].
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    data: service::DataFlag,
    #[command(flatten)]
    admin: service::AdminFlag,
    #[command(flatten)]
    threads: service::ThreadsFlag,
    #[command(flatten)]
    source: ConfigSource,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let config = self.source.load(Config::default(), env)?;
        let mut worker = config.worker;
        worker.coordinator = self.coordinator.unwrap_or(worker.coordinator);
        worker.agents = self.agents.unwrap_or(worker.agents);
        worker.slots = self.slots.unwrap_or(worker.slots);
        self.data.apply(&mut worker.mesh);
        worker.name = self.name.or(worker.name);
        let admin = self.admin.admin.or(worker.admin);
        let process = Process::new("faultline-worker", config.log, admin, env);
        worker.metrics = process.metrics();
        service::serve(self.threads.count(), process, async |drain, probes| {
            let offers = remote::offers(&config.remote).await.context(CannotStart("worker"))?;
            let worker = offers.into_iter().fold(Worker::new(worker), Worker::offer);
            worker.serve(drain, probes).await.context(CannotStart("worker"))
        })
    }
}
