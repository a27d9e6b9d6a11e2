//! The settings of the exporter, from the standard `OTEL_` variables. A value that cannot be used
//! is logged and ignored, as the specification requires: these variables are often set for a whole
//! cluster.

use std::{collections::BTreeMap, fmt::Display, path::PathBuf, str::FromStr, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::{export_queue::Signal, sampler::Sampler};
use crate::{config::Environment, limits};

/// The transport of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    #[default]
    Grpc,
    HttpProtobuf,
}

/// The export target of one signal.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) signal: Signal,
    pub(super) protocol: Protocol,
    pub(super) url: Uri,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    /// PEM: the only CA to trust.
    pub(super) ca: Option<PathBuf>,
    pub(super) batch_max: usize,
    pub(super) queue_max: usize,
    pub(super) delay: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) traces: Option<Target>,
    pub(super) logs: Option<Target>,
    pub(super) sampler: Sampler,
    /// The attributes of the resource of every span and record.
    pub(super) resource: BTreeMap<String, String>,
    /// Unusable values, for the log.
    pub(super) ignored: Vec<String>,
}

/// The endpoint is not a usable URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadEndpoint(pub(super) String);

impl Settings {
    /// `endpoint`: the target of signals without an endpoint of their own.
    pub(super) fn read(
        env: &Environment,
        endpoint: Option<&str>,
        service: &str,
    ) -> Result<Self, BadEndpoint> {
        let mut reader = Reader { env, ignored: Vec::new() };
        let off = reader.parsed::<bool>("OTEL_SDK_DISABLED", "true or false") == Some(true);
        let traces = reader.target(Signal::Traces, endpoint)?.filter(|_| !off);
        let logs = reader.target(Signal::Logs, endpoint)?.filter(|_| !off);
        let sampler = reader.sampler();
        let resource = reader.resource(service);
        Ok(Self { traces, logs, sampler, resource, ignored: reader.ignored })
    }
}

struct Reader<'a> {
    env: &'a Environment,
    ignored: Vec<String>,
}

impl Reader<'_> {
    /// An empty variable counts as unset.
    fn get(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn parsed<T: FromStr>(&mut self, name: &str, what: &str) -> Option<T> {
        let value = self.get(name)?.to_lowercase();
        let read = value.parse().ok();
        if read.is_none() {
            self.ignore(name, &value, what);
        }
        read
    }

    fn ignore(&mut self, name: &str, value: impl Display, what: &str) {
        self.ignored.push(format!("{name}: '{value}' is not {what}"));
    }

    /// The name of the variable of one signal, if it is set, else of the variable for all signals.
    fn signal_or_common(&self, signal: Signal, suffix: &str) -> String {
        let own = format!("OTEL_EXPORTER_OTLP_{}_{suffix}", word(signal));
        match self.get(&own) {
            Some(_) => own,
            None => format!("OTEL_EXPORTER_OTLP_{suffix}"),
        }
    }

    fn target(
        &mut self,
        signal: Signal,
        common: Option<&str>,
    ) -> Result<Option<Target>, BadEndpoint> {
        let name = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", word(signal));
        let own = self.get(&name).map(str::to_owned);
        let chosen = format!("OTEL_{}_EXPORTER", word(signal));
        let chosen = self.get(&chosen).map(str::to_owned);
        // Spans are exported if there is an endpoint; logs only on request.
        let wanted = match (chosen.as_deref(), signal) {
            (Some("otlp"), _) => true,
            (None, Signal::Traces) => own.is_some() || common.is_some(),
            (None, Signal::Logs) | (Some("none"), _) => false,
            (Some(other), _) => {
                let name = format!("OTEL_{}_EXPORTER", word(signal));
                self.ignore(&name, other, "an exporter (otlp or none)");
                false
            }
        };
        if !wanted {
            return Ok(None);
        }
        let compression = self.signal_or_common(signal, "COMPRESSION");
        if let Some(other) = self.get(&compression).filter(|c| *c != "none").map(str::to_owned) {
            self.ignore(&compression, other, "supported: the export is not compressed");
        }
        let protocol = self.protocol(signal);
        let url = url(protocol, signal, own.as_deref(), common)?;
        let timeout = self.signal_or_common(signal, "TIMEOUT");
        let timeout = self.parsed(&timeout, "a number of milliseconds");
        let batching = if signal == Signal::Traces { "OTEL_BSP" } else { "OTEL_BLRP" };
        let count = |reader: &mut Self, suffix: &str| {
            reader.parsed::<usize>(&format!("{batching}_{suffix}"), "a number").filter(|n| *n > 0)
        };
        let batch_max = count(self, "MAX_EXPORT_BATCH_SIZE");
        let queue_max = count(self, "MAX_QUEUE_SIZE");
        let delay = count(self, "SCHEDULE_DELAY").map(|ms| Duration::from_millis(ms as u64));
        let patience = count(self, "EXPORT_TIMEOUT").map(|ms| Duration::from_millis(ms as u64));
        let timeout = timeout.map(Duration::from_millis).unwrap_or(limits::OTLP_TIMEOUT);
        Ok(Some(Target {
            signal,
            protocol,
            url,
            headers: self.headers(signal),
            timeout: patience.map_or(timeout, |patience| patience.min(timeout)),
            ca: self.get(&self.signal_or_common(signal, "CERTIFICATE")).map(PathBuf::from),
            batch_max: batch_max.unwrap_or(limits::OTLP_BATCH_MAX),
            queue_max: queue_max.unwrap_or(limits::OTLP_QUEUE_MAX),
            delay: delay.unwrap_or(limits::OTLP_DELAY),
        }))
    }

    fn protocol(&mut self, signal: Signal) -> Protocol {
        let name = self.signal_or_common(signal, "PROTOCOL");
        match self.get(&name).map(str::to_owned).as_deref() {
            None | Some("grpc") => Protocol::Grpc,
            Some("http/protobuf") => Protocol::HttpProtobuf,
            Some(other) => {
                self.ignore(&name, other, "a protocol (grpc or http/protobuf)");
                Protocol::Grpc
            }
        }
    }

    /// `key=value` pairs separated by commas, percent-encoded.
    fn pairs(&mut self, name: &str) -> Vec<(String, String)> {
        let Some(text) = self.get(name).map(str::to_owned) else { return Vec::new() };
        let mut pairs = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let decoded = |text: &str| {
                percent_encoding::percent_decode_str(text.trim())
                    .decode_utf8()
                    .map(|text| text.into_owned())
                    .ok()
            };
            match pair.split_once('=').map(|(k, v)| (k.trim().to_owned(), decoded(v))) {
                Some((key, Some(value))) if !key.is_empty() => pairs.push((key, value)),
                // The value may be a secret, so it is not repeated.
                _ => self.ignored.push(format!("{name}: one part is not key=value")),
            }
        }
        pairs
    }

    fn headers(&mut self, signal: Signal) -> HeaderMap {
        let name = self.signal_or_common(signal, "HEADERS");
        let mut headers = HeaderMap::new();
        for (key, value) in self.pairs(&name) {
            match (HeaderName::try_from(key.as_str()), HeaderValue::try_from(value)) {
                (Ok(key), Ok(mut value)) => {
                    value.set_sensitive(true);
                    headers.insert(key, value);
                }
                _ => self.ignored.push(format!("{name}: '{key}' is no header")),
            }
        }
        headers
    }

    fn sampler(&mut self) -> Sampler {
        let name = "OTEL_TRACES_SAMPLER";
        let Some(chosen) = self.get(name).map(str::to_owned) else { return Sampler::default() };
        let ratio = self.parsed::<f64>("OTEL_TRACES_SAMPLER_ARG", "a number from 0 to 1");
        Sampler::named(&chosen, ratio.unwrap_or(1.0).clamp(0.0, 1.0)).unwrap_or_else(|| {
            let what = "a sampler there is: always_on, always_off, traceidratio, each also with \
                        parentbased_ before it";
            self.ignore(name, &chosen, what);
            Sampler::default()
        })
    }

    fn resource(&mut self, service: &str) -> BTreeMap<String, String> {
        let own = [
            ("service.name", service.to_owned()),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id", format!("{:032x}", rand::random::<u128>())),
            ("process.pid", std::process::id().to_string()),
            ("telemetry.sdk.name", "faultline".to_owned()),
            ("telemetry.sdk.language", "rust".to_owned()),
            ("telemetry.sdk.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
        let given = self.pairs("OTEL_RESOURCE_ATTRIBUTES");
        let mut all: BTreeMap<_, _> = own.chain(given).collect();
        if let Some(name) = self.get("OTEL_SERVICE_NAME") {
            all.insert("service.name".to_owned(), name.to_owned());
        }
        all
    }
}

fn word(signal: Signal) -> &'static str {
    match signal {
        Signal::Traces => "TRACES",
        Signal::Logs => "LOGS",
    }
}

/// For HTTP a common endpoint is a base URL, and the endpoint of one signal the exact URL.
fn url(
    protocol: Protocol,
    signal: Signal,
    own: Option<&str>,
    common: Option<&str>,
) -> Result<Uri, BadEndpoint> {
    let usual = match protocol {
        Protocol::Grpc => "http://localhost:4317",
        Protocol::HttpProtobuf => "http://localhost:4318",
    };
    let base = own.or(common).unwrap_or(usual);
    let whole = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
    let root = whole.trim_end_matches('/');
    let text = match (protocol, signal, own) {
        (Protocol::Grpc, Signal::Traces, _) => {
            format!("{root}/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        }
        (Protocol::Grpc, Signal::Logs, _) => {
            format!("{root}/opentelemetry.proto.collector.logs.v1.LogsService/Export")
        }
        (Protocol::HttpProtobuf, _, Some(_)) => whole,
        (Protocol::HttpProtobuf, Signal::Traces, None) => format!("{root}/v1/traces"),
        (Protocol::HttpProtobuf, Signal::Logs, None) => format!("{root}/v1/logs"),
    };
    let read = text.parse::<Uri>().ok().filter(|uri| {
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        has_host && matches!(uri.scheme_str(), Some("http" | "https"))
    });
    read.ok_or_else(|| BadEndpoint(base.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(endpoint: Option<&str>, pairs: &[(&str, &str)]) -> Settings {
        let env = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Settings::read(&env, endpoint, "faultline-test").unwrap()
    }

    #[test]
    fn export_needs_an_endpoint() {
        let settings = read(None, &[]);
        assert_eq!((settings.traces, settings.logs), (None, None));
        let off = read(Some("http://c:4317"), &[("OTEL_SDK_DISABLED", "true")]);
        assert_eq!(off.traces, None);
        let off = read(Some("http://c:4317"), &[("OTEL_TRACES_EXPORTER", "none")]);
        assert_eq!(off.traces, None);
    }

    #[test]
    fn protocol_decides_the_path_of_an_endpoint() {
        let url = |pairs: &[(&str, &str)]| {
            let settings = read(Some("http://c:4317/"), pairs);
            settings.traces.unwrap().url.to_string()
        };
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let grpc = "http://c:4317/opentelemetry.proto.collector.trace.v1.TraceService/Export";
        assert_eq!(url(&[]), grpc);
        assert_eq!(url(&[http]), "http://c:4317/v1/traces");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://d/ingest");
        assert_eq!(url(&[http, own]), "https://d/ingest");
        let for_traces = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc");
        assert_eq!(url(&[http, for_traces]), grpc);
        let bad = Settings::read(&Environment::new(), Some("not a url"), "x");
        assert_eq!(bad.unwrap_err(), BadEndpoint("not a url".to_owned()));
    }

    #[test]
    fn headers_resource_and_batch_limits_come_from_the_variables() {
        let settings = read(
            Some("c:4317"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s%20ecret, x-team = blue"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.name=a"),
                ("OTEL_SERVICE_NAME", "b"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
                ("OTEL_BSP_SCHEDULE_DELAY", "250"),
                ("OTEL_TRACES_SAMPLER", "traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_LOGS_EXPORTER", "otlp"),
            ],
        );
        assert_eq!(settings.ignored, Vec::<String>::new());
        let traces = settings.traces.unwrap();
        assert_eq!(
            (&traces.headers["api-key"], &traces.headers["x-team"]),
            (&HeaderValue::from_static("s ecret"), &HeaderValue::from_static("blue"),)
        );
        assert_eq!(traces.timeout, Duration::from_millis(1500));
        assert_eq!((traces.queue_max, traces.delay), (10, Duration::from_millis(250)));
        assert_eq!(settings.sampler, Sampler { parent_based: false, ratio: 0.25 });
        assert_eq!(settings.resource["service.name"], "b");
        assert_eq!(settings.resource["deployment.environment.name"], "prod");
        assert!(settings.logs.unwrap().url.path().ends_with("LogsService/Export"));
    }

    #[test]
    fn unusable_value_is_reported_and_ignored() {
        let settings = read(
            Some("http://c:4317"),
            &[
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
                ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
                ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
            ],
        );
        assert_eq!(settings.sampler, Sampler::default());
        let ignored_values = settings.ignored.join("\n");
        for name in ["_PROTOCOL: 'http/json'", "_SAMPLER: 'jaeger_remote'", "_DELAY: 'soon'"] {
            assert!(ignored_values.contains(name), "{ignored_values}");
        }
        assert!(
            ignored_values.contains("_HEADERS") && !ignored_values.contains("hunter2"),
            "{ignored_values}"
        );
    }
}
