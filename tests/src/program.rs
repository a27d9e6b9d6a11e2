//! The executable of a mesh process: `faultline`, run by the test executable itself, or a
//! user-written worker, built from an example of the worker crate.

use std::{env, ffi::OsString, path::PathBuf};

use faultline_chassis::config::Environment;
use serde_json::Value;
use tokio::process::Command;

/// Variable with the command line of a role, as a JSON array.
const ARGS: &str = "FAULTLINE_TEST_ARGS";
/// Variable with the environment of a role, as a JSON object.
const ENV: &str = "FAULTLINE_TEST_ENV";
/// Prefix of the fault-injection variables, which a test build reads from the real environment.
const FAULT_PREFIX: &str = "FAULTLINE_CHAOS_";

#[derive(Clone, Debug)]
pub enum Program {
    Faultline,
    /// A separate executable.
    At(PathBuf),
}

impl Program {
    /// Builds an example of the worker crate in the profile of the workspace.
    pub async fn example(name: &str) -> Self {
        let mut cargo = Command::new(env!("CARGO"));
        // These variables belong to the package under test. Build scripts of dependencies would
        // rerun because of them, and again in the next build without them.
        for (variable, _) in env::vars_os() {
            let name = variable.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix)) {
                cargo.env_remove(&variable);
            }
        }
        let output = cargo
            .args(["build", "--workspace", "--offline", "--quiet", "--message-format=json"])
            .args(["--example", name])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .output()
            .await
            .expect("cargo runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the example {name} is not built: {errors}");
        let built = String::from_utf8(output.stdout).expect("cargo writes text");
        let built = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut paths = built
            .filter(|artifact| artifact["target"]["name"] == name)
            .filter_map(|artifact| artifact["executable"].as_str().map(PathBuf::from));
        Self::At(paths.next().expect("cargo names the executable"))
    }

    /// The command with these arguments. Only `env` configures the process: the `FAULTLINE_` and
    /// `OTEL_` variables of the developer are removed.
    pub fn command(&self, args: &[String], env: &Environment) -> Command {
        let path = match self {
            Self::Faultline => env::current_exe().expect("a test knows its executable"),
            Self::At(path) => path.clone(),
        };
        let mut command = Command::new(path);
        for (variable, _) in env::vars_os() {
            if ["FAULTLINE_", "OTEL_"].iter().any(|p| variable.to_string_lossy().starts_with(p)) {
                command.env_remove(variable);
            }
        }
        command.env("NO_COLOR", "1");
        if let Self::At(_) = self {
            command.args(args).envs(env);
            return command;
        }
        let args: Vec<_> =
            ["faultline"].into_iter().chain(args.iter().map(String::as_str)).collect();
        // Fault injection is not part of the configuration.
        let faults = env.iter().filter(|(name, _)| name.starts_with(FAULT_PREFIX));
        command
            .envs(faults)
            .args(["role", "--exact", "--nocapture", "--test-threads=1"])
            .env(ARGS, serde_json::to_string(&args).expect("strings are JSON"))
            .env(ENV, serde_json::to_string(env).expect("strings are JSON"));
        command
    }
}

/// Runs `faultline` and exits, if the harness started this process with a role.
pub fn run_role() {
    let Ok(args) = env::var(ARGS) else { return };
    let args: Vec<String> = serde_json::from_str(&args).expect("the harness writes JSON");
    // The environment of the developer must not change a test.
    let env: Environment = env::var(ENV).map_or_else(
        |_| Environment::new(),
        |env| serde_json::from_str(&env).expect("the harness writes JSON"),
    );
    let exit = faultline::run(args.into_iter().map(OsString::from), &env);
    std::process::exit(exit.number().into());
}
