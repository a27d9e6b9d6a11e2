//! The section `[log]` of the configuration: logs and OTLP of one process.

use serde::{Deserialize, Serialize};

use crate::{config::Environment, telemetry};

/// Settings of logs and of the export of traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Log filter, such as `info` or `faultline_coordinator=debug`. Default: the lifecycle and
    /// everything that an operator has to know.
    pub filter: Option<String>,
    /// One JSON object a line instead of text. Default: false.
    pub json: bool,
    /// OTLP endpoint for spans, such as `http://127.0.0.1:4317`. The standard `OTEL_` variables set
    /// the details and override it. Default: no export.
    pub otlp_endpoint: Option<String>,
    /// Whether spans that end in error are exported although their trace is not sampled, each
    /// without its parents. Default: false.
    pub keep_errors: bool,
    /// Whether spans of agents also have the attributes of OpenInference. Default: false.
    pub openinference: bool,
}

impl Log {
    /// For [`telemetry::start`], with the `OTEL_` variables of `env`.
    pub(super) fn options(self, service: &str, env: &Environment) -> telemetry::Options {
        let otel = env.iter().filter(|(name, _)| name.starts_with("OTEL_"));
        telemetry::Options {
            filter: self.filter,
            json: self.json,
            service: service.to_owned(),
            otlp_endpoint: self.otlp_endpoint,
            keep_errors: self.keep_errors,
            openinference: self.openinference,
            otel: otel.map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }
}
