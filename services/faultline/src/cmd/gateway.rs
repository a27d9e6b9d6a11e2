//! `faultline gateway`: runs a gateway, which serves A2A over HTTP, as a process of its own.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use faultline_chassis::{
    config::Environment,
    process::{self, Process},
};

use crate::{
    cmd::config::ConfigSource,
    config::{Config, url},
    exit::{CannotStart, Exit},
    service,
};

const EXAMPLES: &str = "\
Examples:
  faultline gateway --coordinator http://127.0.0.1:8081
  FAULTLINE_MESH__TOKEN=… faultline gateway --coordinator https://hub:8081
  faultline gateway --coordinator http://10.0.0.1:8081,http://10.0.0.2:8081
  FAULTLINE_AUTH__TOKEN='[{ sha256 = \"…\", principal = \"acme\" }]' \\
    faultline gateway --listen 0.0.0.0:8080 --public-url https://agents.example.org

A token is configured by its digest: printf %s TOKEN | sha256sum.
Prints `ready http://HOST:PORT` on stdout, or https, once it has reached a coordinator and answers.
Exits with 70 if the drain timeout passes before its requests have ended.";

/// Run a gateway: A2A over HTTP for clients. It is stateless, so any number may run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The address for clients; port 0 takes any free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The coordinators, separated by commas; a name stands for every address it resolves to
    /// [default: http://127.0.0.1:8081].
    #[arg(long, value_name = "URLS")]
    coordinator: Option<String>,
    /// The URL at which clients reach this gateway, for agent cards [default: its address].
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    #[command(flatten)]
    admin: service::AdminFlag,
    #[command(flatten)]
    tls_files: service::TlsFlags,
    /// Serve callers on other machines without requiring a token.
    #[arg(long)]
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
        let mut gateway = config.gateway;
        gateway.listen = self.listen.unwrap_or(gateway.listen);
        self.tls_files.apply(&mut gateway.tls);
        gateway.insecure |= self.insecure;
        self.data.apply(&mut gateway.mesh);
        gateway.coordinator = self.coordinator.unwrap_or(gateway.coordinator);
        gateway.public_url = self.public_url.or(gateway.public_url);
        let admin = self.admin.admin.or(gateway.admin);
        let process = Process::new("faultline-gateway", config.log, admin, env)
            .drain_delay(Duration::from_millis(gateway.drain_delay_ms));
        gateway.metrics = process.metrics();
        service::serve(self.threads.count(), process, async |drain, probes| {
            let what = format!("the coordinator at {}", gateway.coordinator);
            let tls = gateway.tls.is_some();
            let service = gateway.bind().await.context(CannotStart("gateway"))?;
            let addr = service.addr();
            let readiness = service.readiness();
            let look = readiness.clone();
            probes.mark_started(move || look.look());
            let announce = async {
                if process::wait_until(&drain, &what, async || readiness.is_ready()).await {
                    process::print_ready_line(&format!("ready {}", url(addr, tls)))?;
                }
                anyhow::Ok(())
            };
            let (announced, ended) = tokio::join!(announce, service.run(drain.clone()));
            ended?;
            announced
        })
    }
}
