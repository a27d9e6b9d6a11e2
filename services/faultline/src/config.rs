//! The configuration of all services as one tree: a section per service and the shared sections.
//! Layers in increasing precedence: defaults, `faultline.toml`, `FAULTLINE_SECTION__KEY`, and the
//! flags, which the commands apply.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

pub use faultline_chassis::config::environment;
use faultline_chassis::{
    MeshConfig, Metrics,
    config::{self, Environment, Error},
    process::Log,
};
use faultline_gateway::Auth;
use serde::{Deserialize, Serialize};

use crate::remote::Remote;

/// The whole configuration. A command loads it once at its start and passes the sections to the
/// services.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The gateway, which serves A2A over HTTP to clients.
    pub gateway: faultline_gateway::Config,
    /// The coordinator, which owns tasks and keeps them in its store.
    pub coordinator: faultline_coordinator::Config,
    /// The worker, which runs agents.
    pub worker: faultline_worker::Config,
    /// Agents outside this mesh that the worker offers, by the names that it offers them under.
    pub remote: BTreeMap<String, Remote>,
    /// Settings that all services of one mesh share: credentials and trust.
    pub mesh: MeshConfig,
    /// The tokens that callers of the gateway present.
    pub auth: Auth,
    /// Logs and the export of traces, in every process.
    pub log: Log,
    /// The metrics registry of the process; not configurable.
    #[serde(skip)]
    pub metrics: Metrics,
}

/// With the defaults the three services find each other on one machine.
impl Default for Config {
    fn default() -> Self {
        let coordinator = faultline_coordinator::Config::default();
        let hub = url(coordinator.listen, false);
        let agents = vec!["echo".to_owned()];
        Self {
            gateway: faultline_gateway::Config { coordinator: hub.clone(), ..Default::default() },
            worker: faultline_worker::Config { coordinator: hub, agents, ..Default::default() },
            coordinator,
            remote: BTreeMap::new(),
            mesh: MeshConfig::default(),
            auth: Auth::default(),
            log: Log::default(),
            metrics: Metrics::default(),
        }
    }
}

impl Config {
    /// The defaults of `faultline up`: a mesh for one machine, so webhooks may reach private
    /// addresses, operators may act, and the agent `script` is offered for drills; the store is in
    /// the directory `data`.
    pub fn local(data: &Path) -> Self {
        let mut config = Self::default();
        config.coordinator.push.allow_private = true;
        config.gateway.operators_act = true;
        config.coordinator.store = store_in(data);
        config.coordinator.default_agent = Some("echo".to_owned());
        config.worker.name = Some("local".to_owned());
        config.worker.agents.push("script".to_owned());
        config
    }

    /// Whether only processes on this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        self.gateway.listen.ip().is_loopback() && self.coordinator.listen.ip().is_loopback()
    }

    /// Changes all ports to 0, so that the system assigns free ones.
    pub fn on_free_ports(mut self) -> Self {
        self.gateway.listen.set_port(0);
        self.coordinator.listen.set_port(0);
        self
    }

    /// Overrides `self` with the file and then with the environment. Without a path
    /// [`config::FILE`] is read, if it exists.
    pub fn load(self, path: Option<&Path>, env: &Environment) -> Result<Self, Error> {
        Ok(config::load_process(&self, path, env)?.shared())
    }

    /// Copies the shared sections into the configuration of each service.
    pub(crate) fn shared(mut self) -> Self {
        self.gateway.auth = self.auth.clone();
        self.gateway.mesh = self.mesh.clone();
        self.coordinator.mesh = self.mesh.clone();
        self.worker.mesh = self.mesh.clone();
        self.gateway.metrics = self.metrics.clone();
        self.coordinator.metrics = self.metrics.clone();
        self.worker.metrics = self.metrics.clone();
        self
    }
}

/// The URL of a listener. A wildcard address, which cannot be dialled, becomes loopback.
pub(crate) fn url(listens: SocketAddr, tls: bool) -> String {
    let ip = match listens.ip() {
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, listens.port()))
}

/// The URL of the SQLite store in a data directory.
pub(crate) fn store_in(data: &Path) -> String {
    format!("sqlite:{}", data.join("faultline.db").display())
}

#[cfg(test)]
mod tests {
    use faultline_worker::Settings;

    use super::*;

    #[test]
    fn services_find_each_other_by_default() {
        let config = Config::default();
        assert_eq!(config.gateway.coordinator, url(config.coordinator.listen, false));
        assert_eq!(config.worker.coordinator, url(config.coordinator.listen, false));
        assert_eq!(url("0.0.0.0:9".parse().unwrap(), false), "http://127.0.0.1:9");
        assert_eq!(url("[::1]:9".parse().unwrap(), true), "https://[::1]:9");
    }

    #[test]
    fn printed_configuration_reads_back_unchanged() {
        let config = Config::local(Path::new("/tmp/x")).on_free_ports();
        let text = toml::to_string_pretty(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), config);
    }

    #[test]
    fn shared_sections_reach_every_service_and_secrets_are_not_printed() {
        let env: Environment = [
            ("FAULTLINE_MESH__TOKEN", "hunter2"),
            ("FAULTLINE_MESH__CA", "ca.pem"),
            ("FAULTLINE_GATEWAY__TLS__CERT", "cert.pem"),
            ("FAULTLINE_GATEWAY__TLS__KEY", "key.pem"),
            ("FAULTLINE_AUTH__TOKEN", "[{ sha256 = 'abc', principal = 'acme' }]"),
            ("FAULTLINE_REMOTE__BILLING__CARD", "https://billing.example"),
            ("FAULTLINE_REMOTE__BILLING__TOKEN", "hunter2"),
            ("FAULTLINE_REMOTE__BILLING__TIMEOUTS__READ_MS", "120000"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        let config = Config::default().load(None, &env).unwrap();
        for mesh in [&config.gateway.mesh, &config.coordinator.mesh, &config.worker.mesh] {
            assert_eq!(mesh, &config.mesh);
            assert_eq!(mesh.token.as_ref().unwrap().reveal(), "hunter2");
        }
        assert_eq!(config.gateway.auth.token[0].principal, "acme");
        let tls = config.gateway.tls.as_ref().unwrap();
        assert_eq!(
            (tls.cert.as_path(), tls.key.as_path()),
            (Path::new("cert.pem"), Path::new("key.pem"))
        );
        let billing = &config.remote["billing"];
        assert_eq!(billing.token.as_ref().unwrap().reveal(), "hunter2");
        assert_eq!((billing.timeouts.read_ms, billing.timeouts.connect_ms), (120_000, 5000));
        let printed = toml::to_string_pretty(&config).unwrap();
        assert!(printed.contains("https://billing.example"), "{printed}");
        assert!(printed.contains("ca.pem") && !printed.contains("hunter2"), "{printed}");
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    /// All roles may share one file, so a user-written worker must accept every section.
    #[test]
    fn user_written_worker_accepts_every_section() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faultline.toml");
        let config = Config::local(dir.path());
        let mut tree = toml::Table::try_from(&config).unwrap();
        // Empty tables are not printed.
        tree.entry("remote").or_insert_with(|| toml::Table::new().into());
        std::fs::write(&path, tree.to_string()).unwrap();
        let settings = Settings::load_from(Some(&path), Environment::new()).unwrap();
        assert_eq!(settings.worker, config.worker);
        assert_eq!((settings.mesh, settings.log), (config.mesh, config.log));
    }

    #[test]
    fn environment_has_short_names_for_the_log() {
        let env = |pairs: &[(&str, &str)]| -> Environment {
            pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
        };
        let load = |env: Environment| Config::default().load(None, &env).unwrap();
        let config = load(env(&[
            ("FAULTLINE_LOG", "debug"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"),
            ("FAULTLINE_COORDINATOR__AGENTS__ECHO__MAX_ATTEMPTS", "7"),
            ("FAULTLINE_WORKER__AGENTS", "echo"),
        ]));
        assert_eq!(config.log.filter.as_deref(), Some("debug"));
        assert_eq!(config.log.otlp_endpoint.as_deref(), Some("http://127.0.0.1:4317"));
        assert_eq!(config.coordinator.agents["echo"].max_attempts, Some(7));
        assert_eq!(config.worker.agents, ["echo"]);
        let both = env(&[("FAULTLINE_LOG", "debug"), ("FAULTLINE_LOG__FILTER", "warn")]);
        assert_eq!(load(both).log.filter.as_deref(), Some("warn"));
    }
}
