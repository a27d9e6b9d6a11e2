//! `faultline gateway`: the role that clients see, alone in its process.

use std::net::SocketAddr;

use anyhow::Context;
use faultline_chassis::config::Environment;
use faultline_client::Client;
use faultline_proto::v1::{AgentsRequest, AgentsResponse};

use crate::{
    cmd::config::Source,
    config::{Config, url},
    exit::{CannotStart, Exit},
    role,
};

const EXAMPLES: &str = "\
Examples:
  faultline gateway --coordinator http://127.0.0.1:8081
  faultline gateway --listen 0.0.0.0:8080 --public-url https://agents.example.org

Prints `ready http://HOST:PORT` on stdout once it answers, which takes a coordinator.";

/// Run a gateway: A2A over HTTP for clients. It keeps nothing, so run as many as you like.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where clients connect; port 0 takes any free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The coordinator [default: http://127.0.0.1:8081].
    #[arg(long, value_name = "URL")]
    coordinator: Option<String>,
    /// What clients call this gateway, for agent cards [default: the address it listens on].
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    #[command(flatten)]
    threads: role::Threads,
    #[command(flatten)]
    source: Source,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let config = self.source.load(Config::default(), env)?;
        let mut gateway = config.gateway;
        gateway.listen = self.listen.unwrap_or(gateway.listen);
        gateway.coordinator = self.coordinator.unwrap_or(gateway.coordinator);
        gateway.public_url = self.public_url.or(gateway.public_url);
        role::serve(self.threads.count(), config.log, "faultline-gateway", async |drain| {
            let what = format!("the coordinator at {}", gateway.coordinator);
            let service = gateway.bind().await.context(CannotStart("gateway"))?;
            let url = url(service.addr());
            let client = Client::new(&url)?;
            let announce = async {
                let answers = async || {
                    let agents = client.mesh("Agents", &AgentsRequest::default()).await;
                    agents.is_ok_and(|_: AgentsResponse| true)
                };
                if role::until(&drain, &what, answers).await {
                    role::ready(&format!("ready {url}"))?;
                }
                anyhow::Ok(())
            };
            let (announced, ended) = tokio::join!(announce, service.run(drain.clone()));
            ended?;
            announced
        })
    }
}
