//! `faultline up`: a whole mesh in one process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context;
use faultline_chassis::{
    Drain,
    admin::Probes,
    config::Environment,
    credential,
    process::{self, Process},
    token_file::{self, DATA},
};

use crate::{
    cmd::config::ConfigSource,
    config::{Config, store_in},
    exit::{CannotStart, Exit},
    local_mesh::LocalMesh,
    output::style::Style,
    service,
};

const EXAMPLES: &str = "\
Examples:
  faultline up
  faultline up --listen 127.0.0.1:0 --hub 127.0.0.1:0 --data /tmp/mesh
  FAULTLINE_AUTH__TOKEN='[{ sha256 = \"…\", principal = \"acme\" }]' \\
    faultline up --listen 0.0.0.0:8080

A token is load_config by its digest: printf %s TOKEN | sha256sum.
Prints `ready http://HOST:PORT` on stdout once it answers. Ctrl-C or SIGTERM lets running work
finish, for 10 s at most; what has to be cut off then makes it end with 70. A second one stops
at once.";

/// Start a whole mesh in this process: a coordinator, a worker with the agent echo, and a gateway.
/// On loopback and without tokens the worker also offers script, for demonstrations and drills.
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
    /// Where tasks and the generated token of the mesh are kept, in faultline.db and mesh.token
    /// below it [default: .faultline].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    admin: service::AdminFlag,
    /// Serve callers on other machines without asking anybody for a token. Workers and gateways
    /// always need one.
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    source: ConfigSource,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let mut config = self.load_config(env)?;
        let admin = self.admin.admin.or(config.gateway.admin);
        let process = Process::new("faultline", config.log.clone(), admin, env);
        config.metrics = process.metrics();
        service::serve(0, process, |drain, probes| run(config, drain, probes))
    }

    fn load_config(&self, env: &Environment) -> anyhow::Result<Config> {
        let mut defaults = Config::local(Path::new(DATA));
        let config = self.with_overrides(defaults.clone(), env)?;
        // Whoever reaches it from outside must not reach this network through its webhooks, and
        // where callers are told apart not everybody acts, unless the configuration says so. The
        // agent for drills is there only where everybody is on this machine and may do everything.
        let is_open = config.is_local() && config.auth.token.is_empty();
        defaults.coordinator.push.allow_private = config.is_local();
        defaults.gateway.operators_act = is_open;
        if !is_open {
            defaults.worker.agents = Config::default().worker.agents;
        }
        self.with_overrides(defaults, env)
    }

    /// Everything that is configured, laid over `defaults`.
    fn with_overrides(&self, defaults: Config, env: &Environment) -> anyhow::Result<Config> {
        let mut config = self.source.load(defaults, env)?;
        config.gateway.listen = self.listen.unwrap_or(config.gateway.listen);
        config.coordinator.listen = self.hub.unwrap_or(config.coordinator.listen);
        config.gateway.insecure |= self.insecure;
        config.mesh.data = Some(self.data.clone().unwrap_or_else(|| DATA.into()));
        if let Some(data) = &self.data {
            config.coordinator.store = store_in(data);
        }
        Ok(config)
    }
}

async fn run(mut config: Config, drain: Drain, probes: Probes) -> anyhow::Result<()> {
    let store = faultline_coordinator::shown_store(&config.coordinator.store);
    let console = config.gateway.console;
    let has_script = config.worker.agents.iter().any(|name| name == "script");
    let credential_hints = credential_hints(&config);
    let hub = ensure_hub_credential(&mut config).context(CannotStart("coordinator"))?;
    let mut mesh = tokio::select! {
        mesh = LocalMesh::start(config) => mesh?,
        () = drain.signalled() => return Ok(()),
    };
    probes.mark_started(mesh.readiness());
    process::print_ready_line(&format!("ready {}", mesh.url()))?;
    eprint!(
        "{}",
        welcome(&mesh, &hub, &store, (console, has_script), &credential_hints, Style::stderr())
    );
    tokio::select! {
        error = mesh.failed() => return Err(error),
        () = drain.signalled() => {}
    }
    mesh.stop().await
}

/// Sees to it that workers and gateways beside this process need a credential, and says which. If
/// none is configured, a token is generated in the data directory.
fn ensure_hub_credential(config: &mut Config) -> Result<String, credential::Error> {
    let mesh = &mut config.mesh;
    if !mesh.credential.is_empty() {
        return Ok("workers and gateways attach here with tokens of [[mesh.credential]]".to_owned());
    }
    if mesh.token.is_some() || mesh.token_file.is_some() {
        return Ok("workers and gateways attach here with the `token` in [mesh]".to_owned());
    }
    mesh.token = Some(credential::local_token(mesh, config.coordinator.port())?);
    let file = token_file::in_data(mesh.data.as_deref());
    Ok(format!("workers and gateways attach here with the token in {}", file.display()))
}

/// What callers of a guarded mesh need: to be set first, and flags for curl.
fn credential_hints(config: &Config) -> (String, String) {
    let mut exports = String::new();
    let mut flags = String::new();
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
    mesh: &LocalMesh,
    hub: &str,
    store: &str,
    (console, has_script): (bool, bool),
    (exports, curl_flags): &(String, String),
    style: Style,
) -> String {
    let url = mesh.url();
    let flag = match url.as_str() {
        "http://127.0.0.1:8080" => String::new(),
        other => format!(" --gateway {other}"),
    };
    let label = |text: &str| style.dim(format!("{text:<8}"));
    let console =
        if console { format!("\n  {}  {url}/console", label("console")) } else { String::new() };
    let script = if has_script {
        format!(
            "\n  faultline send{flag} script 'fail RATE_LIMITED text=\"slow down\" retry_after=2s'"
        )
    } else {
        String::new()
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
{exports}  faultline send{flag} echo \"hello\"{script}
  curl -s{curl_flags} {url}/agents/echo -H 'A2A-Version: 1.0' -H 'Content-Type: application/json' \\
    -d '{request}'

",
        label("gateway"),
        label("hub"),
        mesh.hub_addr(),
        label("store"),
    )
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn agents(flags: &[&str], env: &[(&str, &str)]) -> Vec<String> {
        let command = Args::augment_args(clap::Command::new("up"));
        let matches = command.try_get_matches_from(["up"].iter().chain(flags)).unwrap();
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let config = Args::from_arg_matches(&matches).unwrap().load_config(&env).unwrap();
        assert!(!config.worker.drills, "{flags:?}");
        config.worker.agents
    }

    #[test]
    fn script_is_offered_only_on_loopback_without_tokens() {
        let token = ("FAULTLINE_AUTH__TOKEN", "[{ sha256 = 'abc', principal = 'acme' }]");
        let named = ("FAULTLINE_WORKER__AGENTS", "echo,script");
        assert_eq!(agents(&[], &[]), ["echo", "script"]);
        assert_eq!(agents(&[], &[token]), ["echo"]);
        for outside in [["--listen", "0.0.0.0:8080"], ["--hub", "0.0.0.0:8081"]] {
            assert_eq!(agents(&outside, &[]), ["echo"]);
            assert_eq!(agents(&outside, &[token]), ["echo"]);
            assert_eq!(
                agents(&outside, &[token, named]),
                ["echo", "script"],
                "the operator's word"
            );
        }
    }
}
