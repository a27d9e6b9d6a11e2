//! `faultline up`: runs the whole mesh in one process.

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

A token is configured by its digest: printf %s TOKEN | sha256sum.
Prints `ready http://HOST:PORT` on stdout once it answers. Ctrl-C or SIGTERM drains: running work
may finish, for 10 s at most; if some of it has to be aborted then, the exit code is 70. A second
signal stops at once.";

/// Start a whole mesh in this process: a coordinator, a worker with the agent echo, and a gateway.
/// On loopback and without tokens the worker also offers script, for demonstrations and drills.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The address for clients; port 0 takes any free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The address for further workers and gateways; port 0 takes any free one
    /// [default: 127.0.0.1:8081].
    #[arg(long, value_name = "ADDRESS")]
    hub: Option<SocketAddr>,
    /// The directory of the tasks, in faultline.db, and of the generated token of the mesh, in
    /// mesh.token [default: .faultline].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    admin: service::AdminFlag,
    /// Serve callers on other machines without requiring a token. Workers and gateways always need
    /// one.
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
        // A mesh that other machines can reach must not give access to this network through its
        // webhooks (SSRF). With caller tokens, operators may not act by default. The agent for
        // drills is offered only on loopback and without caller tokens.
        let is_open = config.is_local() && config.auth.token.is_empty();
        defaults.coordinator.push.allow_private = config.is_local();
        defaults.gateway.operators_act = is_open;
        if !is_open {
            defaults.worker.agents = Config::default().worker.agents;
        }
        self.with_overrides(defaults, env)
    }

    /// Overrides `defaults` with the file, the environment and the flags.
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

/// Ensures that the coordinator's port requires a credential, and describes which. If none is
/// configured, a token is generated in the data directory.
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

/// Hints for callers of a mesh with TLS or tokens: variables to export, and flags for curl.
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

/// The text printed after the start: addresses, store and commands to try.
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
                "the operator's explicit choice"
            );
        }
    }
}
