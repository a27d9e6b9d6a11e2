//! `faultline worker`: runs a worker, which executes agents, as a process of its own.

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

Prints `ready` on stdout once a coordinator has accepted it. Exits with 77, denied, or 65, bad
input, if its first attempt to attach is rejected, and with 70 if the drain timeout passes before
its tasks have ended.";

/// Run a worker: it attaches to a coordinator and runs agents. Any number may run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The coordinators, separated by commas; a name stands for every address it resolves to
    /// [default: http://127.0.0.1:8081].
    #[arg(long, value_name = "URLS")]
    coordinator: Option<String>,
    /// The built-in agents to run, separated by commas [default: echo].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    agents: Option<Vec<String>>,
    /// The number of tasks that may run at once [default: 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// The display name of this worker [default: the host's name and the process id].
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
