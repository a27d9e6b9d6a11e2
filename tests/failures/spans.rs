//! What the spans say: one per hop, each the child of the hop before, all in the client's trace,
//! and the failed one marked. Spans are collected for the whole process, so every test looks only
//! at its own trace.

use std::{collections::HashMap, sync::OnceLock};

use faultline::Mesh;
use faultline_chassis::telemetry;
use faultline_tests::{
    Rpc, in_process,
    rpc::message,
    task::{self, COMPLETED, FAILED},
    until,
    wait::SOON,
};
use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};

fn collected() -> &'static InMemorySpanExporter {
    static SPANS: OnceLock<InMemorySpanExporter> = OnceLock::new();
    SPANS.get_or_init(|| telemetry::in_memory().expect("nothing else listens in this process"))
}

fn spans_of(trace_id: &str) -> Vec<SpanData> {
    let spans = collected().get_finished_spans().expect("the exporter is not shut down");
    spans.into_iter().filter(|s| s.span_context.trace_id().to_string() == trace_id).collect()
}

/// The finished spans of a trace from the outermost to the innermost, when there are so many.
async fn chain(trace_id: &str, hops: usize) -> Vec<SpanData> {
    let spans = until(&format!("{hops} spans are finished"), SOON, async || {
        let spans = spans_of(trace_id);
        (spans.len() >= hops).then_some(spans)
    })
    .await;
    let names: Vec<_> = spans.iter().map(|s| s.name.to_string()).collect();
    assert_eq!(spans.len(), hops, "one span per hop and no more: {names:?}");
    let by_parent: HashMap<_, _> =
        spans.iter().map(|s| (s.parent_span_id.to_string(), s.clone())).collect();
    let mut parent = "00f067aa0ba902b7".to_owned();
    let mut chain = Vec::new();
    while let Some(span) = by_parent.get(&parent) {
        parent = span.span_context.span_id().to_string();
        chain.push(span.clone());
    }
    assert_eq!(chain.len(), hops, "each is the child of the one before: {names:?}");
    chain
}

fn is_error(span: &SpanData) -> bool {
    matches!(span.status, Status::Error { .. })
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|a| a.key.as_str() == key).map(|a| a.value.to_string())
}

/// The four hops of a task.
fn check_hops(chain: &[SpanData], method: &str) {
    let kinds: Vec<_> = chain.iter().map(|s| s.span_kind.clone()).collect();
    let expected = [SpanKind::Server, SpanKind::Server, SpanKind::Client, SpanKind::Server];
    assert_eq!(kinds, expected);
    let names: Vec<_> = chain.iter().map(|s| s.name.to_string()).collect();
    assert_eq!(names[0], "POST /agents/{agent}");
    assert_eq!(names[1], format!("lf.a2a.v1.A2AService/{method}"));
    assert_eq!(names[2], "attempt script");
    assert_eq!(names[3], "attempt script");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_one_span_per_hop_in_the_clients_trace() {
    collected();
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let (trace_id, header) = crate::trace();
    let task = rpc.header("traceparent", header).send("say working; chunk a").await;
    assert_eq!(task::state(&task), COMPLETED);
    let spans = chain(&trace_id, 4).await;
    check_hops(&spans, "SendMessage");
    assert!(!spans.iter().any(is_error), "{spans:?}");
    let (trace_id, header) = crate::trace();
    let rpc = rpc.header("traceparent", header);
    rpc.stream("SendStreamingMessage", message("chunk a")).await.unwrap().all().await;
    check_hops(&chain(&trace_id, 4).await, "SendStreamingMessage");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_marks_its_span_and_no_innocent_one() {
    collected();
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::start(in_process(dir.path())).await.unwrap();
    let (trace_id, header) = crate::trace();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script").header("traceparent", header);
    let task = rpc.send("say a; fail DATA_LOSS text=\"the disk is gone\"").await;
    assert_eq!(task::state(&task), FAILED);
    let spans = chain(&trace_id, 4).await;
    check_hops(&spans, "SendMessage");
    // The call went well: it returned a failed task. The attempt did not.
    let errors: Vec<_> = spans.iter().map(is_error).collect();
    assert_eq!(errors, [false, false, true, true]);
    for span in &spans[2..] {
        assert_eq!(span.status, Status::error("the disk is gone"));
        assert_eq!(attribute(span, "error.type").as_deref(), Some("DATA_LOSS"), "{span:?}");
    }
    // The record leads to the span in which it was born.
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["spanId"], spans[3].span_context.span_id().to_string(), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_trace_is_given_one() {
    collected();
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let task = rpc.send("fail INTERNAL").await;
    let failure = &task["metadata"]["faultline.dev/failure"];
    let trace_id = failure["traceId"].as_str().expect("a trace id always exists");
    assert_eq!(trace_id.len(), 32);
    assert_eq!(rpc.inspect(task::id(&task)).await["traceId"], trace_id);
    let found = until("its spans are finished", SOON, async || {
        let spans = spans_of(trace_id);
        (spans.len() >= 4).then_some(spans.len())
    });
    assert_eq!(found.await, 4);
}
