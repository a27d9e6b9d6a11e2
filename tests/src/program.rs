//! The program of a process of the mesh: `faultline`, which is this test executable itself and so
//! is what was just compiled, or a worker that a user wrote, which is an example of the worker
//! crate.

use std::{env, ffi::OsString, path::PathBuf};

use faultline_chassis::config::Environment;
use serde_json::Value;
use tokio::process::Command;

/// The command line of a role, as a JSON array.
const ARGS: &str = "FAULTLINE_TEST_ARGS";
/// Its environment, as a JSON object.
const ENV: &str = "FAULTLINE_TEST_ENV";
/// How the variables begin that a build for tests reads from its own environment.
const BREAKS: &str = "FAULTLINE_CHAOS_";

#[derive(Clone, Debug)]
pub enum Program {
    Faultline,
    /// An executable of its own.
    At(PathBuf),
}

impl Program {
    /// An example of the worker crate, built as the workspace is.
    pub async fn example(name: &str) -> Self {
        let mut cargo = Command::new(env!("CARGO"));
        // Of the package under test. The build scripts of dependencies would run again because of
        // them, and again in the next build without them.
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the example {name} is not built: {said}");
        let built = String::from_utf8(output.stdout).expect("cargo writes text");
        let built = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut paths = built
            .filter(|about| about["target"]["name"] == name)
            .filter_map(|about| about["executable"].as_str().map(PathBuf::from));
        Self::At(paths.next().expect("cargo names the executable"))
    }

    /// With these arguments, and only what the harness says in its environment: a developer's own
    /// settings must not change a test.
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
        // These are no part of the configuration: they break the product on purpose.
        let broken = env.iter().filter(|(name, _)| name.starts_with(BREAKS));
        command
            .envs(broken)
            .args(["role", "--exact", "--nocapture", "--test-threads=1"])
            .env(ARGS, serde_json::to_string(&args).expect("strings are JSON"))
            .env(ENV, serde_json::to_string(env).expect("strings are JSON"));
        command
    }
}

/// Becomes what the harness asked for, if it did.
pub fn play_role() {
    let Ok(args) = env::var(ARGS) else { return };
    let args: Vec<String> = serde_json::from_str(&args).expect("the harness writes JSON");
    // Only what the harness says counts: a developer's own settings must not change a test.
    let env: Environment = env::var(ENV).map_or_else(
        |_| Environment::new(),
        |env| serde_json::from_str(&env).expect("the harness writes JSON"),
    );
    let exit = faultline::run(args.into_iter().map(OsString::from), &env);
    std::process::exit(exit.number().into());
}
