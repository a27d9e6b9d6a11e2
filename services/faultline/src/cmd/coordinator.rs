//! `faultline coordinator`: the role that owns every task, alone in its process.

use std::net::SocketAddr;

use anyhow::Context;
use faultline_chassis::config::Environment;

use crate::{
    cmd::config::Source,
    config::Config,
    exit::{CannotStart, Exit},
    role,
    watch::{self, Watch},
};

const EXAMPLES: &str = "\
Examples:
  faultline coordinator
  faultline coordinator --store sqlite:/var/lib/faultline/tasks.db --admin 0.0.0.0:9090
  faultline coordinator --store postgres://me@db.example/mesh
  FAULTLINE_MESH__TOKEN=… faultline coordinator --listen 0.0.0.0:8081 \\
    --tls-cert cert.pem --tls-key key.pem

Prints `ready HOST:PORT` on stdout once it serves. Ends with 70 if something in it broke, or if it
had to be cut off while it left.";

/// Run a coordinator: it owns every task; gateways and workers attach to it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where gateways and workers attach; port 0 takes any free one [default: 127.0.0.1:8081].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where tasks are kept: sqlite:PATH, or postgres://USER@HOST/DATABASE, which several
    /// coordinators may share; better in FAULTLINE_COORDINATOR__STORE if there is a password in it
    /// [default: sqlite:faultline.db].
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    admin: watch::Flag,
    #[command(flatten)]
    guard: role::Guard,
    #[command(flatten)]
    threads: role::Threads,
    #[command(flatten)]
    source: Source,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let config = self.source.load(Config::default(), env)?;
        let mut coordinator = config.coordinator;
        coordinator.listen = self.listen.unwrap_or(coordinator.listen);
        self.guard.over(&mut coordinator.tls, &mut coordinator.insecure);
        coordinator.store = self.store.unwrap_or(coordinator.store);
        let (log, endpoint) = (config.log.clone(), config.log.otlp_endpoint);
        let (name, endpoint) = ("faultline-coordinator", endpoint.as_deref());
        let watch = Watch::new(name, self.admin, coordinator.admin, endpoint, env);
        coordinator.metrics = watch.metrics.clone();
        role::serve(self.threads.count(), log, name, watch, async |drain, probes| {
            // A store that does not answer is not to keep it from leaving.
            let service = tokio::select! {
                bound = coordinator.bind() => bound.context(CannotStart("coordinator"))?,
                () = drain.signalled() => return Ok(()),
            };
            let readiness = service.readiness();
            probes.started(move || readiness.look());
            role::ready(&format!("ready {}", service.addr()))?;
            Ok(service.run(drain).await?)
        })
    }
}
