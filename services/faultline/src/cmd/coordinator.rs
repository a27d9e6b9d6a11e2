//! `faultline coordinator`: the role that owns every task, alone in its process.

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
of the data directory; elsewhere it is configured by its digest: printf %s TOKEN | sha256sum.
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
    admin: service::AdminFlag,
    #[command(flatten)]
    tls_files: service::TlsFlags,
    /// Refused, with an explanation: the port always asks for a credential.
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
            // A store that does not answer is not to keep it from leaving.
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
