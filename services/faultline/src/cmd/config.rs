//! `faultline config`: prints the effective configuration, after every layer. Also the flag that
//! all commands with a configuration share.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use faultline_chassis::config::Environment;

use crate::{config::Config, exit::Exit};

const EXAMPLES: &str = "\
Examples:
  faultline config > faultline.toml
  FAULTLINE_WORKER__SLOTS=8 faultline config --json | jq .worker.slots

A key is looked up in this order: its flag, FAULTLINE_SECTION__KEY in the environment, the
configuration file, its default. `faultline up` has its own defaults: a store in its --data
directory, echo as the default agent, and, while only this machine can reach the mesh, webhooks
to private addresses and operators that act. Secrets are not printed. Every key is described in
docs/configuration.md.";

const HEAD: &str = "\
# The effective configuration of faultline. Every key may also be set in the environment, as
# FAULTLINE_ and section and key joined by two underscores: FAULTLINE_GATEWAY__PUBLIC_URL.
";

/// The flag for the configuration file.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigSource {
    /// The configuration file [default: faultline.toml, if there is one].
    #[arg(long, value_name = "FILE", env = "FAULTLINE_CONFIG")]
    config: Option<PathBuf>,
}

impl ConfigSource {
    pub(crate) fn load(&self, defaults: Config, env: &Environment) -> anyhow::Result<Config> {
        Ok(defaults.load(self.config.as_deref(), env)?)
    }
}

/// Print the effective configuration: defaults, file and environment.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print JSON instead of TOML.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: ConfigSource,
}

impl Args {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        let config = self.source.load(Config::default(), env)?;
        let text = if self.json {
            serde_json::to_string_pretty(&config)? + "\n"
        } else {
            format!("{HEAD}\n{}", toml::to_string_pretty(&config)?)
        };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(Exit::OK)
    }
}
