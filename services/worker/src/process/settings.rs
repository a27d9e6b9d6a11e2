//! Configuration of a worker's process: its sections of `faultline.toml`, overridden by environment
//! variables.

use std::path::Path;

use faultline_chassis::{
    MeshConfig,
    config::{self, Environment},
    process::Log,
};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use crate::Config;

/// The configuration of a worker's process: the sections `[worker]`, `[mesh]` and `[log]`. The file
/// may be shared by all roles of a mesh: sections of other roles are ignored. An unknown key in one
/// of these sections is an error that names the nearest known key.
///
/// [`main`](crate::main) loads the settings itself; use this type in a program with arguments of
/// its own.
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
    /// The environment variables that the settings were read from.
    #[serde(skip)]
    pub(crate) env: Environment,
}

impl Settings {
    /// Reads the file and the environment variables `FAULTLINE_SECTION__KEY` and `OTEL_…`. Without
    /// a path, the file is the one that `FAULTLINE_CONFIG` names, or `faultline.toml` in the
    /// working directory if it exists.
    pub fn load(path: Option<&Path>) -> Result<Self, config::Error> {
        Self::load_from(path, config::environment())
    }

    /// Reads the variables from `env` instead of the environment.
    pub fn load_from(path: Option<&Path>, env: Environment) -> Result<Self, config::Error> {
        let named = env.get(config::FILE_VARIABLE).filter(|name| !name.is_empty());
        let path = path.or(named.map(Path::new));
        let settings = config::load_process(&Self::default(), path, &env)?;
        Ok(Self { env, ..settings })
    }

    /// The configuration of the worker, with its mesh credentials.
    pub fn into_config(self) -> Config {
        Config { mesh: self.mesh, ..self.worker }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file that all roles share.
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
    fn environment_overrides_the_worker_sections_of_a_shared_file() {
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
    fn mistyped_key_or_section_error_names_the_nearest_one() {
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
    fn environment_variable_names_the_file() {
        let missing = [("FAULTLINE_CONFIG".to_owned(), "/nonexistent/mine.toml".to_owned())].into();
        let error = Settings::load_from(None, missing).unwrap_err().to_string();
        assert_eq!(error, "cannot read '/nonexistent/mine.toml'");
        let unset = [("FAULTLINE_CONFIG".to_owned(), String::new())].into();
        assert_eq!(Settings::load_from(None, unset).unwrap().worker, Config::default());
    }
}
