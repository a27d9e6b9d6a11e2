//! `faultline up`: a whole mesh in one process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use faultline_chassis::{Drain, Secret, admin::Probes, config::Environment};

use crate::{
    cmd::config::Source,
    config::{Config, store_in},
    exit::Exit,
    mesh::Mesh,
    output::paint::Paint,
    role,
    watch::{self, Watch},
};

const DATA: &str = ".faultline";

const EXAMPLES: &str = "\
Examples:
  faultline up
  faultline up --listen 127.0.0.1:0 --hub 127.0.0.1:0 --data /tmp/mesh
  FAULTLINE_AUTH__TOKEN='[{ sha256 = \"…\", principal = \"acme\" }]' \\
    faultline up --listen 0.0.0.0:8080

A token is configured by its digest: printf %s TOKEN | sha256sum.
Prints `ready http://HOST:PORT` on stdout once it answers. Ctrl-C or SIGTERM lets running work
finish, for 10 s at most; what has to be cut off then makes it end with 70. A second one stops
at once.";

/// Start a whole mesh in this process: a coordinator, a worker with the agents echo and script,
/// and a gateway.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where clients connect; port 0 takes any free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where further workers and gateways connect; port 0 takes any free one
    /// [default: 127.0.0.1:8081].
    #[arg(long, value_name = "ADDRESS")]
    hub: Option<SocketAddr>,
    /// Where tasks are kept, in faultline.db below it [default: .faultline].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    admin: watch::Flag,
    /// Serve other machines without asking anybody for a token.
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    source: Source,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let mut defaults = Config::local(Path::new(DATA));
        let config = self.over(defaults.clone(), env)?;
        // Whoever reaches it from outside must not reach this network through its webhooks, and
        // where callers are told apart not everybody acts, unless the configuration says so.
        defaults.coordinator.push.allow_private = config.is_local();
        defaults.gateway.operators_act = config.is_local() && config.auth.token.is_empty();
        let mut config = self.over(defaults, env)?;
        let (log, endpoint) = (config.log.clone(), config.log.otlp_endpoint.as_deref());
        let watch = Watch::new("faultline", self.admin, config.gateway.admin, endpoint, env);
        config.metrics = watch.metrics.clone();
        role::serve(0, log, "faultline", watch, |drain, probes| run(config, drain, probes))
    }

    /// Everything that is configured, laid over `defaults`.
    fn over(&self, defaults: Config, env: &Environment) -> anyhow::Result<Config> {
        let mut config = self.source.load(defaults, env)?;
        config.gateway.listen = self.listen.unwrap_or(config.gateway.listen);
        config.coordinator.listen = self.hub.unwrap_or(config.coordinator.listen);
        config.gateway.insecure |= self.insecure;
        config.coordinator.insecure |= self.insecure;
        if let Some(data) = &self.data {
            config.coordinator.store = store_in(data);
        }
        Ok(config)
    }
}

async fn run(mut config: Config, drain: Drain, probes: Probes) -> anyhow::Result<()> {
    let store = faultline_coordinator::shown_store(&config.coordinator.store);
    let console = config.gateway.console;
    let keys = keys(&config);
    let hub = close_hub(&mut config);
    let mut mesh = tokio::select! {
        mesh = Mesh::start(config) => mesh?,
        () = drain.signalled() => return Ok(()),
    };
    probes.started(mesh.readiness());
    role::ready(&format!("ready {}", mesh.url()))?;
    eprint!("{}", welcome(&mesh, hub, &store, console, &keys, Paint::stderr()));
    tokio::select! {
        error = mesh.failed() => return Err(error),
        () = drain.signalled() => {}
    }
    mesh.stop().await
}

/// Callers that have to say who they are must not be able to go round by the hub, which believes
/// whoever speaks to it. Says who may attach to it.
fn close_hub(config: &mut Config) -> &'static str {
    let is_local = config.coordinator.listen.ip().is_loopback() && !config.coordinator.insecure;
    if is_local && !config.auth.token.is_empty() && config.mesh.token.is_none() {
        config.mesh.token = Some(Secret::random());
        return "closed to others: workers and gateways need a `token` in [mesh], here and there";
    }
    "workers and gateways attach here"
}

/// What callers of a guarded mesh need: to be set first, and flags for curl.
fn keys(config: &Config) -> (String, String) {
    let (mut exports, mut flags) = (String::new(), String::new());
    if config.gateway.tls.is_some() {
        exports += "  export FAULTLINE_CA=…     # the file of the CA that issued its certificate\n";
        flags += " --cacert \"$FAULTLINE_CA\"";
    }
    if !config.auth.token.is_empty() {
        exports += "  export FAULTLINE_TOKEN=…  # one whose digest is in [[auth.token]]\n";
        flags += " -H \"Authorization: Bearer $FAULTLINE_TOKEN\"";
    }
    (exports, flags)
}

/// Where everything is, and what to try next.
fn welcome(
    mesh: &Mesh,
    hub: &str,
    store: &str,
    console: bool,
    (exports, curl_flags): &(String, String),
    paint: Paint,
) -> String {
    let url = mesh.url();
    let flag = match url.as_str() {
        "http://127.0.0.1:8080" => String::new(),
        other => format!(" --gateway {other}"),
    };
    let label = |text: &str| paint.dim(format!("{text:<8}"));
    let console = match console {
        true => format!("\n  {}  {url}/console", label("console")),
        false => String::new(),
    };
    let request = concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":"#,
        r#"{"messageId":"1","role":"ROLE_USER","parts":[{"text":"hello"}]}}}"#
    );
    format!(
        "
  {}  {url}{console}
  {}  {} ({hub})
  {}  {store}

Try, in another terminal:
{exports}  faultline send{flag} echo \"hello\"
  faultline send{flag} script 'fail RATE_LIMITED text=\"slow down\" retry_after=2s'
  curl -s{curl_flags} {url}/agents/echo -H 'A2A-Version: 1.0' -H 'Content-Type: application/json' \\
    -d '{request}'

",
        label("gateway"),
        label("hub"),
        mesh.hub_addr(),
        label("store"),
    )
}
