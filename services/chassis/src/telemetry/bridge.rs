//! The bridge for spans of agents: an agent records them with `tracing` or with OpenTelemetry's
//! API, and they become children of its attempt and are exported like the spans of the mesh. An
//! agent is instrumented like any program and needs no knowledge of the mesh.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    Context, KeyValue, Value as OtelValue, global,
    trace::{SpanKind, Status, TraceContextExt, TracerProvider},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{SdkTracerProvider, SpanData, SpanProcessor},
};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::{Layer, filter, registry::LookupSpan};

use super::TraceContext;
use super::{
    Span, export_queue,
    log::{LogContext, has_context},
    span::field,
    wire::{self, Value},
};

/// Libraries below the agent. Their spans are many and not meant for the agent's trace.
const LIBRARIES: [&str; 9] =
    ["faultline", "h2", "hyper", "opentelemetry", "rustls", "tokio", "tonic", "tower", "want"];

/// Records the spans of agents. The SDK requires one for the whole process.
pub(super) fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let provider = SdkTracerProvider::builder().with_span_processor(IntoQueue).build();
    let tracer = provider.tracer("agent");
    global::set_tracer_provider(provider);
    global::set_text_map_propagator(TraceContextPropagator::new());
    let of_agents = filter::dynamic_filter_fn(|about, _| is_agents(about) && has_context());
    tracing_opentelemetry::layer().with_tracer(tracer).with_filter(of_agents)
}

fn is_agents(about: &Metadata<'_>) -> bool {
    let root = about.target().split("::").next().unwrap_or_default();
    let family = root.split('_').next().unwrap_or_default();
    !LIBRARIES.contains(&family)
}

/// Spans that `future` records become children of the span of `work`, which changes after an
/// answer.
pub(super) async fn below<F: Future>(work: Arc<dyn LogContext>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|polling| {
        let context = || Context::new().with_remote_span_context((&work.trace()).into());
        let _below = export_queue::is_enabled().then(|| context().attach());
        future.as_mut().poll(polling)
    })
    .await
}

/// Puts the spans that the SDK has recorded into the export queue.
#[derive(Debug)]
struct IntoQueue;

impl SpanProcessor for IntoQueue {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        convert(&span).finish_at(Some(nanos(span.end_time))).send();
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

fn convert(data: &SpanData) -> Span {
    let context = TraceContext::from(&data.span_context);
    let parent = context.above(u64::from_be_bytes(data.parent_span_id.to_bytes()));
    let kind = match data.span_kind {
        SpanKind::Internal => super::SpanKind::Internal,
        SpanKind::Server => super::SpanKind::Server,
        SpanKind::Client => super::SpanKind::Client,
        SpanKind::Producer => super::SpanKind::Producer,
        SpanKind::Consumer => super::SpanKind::Consumer,
    };
    let began = Some(nanos(data.start_time));
    let mut span = Span::named(kind, context, &parent, began, format_args!("{}", data.name));
    span.role("agent");
    for attribute in &data.attributes {
        convert_attribute(attribute, |key, value| {
            span.set(key, value);
        });
    }
    for event in &data.events.events {
        span.event_at(nanos(event.timestamp), &event.name, |out| {
            for attribute in &event.attributes {
                convert_attribute(attribute, |key, value| {
                    wire::attribute(out, field::EVENT_ATTRIBUTES, key, value)
                });
            }
        });
    }
    for link in &data.links.links {
        span.link(&TraceContext::from(&link.span_context), "agent");
    }
    if let Status::Error { description } = &data.status {
        span.mark_failed(description);
    }
    span
}

/// A list is exported as text.
fn convert_attribute(attribute: &KeyValue, mut set: impl FnMut(&str, Value<'_>)) {
    let key = attribute.key.as_str();
    match &attribute.value {
        OtelValue::Bool(flag) => set(key, (*flag).into()),
        OtelValue::I64(number) => set(key, (*number).into()),
        OtelValue::F64(number) => set(key, (*number).into()),
        OtelValue::String(text) => set(key, text.as_str().into()),
        other => set(key, other.as_str().as_ref().into()),
    }
}

fn nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
