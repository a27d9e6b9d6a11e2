//! Logs and spans of one process: the standard `OTEL_` variables, recording, and the export by
//! OTLP. Without an exporter no span is recorded; trace ids exist all the same, because [`trace`]
//! propagates them.
//!
//! The spans of the mesh do not use `tracing` or the SDK: a sampled task makes six of them, and all
//! six may cost some 10 µs (`faultline bench tracing`). A span is recorded directly as its OTLP
//! bytes. The spans of agents come through OpenTelemetry's API and SDK (`bridge`) and are children
//! of their attempts.
//!
//! May use: net.

mod bridge;
mod export;
mod export_queue;
mod log;
mod panic_hook;
mod sampler;
mod semconv;
mod settings;
mod span;
mod span_guard;
pub mod trace;
mod wire;

use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use self::{
    export::{Exporter, Flow},
    export_queue::{ExportQueue, Tracing},
    settings::{BadEndpoint, Settings},
};
use crate::{config::Environment, net::tls};

pub use log::{LogContext, with_log_context};
pub use semconv::{Outcome, RPC_STATUS, is_server_error};
pub use span::{Finished, Span, SpanKind, link};
pub use span_guard::{ClientSpan, SharedSpan};
pub use trace::TraceContext;
pub use wire::Value;

/// The log and export settings of a process.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A `tracing` filter such as `info` or `faultline_coordinator=debug`.
    pub filter: Option<String>,
    /// JSON lines instead of text.
    pub json: bool,
    /// `service.name` of the exported resource.
    pub service: String,
    /// The OTLP endpoint; none: no export, unless the environment has an endpoint.
    pub otlp_endpoint: Option<String>,
    /// Spans that end in error are exported although their trace is not sampled.
    pub keep_errors: bool,
    /// Spans of agents also have the attributes of OpenInference.
    pub openinference: bool,
    /// The standard variables, `OTEL_…`.
    pub otel: Environment,
}

/// The running exporter. Keep it until the end of `main`, then flush it.
#[derive(Debug)]
pub struct Telemetry {
    exporter: Option<Exporter>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a log filter: '{filter}' ({source})")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("cannot export to '{0}': say http://HOST:PORT or https://HOST:PORT")]
    Endpoint(String),
    #[error("no CA to verify the collector with")]
    Ca(#[from] tls::Error),
    #[error("telemetry was already started in this process")]
    Twice,
}

/// Starts logging to stderr and, if configured, exporting.
pub fn start(options: Options) -> Result<Telemetry, Error> {
    let endpoint = options.otlp_endpoint.as_deref();
    let settings = Settings::read(&options.otel, endpoint, &options.service)
        .map_err(|BadEndpoint(endpoint)| Error::Endpoint(endpoint))?;
    let filter = options.filter.as_deref().unwrap_or("info");
    let filter = || {
        EnvFilter::try_new(filter)
            .map_err(|source| Error::Filter { filter: filter.to_owned(), source })
    };
    let lines = log::layer(filter()?, options.json);
    let records = match settings.logs {
        Some(_) => Some(log::OtlpLayer.with_filter(filter()?)),
        None => None,
    };
    let agents = settings.traces.is_some().then(bridge::layer);
    let started = tracing_subscriber::registry().with(lines).with(records).with(agents).try_init();
    started.map_err(|_| Error::Twice)?;
    panic_hook::install();
    for what in &settings.ignored {
        tracing::warn!("ignored an unusable setting: {what}");
    }
    Ok(Telemetry { exporter: exporter(settings, &options)? })
}

fn exporter(settings: Settings, options: &Options) -> Result<Option<Exporter>, Error> {
    sampler::set(settings.sampler);
    let mut flows = Vec::new();
    if let Some(target) = settings.traces {
        let tracing = Tracing {
            queue: ExportQueue::new(target.batch_max, target.queue_max),
            keep_errors: options.keep_errors,
            openinference: options.openinference,
        };
        flows.push(Flow { queue: export_queue::open_traces(tracing).ok_or(Error::Twice)?, target });
    }
    if let Some(target) = settings.logs {
        let queue = ExportQueue::new(target.batch_max, target.queue_max);
        flows.push(Flow { queue: export_queue::open_logs(queue).ok_or(Error::Twice)?, target });
    }
    if flows.is_empty() { Ok(None) } else { Ok(Some(Exporter::start(flows, &settings.resource)?)) }
}

/// Whether spans are recorded. If not, their attributes need not be computed.
pub fn is_enabled() -> bool {
    export_queue::is_enabled()
}

/// The context of an attempt or a call below `parent`. A process that exports no spans propagates
/// the parent itself, like a no-op tracer: ids of spans that are never exported would break the
/// trace.
pub fn child_context(parent: &TraceContext) -> TraceContext {
    if is_enabled() || !parent.has_span() { parent.child() } else { parent.clone() }
}

/// The current time as spans record it.
pub fn now_ns() -> u64 {
    wire::now()
}

impl Telemetry {
    /// Exports the queued records.
    pub async fn flush(self) {
        if let Some(exporter) = self.exporter {
            exporter.finish().await;
        }
    }
}

/// Every span of this process from now on, for tests.
#[derive(Clone, Copy, Debug)]
pub struct InMemory(&'static ExportQueue);

/// Collects spans in memory instead of exporting them.
pub fn in_memory() -> Result<InMemory, Error> {
    let queue = ExportQueue::new(usize::MAX, usize::MAX);
    let tracing = Tracing { queue, keep_errors: false, openinference: false };
    let queue = export_queue::open_traces(tracing).ok_or(Error::Twice)?;
    tracing_subscriber::registry().with(bridge::layer()).try_init().map_err(|_| Error::Twice)?;
    Ok(InMemory(queue))
}

impl InMemory {
    /// The ended spans, as the bytes of OTLP's `ScopeSpans`.
    pub fn spans(&self) -> Vec<u8> {
        self.0.snapshot()
    }
}
