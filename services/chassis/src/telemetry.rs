//! Logs and spans of one process. Hop spans have a target of their own and only the exporter
//! listens to it, so without an exporter a span costs next to nothing; trace ids exist all the
//! same, because `chassis::trace` carries them.

use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_sdk::{
    Resource,
    trace::{InMemorySpanExporter, SdkTracerProvider},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Target of the spans that stand for one hop each: `info_span!(target: HOP, …)`.
pub const HOP: &str = "faultline::hop";

/// How the process logs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A `tracing` filter such as `info` or `faultline_coordinator=debug`.
    pub filter: Option<String>,
    /// One JSON object a line instead of text for people.
    pub json: bool,
    /// `service.name` of exported spans.
    pub service: String,
    /// Where spans go by OTLP over gRPC; none: nowhere.
    pub otlp_endpoint: Option<String>,
}

/// Keep it until the end of `main`, then flush it.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a log filter: '{filter}' ({source})")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("cannot export spans to '{endpoint}'")]
    Exporter { endpoint: String, source: opentelemetry_otlp::ExporterBuildError },
    #[error("telemetry was already started in this process")]
    Twice,
}

/// Starts logging to stderr and, if asked, exporting. Inside a runtime: the exporter needs one.
pub fn start(options: Options) -> Result<Telemetry, Error> {
    let provider = match &options.otlp_endpoint {
        Some(endpoint) => Some(exporter(endpoint, &options.service)?),
        None => None,
    };
    let filter = options.filter.as_deref().unwrap_or("info,opentelemetry=warn");
    let filter = EnvFilter::try_new(filter)
        .map_err(|source| Error::Filter { filter: filter.to_owned(), source })?;
    let registry = tracing_subscriber::registry();
    let done = match &provider {
        Some(provider) => {
            registry.with(span_layer(provider)).with(log_layer(filter, options.json)).try_init()
        }
        None => registry.with(log_layer(filter, options.json)).try_init(),
    };
    done.map_err(|_| Error::Twice)?;
    Ok(Telemetry { provider })
}

fn log_layer<S>(filter: EnvFilter, json: bool) -> impl Layer<S>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a> + Send + Sync,
{
    let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let text = match json {
        true => text.json().flatten_event(true).boxed(),
        false => text.with_ansi(ansi && std::env::var_os("NO_COLOR").is_none()).boxed(),
    };
    // The log must not ask for hop spans, or they would be made for nobody.
    let not_hops = Targets::new().with_default(tracing::Level::TRACE).with_target(HOP, OFF);
    text.with_filter(not_hops.and(filter))
}

const OFF: tracing_subscriber::filter::LevelFilter = tracing_subscriber::filter::LevelFilter::OFF;

/// Collects every hop span of this process, for tests.
pub fn in_memory() -> Result<InMemorySpanExporter, Error> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let done = tracing_subscriber::registry().with(span_layer(&provider)).try_init();
    done.map_err(|_| Error::Twice)?;
    Ok(exporter)
}

fn span_layer(provider: &SdkTracerProvider) -> impl Layer<Registry> + use<> {
    let hops = Targets::new().with_target(HOP, tracing::Level::INFO);
    tracing_opentelemetry::layer().with_tracer(provider.tracer("faultline")).with_filter(hops)
}

fn exporter(endpoint: &str, service: &str) -> Result<SdkTracerProvider, Error> {
    use opentelemetry_otlp::WithExportConfig;
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| Error::Exporter { endpoint: endpoint.to_owned(), source })?;
    let resource = Resource::builder()
        .with_attribute(KeyValue::new("service.name", service.to_owned()))
        .build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

impl Telemetry {
    /// Sends what is buffered. On a blocking thread: the SDK waits, and would wait for the very
    /// runtime it blocks.
    pub async fn flush(self) {
        if let Some(provider) = self.provider {
            let done = tokio::task::spawn_blocking(move || provider.shutdown()).await;
            if let Ok(Err(error)) = done {
                tracing::warn!(%error, "some spans could not be sent");
            }
        }
    }
}
