//! The configuration of a worker's process: the sections of `faultline.toml` that concern it, and
//! the environment over them.

use std::path::Path;

use faultline_chassis::{
    MeshConfig,
    config::{self, Environment},
    process::Log,
};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use crate::Config;

/// Everything that is configured for the process of a worker: the sections `[worker]`, `[mesh]` and
/// `[log]`. The file may be one that all roles of a mesh share: the sections of the others are
/// ignored. A key that is unknown in its own sections is an error that names the nearest known one.
///
/// [`main`](crate::main) reads it by itself; this is for programs that have arguments of their own.
///
/// ```no_run
/// # use faultline_worker::{Agent, Context, Error, Offer, Settings};
/// # struct Shout;
/// # impl Agent for Shout {
/// #     async fn run(&self, _: &Context) -> Result<(), Error> { Ok(()) }
/// # }
/// #[tokio::main]
/// async fn main() -> Result<std::process::ExitCode, faultline_worker::ConfigError> {
///     let mut settings = Settings::load(Some("my.toml".as_ref()))?;
///     settings.worker.slots = 8;
///     Ok(settings.run(async |worker| Ok(worker.offer(Offer::new("shout", Shout)))).await)
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `[worker]`.
    pub worker: Config,
    /// `[mesh]`: becomes [`Config::mesh`] of the worker when it starts.
    pub mesh: MeshConfig,
    /// `[log]`.
    pub log: Log,
    #[serde(skip_serializing)]
    gateway: IgnoredAny,
    #[serde(skip_serializing)]
    coordinator: IgnoredAny,
    #[serde(skip_serializing)]
    auth: IgnoredAny,
    #[serde(skip_serializing)]
    remote: IgnoredAny,
    /// The variables that everything was read from.
    #[serde(skip)]
    pub(crate) env: Environment,
}

impl Settings {
    /// Reads the file and the variables of this process, `FAULTLINE_SECTION__KEY` and `OTEL_…`.
    /// Without a path it is the file that `FAULTLINE_CONFIG` names, or else `faultline.toml` in the
    /// working directory, if it exists.
    pub fn load(path: Option<&Path>) -> Result<Self, config::Error> {
        Self::load_from(path, config::environment())
    }

    /// Reads the variables from `env` instead.
    pub fn load_from(path: Option<&Path>, env: Environment) -> Result<Self, config::Error> {
        let named = env.get(config::FILE_VARIABLE).filter(|name| !name.is_empty());
        let path = path.or(named.map(Path::new));
        let settings = config::load_process(&Self::default(), path, &env)?;
        Ok(Self { env, ..settings })
    }

    /// The worker's own configuration, with how it dials the mesh.
    pub fn into_config(self) -> Config {
        Config { mesh: self.mesh, ..self.worker }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file that an operator might share among all roles.
    const SHARED: &str = "
[gateway]
listen = '0.0.0.0:8080'
[coordinator]
wait_for_worker_ms = 300000
[coordinator.agents.refunds]
max_attempts = 2
[[auth.token]]
sha256 = 'abc'
principal = 'acme'
[remote.billing]
card = 'https://billing.example'
[worker]
slots = 8
name = 'from the file'
[log]
json = true
[mesh]
ca = 'ca.pem'
";

    fn load(text: &str, env: &[(&str, &str)]) -> Result<Settings, String> {
        let dir = std::env::temp_dir().join(format!("worker-{:032x}", rand::random::<u128>()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("faultline.toml");
        fs::write(&path, text).unwrap();
        let env = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let loaded = Settings::load_from(Some(&path), env);
        fs::remove_dir_all(&dir).unwrap();
        let dir = format!("{}/", dir.display());
        loaded.map_err(|error| error.to_string().replace(&dir, ""))
    }

    #[test]
    fn a_worker_reads_its_sections_of_a_shared_file_and_the_environment_over_them() {
        let env = [
            ("FAULTLINE_WORKER__COORDINATOR", "http://hub:8081"),
            ("FAULTLINE_WORKER__NAME", "from the environment"),
            ("FAULTLINE_WORKER__ADMIN", "0.0.0.0:9464"),
            ("FAULTLINE_MESH__TOKEN", "hunter2"),
            ("FAULTLINE_GATEWAY__PUBLIC_URL", "https://agents.example"),
            ("FAULTLINE_AUTH__TOKEN", "[{ sha256 = 'abc', principal = 'acme' }]"),
            ("FAULTLINE_LOG", "debug"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"),
        ];
        let settings = load(SHARED, &env).unwrap();
        let worker = &settings.worker;
        assert_eq!((worker.slots, worker.coordinator.as_str()), (8, "http://hub:8081"));
        assert_eq!(worker.name.as_deref(), Some("from the environment"));
        assert_eq!(worker.admin.map(|address| address.port()), Some(9464));
        assert_eq!(settings.mesh.token.as_ref().unwrap().reveal(), "hunter2");
        assert_eq!(settings.mesh.ca.as_deref(), Some(Path::new("ca.pem")));
        assert!(settings.log.json);
        assert_eq!(settings.log.filter.as_deref(), Some("debug"));
        assert_eq!(settings.log.otlp_endpoint.as_deref(), Some("http://127.0.0.1:4317"));
    }

    #[test]
    fn a_mistyped_key_or_section_names_the_nearest_one() {
        let error = load("[worker]\nslot = 8\n", &[]).unwrap_err();
        assert_eq!(
            error,
            "faultline.toml:2: unknown key `slot` in [worker]; did you mean `slots`?"
        );
        let error = load("[wroker]\nslots = 8\n", &[]).unwrap_err();
        assert_eq!(error, "faultline.toml:1: unknown key `wroker`; did you mean `worker`?");
        let error = load("", &[("FAULTLINE_WORKER__COORDINATR", "x")]).unwrap_err();
        let expected = "FAULTLINE_WORKER__COORDINATR: unknown key `coordinatr` in [worker]; \
                        did you mean `coordinator`?";
        assert_eq!(error, expected);
    }

    #[test]
    fn the_file_may_be_named_by_a_variable() {
        let missing = [("FAULTLINE_CONFIG".to_owned(), "/nonexistent/mine.toml".to_owned())].into();
        let error = Settings::load_from(None, missing).unwrap_err().to_string();
        assert_eq!(error, "cannot read '/nonexistent/mine.toml'");
        let unset = [("FAULTLINE_CONFIG".to_owned(), String::new())].into();
        assert_eq!(Settings::load_from(None, unset).unwrap().worker, Config::default());
    }
}
