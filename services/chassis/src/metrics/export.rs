//! The OTLP exporter of metrics, configured by the `OTEL_` variables: over gRPC or as protobuf over
//! HTTP, periodically and once more at the end of the process. An unavailable collector costs one
//! line in the log.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use axum::body::Body;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri,
    header::{CONTENT_TYPE, USER_AGENT},
};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient,
};
use percent_encoding::percent_decode_str;
use prost::Message;
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval_at, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;

use super::{Metrics, otlp};
use crate::{
    client::{CannotDial, Channel, Dial},
    config::Environment,
    error_chain,
    net::{
        dial::Connector,
        tls::{self, Trust},
    },
};

/// The user agent.
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("faultline/", env!("CARGO_PKG_VERSION")));

/// The target and the interval of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub endpoint: String,
    pub protocol: Protocol,
    /// Sent with every export, such as an API key.
    headers: HeaderMap,
    /// PEM: the only CA to trust. None: those the system trusts.
    ca: Option<PathBuf>,
    pub interval: Duration,
    pub timeout: Duration,
    /// Attributes of the resource, beside the name of the service.
    pub resource: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    HttpProtobuf,
}

/// The configured export is not possible.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("metrics cannot be exported")]
    Dial(#[from] CannotDial),
    #[error("metrics cannot be exported")]
    Tls(#[from] tls::Error),
}

/// Reads the `OTEL_` variables. `endpoint` is the target unless they override it; `None`: no
/// export. An unusable value is ignored and passed to `report`: these variables are often set for
/// a whole cluster.
pub fn options(
    env: &Environment,
    endpoint: Option<&str>,
    report: impl FnMut(String),
) -> Option<Options> {
    let mut env = Variables { env, report };
    let asked = env.exporter()?;
    let protocol = match env.otlp("PROTOCOL") {
        None => Protocol::Grpc,
        Some((_, "grpc")) => Protocol::Grpc,
        Some((_, "http/protobuf")) => Protocol::HttpProtobuf,
        Some((name, _)) => {
            env.ignore(&name, "neither grpc nor http/protobuf: using grpc");
            Protocol::Grpc
        }
    };
    let own = env.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
    let endpoint = match (own, endpoint.filter(|endpoint| !endpoint.is_empty()), protocol) {
        (Some(own), ..) => own.to_owned(),
        (None, Some(all), Protocol::Grpc) => all.to_owned(),
        (None, Some(all), Protocol::HttpProtobuf) => {
            format!("{}/v1/metrics", all.trim_end_matches('/'))
        }
        (None, None, _) if !asked => return None,
        (None, None, Protocol::Grpc) => "http://127.0.0.1:4317".to_owned(),
        (None, None, Protocol::HttpProtobuf) => "http://127.0.0.1:4318/v1/metrics".to_owned(),
    };
    let name = env.get("OTEL_SERVICE_NAME").map(|n| ("service.name".to_owned(), n.to_owned()));
    let timeout = env.otlp("TIMEOUT").map(|(name, _)| name);
    Some(Options {
        endpoint,
        protocol,
        headers: env.headers(),
        ca: env.otlp("CERTIFICATE").map(|(_, path)| PathBuf::from(path)),
        interval: env.millis("OTEL_METRIC_EXPORT_INTERVAL", 60_000),
        timeout: env.millis(timeout.as_deref().unwrap_or_default(), 10_000),
        // The first value of a key counts.
        resource: name.into_iter().chain(env.pairs("OTEL_RESOURCE_ATTRIBUTES")).collect(),
    })
}

struct Variables<'a, F> {
    env: &'a Environment,
    report: F,
}

impl<'a, F: FnMut(String)> Variables<'a, F> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A setting of OTLP, for metrics or for all signals.
    fn otlp(&self, key: &str) -> Option<(String, &'a str)> {
        let names = ["_METRICS_", "_"].map(|of| format!("OTEL_EXPORTER_OTLP{of}{key}"));
        names.into_iter().find_map(|name| self.get(&name).map(|value| (name.clone(), value)))
    }

    /// The value may be a secret, so it is not repeated.
    fn ignore(&mut self, name: &str, what: &str) {
        (self.report)(format!("{name} is {what}"));
    }

    /// `None`: metrics are disabled. True: they are requested explicitly.
    fn exporter(&mut self) -> Option<bool> {
        let disabled =
            self.get("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let names = self.get("OTEL_METRICS_EXPORTER").unwrap_or_default().split(',');
        let names: Vec<_> = names.map(str::trim).filter(|name| !name.is_empty()).collect();
        // `prometheus` needs nothing: the metrics can always be scraped.
        if names.iter().any(|name| !["otlp", "none", "prometheus"].contains(name)) {
            self.ignore("OTEL_METRICS_EXPORTER", "none of otlp, prometheus and none");
        }
        let asked = names.contains(&"otlp");
        let off = names.iter().any(|name| ["none", "prometheus"].contains(name));
        if disabled || (off && !asked) { None } else { Some(asked) }
    }

    fn millis(&mut self, name: &str, default: u64) -> Duration {
        let given = self.get(name).map(|text| text.parse().ok().filter(|millis| *millis > 0));
        if given == Some(None) {
            self.ignore(name, "no number of milliseconds above 0");
        }
        Duration::from_millis(given.flatten().unwrap_or(default))
    }

    /// The valid pairs of a list.
    fn pairs(&mut self, name: &str) -> Vec<(String, String)> {
        let items = self.get(name).unwrap_or_default().split(',').map(str::trim);
        let items: Vec<_> = items.filter(|item| !item.is_empty()).map(pair).collect();
        if items.contains(&None) {
            self.ignore(name, "not a list of key=value");
        }
        items.into_iter().flatten().collect()
    }

    fn headers(&mut self) -> HeaderMap {
        let Some((name, _)) = self.otlp("HEADERS") else { return HeaderMap::new() };
        let mut headers = HeaderMap::new();
        for (key, value) in self.pairs(&name) {
            match (HeaderName::try_from(key), HeaderValue::try_from(value)) {
                (Ok(key), Ok(mut value)) => {
                    value.set_sensitive(true);
                    headers.append(key, value);
                }
                _ => self.ignore(&name, "not a list of valid headers"),
            }
        }
        headers
    }
}

/// `key=value` with a percent-encoded value.
fn pair(item: &str) -> Option<(String, String)> {
    let (key, value) = item.split_once('=')?;
    let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
    Some((key.trim().to_owned(), value.into_owned())).filter(|(key, _)| !key.is_empty())
}

/// The running exporter, until it is flushed.
#[derive(Debug)]
pub struct Exporting {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporting {
    /// Exports the last values and stops.
    pub async fn flush(self) {
        self.stop.cancel();
        // The task ends only by this signal, and its last export has a timeout.
        let _ = self.task.await;
    }
}

/// Exports `metrics` from now on. Call it inside a runtime.
pub fn start(metrics: Metrics, options: Options) -> Result<Exporting, Error> {
    let stop = CancellationToken::new();
    let exporter = Exporter {
        wire: Wire::new(&options)?,
        resource: resource(&metrics, &options),
        metrics,
        options,
    };
    let task = tokio::spawn(exporter.run(stop.clone()));
    Ok(Exporting { stop, task })
}

/// Instances of one service need distinct ids, or they would overwrite each other's series.
fn resource(metrics: &Metrics, options: &Options) -> Vec<(String, String)> {
    let instance = format!("{:032x}", rand::random::<u128>());
    let own = [
        ("service.name", metrics.0.service.as_str()),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", &instance),
    ];
    let mut resource = options.resource.clone();
    for (key, value) in own {
        if resource.iter().all(|(known, _)| known != key) {
            resource.push((key.to_owned(), value.to_owned()));
        }
    }
    resource
}

struct Exporter {
    wire: Wire,
    resource: Vec<(String, String)>,
    metrics: Metrics,
    options: Options,
}

impl Exporter {
    async fn run(self, stop: CancellationToken) {
        let every = self.options.interval;
        let mut ticks = interval_at(tokio::time::Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut fails = false;
        loop {
            let is_last = tokio::select! {
                _ = ticks.tick() => false,
                () = stop.cancelled() => true,
            };
            let sent = self.export().await;
            let endpoint = &self.options.endpoint;
            match (&sent, fails) {
                (Ok(()), true) => tracing::info!(endpoint, "exporting metrics again"),
                (Ok(()), false) => {}
                (Err(why), false) => tracing::warn!(endpoint, why, "cannot export metrics"),
                (Err(why), true) => tracing::debug!(endpoint, why, "still cannot export metrics"),
            }
            if is_last {
                return;
            }
            fails = sent.is_err();
        }
    }

    async fn export(&self) -> Result<(), String> {
        let sets = self.metrics.read();
        let now = SystemTime::now();
        let request = otlp::request(&sets, &self.resource, self.metrics.0.since, now);
        let sending = self.wire.send(request, &self.options);
        let sent = timeout(self.options.timeout, sending).await;
        sent.unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }
}

enum Wire {
    Grpc(Channel),
    Http(Box<Client<Connector, Body>>, Uri),
}

impl Wire {
    fn new(options: &Options) -> Result<Self, Error> {
        let dial =
            Dial { address: options.endpoint.clone(), ca: options.ca.clone(), ..Dial::default() };
        let patience = Some(options.timeout);
        let channel = Channel::external(&dial, patience, patience)?;
        Ok(match options.protocol {
            Protocol::Grpc => Wire::Grpc(channel),
            Protocol::HttpProtobuf => {
                let address = || CannotDial::Address(options.endpoint.clone());
                let uri = options.endpoint.parse().map_err(|_| address())?;
                let connector = Connector::new(Trust::with_ca(options.ca.as_deref())?);
                let connector = connector.http1_only().within(patience, patience);
                let client = Client::builder(TokioExecutor::new()).build(connector);
                Wire::Http(Box::new(client), uri)
            }
        })
    }

    async fn send(
        &self,
        request: ExportMetricsServiceRequest,
        options: &Options,
    ) -> Result<(), String> {
        match self {
            Wire::Grpc(channel) => {
                let mut request = tonic::Request::new(request);
                *request.metadata_mut() = MetadataMap::from_headers(options.headers.clone());
                let mut client = MetricsServiceClient::new(channel.clone());
                let answer = client
                    .export(request)
                    .await
                    .map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
                match answer.into_inner().partial_success {
                    Some(partial) if partial.rejected_data_points > 0 => Err(format!(
                        "{} were refused: {}",
                        partial.rejected_data_points, partial.error_message
                    )),
                    _ => Ok(()),
                }
            }
            Wire::Http(client, uri) => {
                let mut post = Request::post(uri.clone())
                    .header(CONTENT_TYPE, "application/x-protobuf")
                    .header(USER_AGENT, AGENT)
                    .body(Body::from(request.encode_to_vec()))
                    .expect("the address was read before and the headers are good");
                post.headers_mut().extend(options.headers.clone());
                let answer =
                    client.request(post).await.map_err(|error| error_chain::one_line(&error))?;
                match answer.status() {
                    status if status.is_success() => Ok(()),
                    StatusCode::NOT_FOUND => {
                        Err("it answered 404: is this the whole address, /v1/metrics?".to_owned())
                    }
                    status => Err(format!("it answered {status}")),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)], endpoint: Option<&str>) -> (Option<Options>, Vec<String>) {
        let env = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let mut reported = Vec::new();
        let options = options(&env, endpoint, |what| reported.push(what));
        (options, reported)
    }

    #[test]
    fn export_is_off_without_an_endpoint() {
        let all = Some("http://collector:4317");
        assert_eq!(read(&[], None).0, None);
        for off in [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")] {
            assert_eq!(read(&[off], all).0, None, "{off:?}");
        }
        assert_eq!(read(&[("OTEL_METRICS_EXPORTER", "prometheus")], all).0, None);
        let asked = read(&[("OTEL_METRICS_EXPORTER", "otlp,prometheus")], None).0.unwrap();
        assert_eq!(asked.endpoint, "http://127.0.0.1:4317");
        let asked = read(&[], all).0.unwrap();
        assert_eq!((Some(asked.endpoint.as_str()), asked.protocol), (all, Protocol::Grpc));
        assert_eq!((asked.interval.as_secs(), asked.timeout.as_secs()), (60, 10));
    }

    #[test]
    fn variables_of_metrics_override_those_of_all_signals() {
        let options = read(
            &[
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
                ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2000"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20key, x-team = blue"),
                ("OTEL_METRIC_EXPORT_INTERVAL", "250"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=no,deployment.environment.name=prod"),
                ("OTEL_SERVICE_NAME", "edge"),
            ],
            Some("http://collector:4318/"),
        );
        let options = options.0.unwrap();
        assert_eq!(options.endpoint, "http://collector:4318/v1/metrics");
        assert_eq!(options.protocol, Protocol::HttpProtobuf);
        assert_eq!((options.interval.as_millis(), options.timeout.as_millis()), (250, 2000));
        assert_eq!(options.headers["api-key"], "a key");
        assert!(!format!("{options:?}").contains("a key"), "a key is no business of a log");
        let attributes = resource(&Metrics::of("faultline-gateway"), &options);
        let of = |key: &str| attributes.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        assert_eq!(of("service.name"), Some("edge"));
        assert_eq!(of("deployment.environment.name"), Some("prod"));
        assert_eq!(of("service.instance.id").map(str::len), Some(32));
        let own = [("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m:1/as/it/is")];
        assert_eq!(read(&own, None).0.unwrap().endpoint, "http://m:1/as/it/is");
    }

    #[test]
    fn unusable_value_is_reported_and_ignored() {
        for (name, value) in [
            ("OTEL_METRICS_EXPORTER", "console"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "soon"),
            ("OTEL_RESOURCE_ATTRIBUTES", "nonsense"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ] {
            let (options, reported) = read(&[(name, value)], Some("http://x:1"));
            assert_eq!(options, read(&[], Some("http://x:1")).0, "{name}");
            assert!(reported.len() == 1 && reported[0].starts_with(name), "{reported:?}");
            assert!(!reported[0].contains("hunter2"), "{reported:?}");
        }
    }
}
