//! `faultline coordinator`: runs a coordinator, which owns tasks, as a process of its own.

use std::net::SocketAddr;

use anyhow::Context;
use faultline_chassis::{
    config::Environment,
    process::{self, Process},
};

use crate::{
    cmd::config::ConfigSource,
    config::Config,
    exit::{CannotStart, Exit},
    service,
};

const EXAMPLES: &str = "\
Examples:
  faultline coordinator
  faultline coordinator --store sqlite:/var/lib/faultline/tasks.db --admin 0.0.0.0:9090
  faultline coordinator --store postgres://me@db.example/mesh
  FAULTLINE_MESH__CREDENTIAL='[{ role = \"gateway\", sha256 = \"…\" },
    { role = \"worker\", sha256 = \"…\", agents = [\"refunds\"] }]' \\
    faultline coordinator --listen 0.0.0.0:8081 --tls-cert cert.pem --tls-key key.pem

Callers present a token. On loopback with SQLite it is generated at the first start, in mesh.token
of the data directory; otherwise it is configured by its digest: printf %s TOKEN | sha256sum.
Prints `ready HOST:PORT` on stdout once it serves. Exits with 70 after an internal error, or if
the drain timeout passes before its work has ended.";

/// Run a coordinator: it owns every task; gateways and workers attach to it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The address for gateways and workers; port 0 takes any free one [default: 127.0.0.1:8081].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The store of tasks: sqlite:PATH, or postgres://USER@HOST/DATABASE, which several
    /// coordinators may share; a URL with a password belongs in FAULTLINE_COORDINATOR__STORE
    /// [default: sqlite:faultline.db].
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    admin: service::AdminFlag,
    #[command(flatten)]
    tls_files: service::TlsFlags,
    /// Rejected with an explanation: the port always requires a credential.
    #[arg(long, hide = true)]
    insecure: bool,
    #[command(flatten)]
    data: service::DataFlag,
    #[command(flatten)]
    threads: service::ThreadsFlag,
    #[command(flatten)]
    source: ConfigSource,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let config = self.source.load(Config::default(), env)?;
        let mut coordinator = config.coordinator;
        coordinator.listen = self.listen.unwrap_or(coordinator.listen);
        self.tls_files.apply(&mut coordinator.tls);
        coordinator.insecure |= self.insecure;
        self.data.apply(&mut coordinator.mesh);
        coordinator.store = self.store.unwrap_or(coordinator.store);
        let admin = self.admin.admin.or(coordinator.admin);
        let process = Process::new("faultline-coordinator", config.log, admin, env);
        coordinator.metrics = process.metrics();
        service::serve(self.threads.count(), process, async |drain, probes| {
            // A store that does not answer must not block the drain.
            let service = tokio::select! {
                bound = coordinator.bind() => bound.context(CannotStart("coordinator"))?,
                () = drain.signalled() => return Ok(()),
            };
            let readiness = service.readiness();
            probes.mark_started(move || readiness.look());
            process::print_ready_line(&format!("ready {}", service.addr()))?;
            Ok(service.run(drain).await?)
        })
    }
}
