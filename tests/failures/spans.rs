//! Spans of one process: one span per hop, and an error status on failed hops only. Spans are
//! collected for the whole process, so each test reads its own trace. `tests/traces` covers the
//! export to a collector.

use std::sync::OnceLock;

use faultline::LocalMesh;
use faultline_chassis::telemetry::{self, InMemory};
use faultline_tests::{
    Rpc, in_process,
    otlp::{SpanRecord, read_memory, tree},
    rpc::message,
    task::{self, COMPLETED, FAILED},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker};
use opentelemetry::{
    global,
    trace::{Span as _, Status, Tracer as _},
};
use tracing::Instrument;

fn collector() -> InMemory {
    static SPANS: OnceLock<InMemory> = OnceLock::new();
    *SPANS.get_or_init(|| telemetry::in_memory().expect("no other subscriber is set"))
}

/// Waits for `hops` finished spans of a trace; returns them from the outermost to the innermost.
async fn chain(trace: &str, hops: usize) -> Vec<SpanRecord> {
    let mut spans = until(&format!("{hops} spans are finished"), SOON, async || {
        let spans: Vec<_> =
            read_memory(&collector().spans()).into_iter().filter(|s| s.trace == trace).collect();
        (spans.len() >= hops).then_some(spans)
    })
    .await;
    assert_eq!(spans.len(), hops, "one span per hop and no more:\n{}", tree(&spans));
    spans.sort_by_key(|span| span.start);
    let mut chain: Vec<SpanRecord> = Vec::new();
    let mut parent = "00f067aa0ba902b7".to_owned();
    while let Some(span) = spans.iter().find(|span| span.parent == parent) {
        parent.clone_from(&span.id);
        chain.push(span.clone());
    }
    assert_eq!(chain.len(), hops, "each span is the child of its predecessor:\n{}", tree(&spans));
    chain
}

/// Checks the six hops of a task.
fn check_hops(chain: &[SpanRecord], method: &str) {
    let rpc = format!("lf.a2a.v1.A2AService/{method}");
    let seen: Vec<_> = chain.iter().map(|span| (span.kind, span.name.as_str())).collect();
    let expected = [
        ("server", "POST /agents/{agent}"),
        ("client", &rpc),
        ("server", &rpc),
        ("client", "invoke_agent script"),
        ("client", "attempt script"),
        ("server", "attempt script"),
    ];
    assert_eq!(seen, expected);
    for span in chain {
        assert!(span.start <= span.end, "{span:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_has_one_span_per_hop_in_the_trace_of_the_client() {
    collector();
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let (trace_id, header) = crate::trace();
    let task = rpc.header("traceparent", header).send("say working; chunk a").await;
    assert_eq!(task::state(&task), COMPLETED);
    let spans = chain(&trace_id, 6).await;
    check_hops(&spans, "SendMessage");
    assert!(!spans.iter().any(|span| span.error.is_some()), "{spans:?}");
    let (trace_id, header) = crate::trace();
    let rpc = rpc.header("traceparent", header);
    rpc.stream("SendStreamingMessage", message("chunk a")).await.unwrap().all().await;
    check_hops(&chain(&trace_id, 6).await, "SendStreamingMessage");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_attempt_marks_its_own_spans_only() {
    collector();
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let (trace_id, header) = crate::trace();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script").header("traceparent", header);
    let task = rpc.send("say a; fail DATA_LOSS text=\"the disk is gone\"").await;
    assert_eq!(task::state(&task), FAILED);
    let spans = chain(&trace_id, 6).await;
    check_hops(&spans, "SendMessage");
    // The call succeeded and returned a failed task; the attempt of the agent failed.
    let errors: Vec<_> = spans.iter().map(|span| span.error.is_some()).collect();
    assert_eq!(errors, [false, false, false, true, true, true]);
    for span in &spans[3..] {
        assert_eq!(span.error.as_deref(), Some("the disk is gone"));
        assert_eq!(span.get("error.type"), "DATA_LOSS", "{span:?}");
    }
    // The exception is recorded at its origin, the failure at every hop.
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["spanId"], spans[5].id, "{failure}");
    for (at, span) in spans.iter().enumerate() {
        let exceptions = usize::from(at == 5);
        let names = span.event_names();
        assert_eq!(
            names.iter().filter(|name| **name == "exception").count(),
            exceptions,
            "{span:?}"
        );
        let ids = span.event_attributes("faultline.failure", "faultline.failure.id");
        assert_eq!(ids, [failure["id"].as_str().unwrap()], "{span:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_the_caller_does_not_mark_the_server_span() {
    collector();
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let (trace_id, header) = crate::trace();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script").header("traceparent", header);
    let task = rpc.send("fail INVALID_ARGUMENT text=\"whole euros\"").await;
    assert_eq!(task::state(&task), FAILED);
    let spans = chain(&trace_id, 6).await;
    let errors: Vec<_> = spans.iter().map(|span| span.error.is_some()).collect();
    assert_eq!(errors, [false, false, false, true, true, false], "{}", tree(&spans));
}

/// An agent instrumented with `tracing` and with the OpenTelemetry API.
struct Instrumented;

impl Agent for Instrumented {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let span = tracing::info_span!("look up", customer = 7, otel.kind = "client");
        let found = async {
            tokio::task::yield_now().await;
            tracing::warn!("the cache is cold");
            tracing::info_span!("query", rows = 2.5).in_scope(|| "Ann")
        };
        let found = found.instrument(span).await;
        // Spans of the runtime itself are not attributed to the agent.
        cx.status("looking").await?;
        let mut own = global::tracer("billing").start("charge");
        own.set_status(Status::error("the card was refused"));
        own.end();
        cx.artifact("output", found).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_an_agent_are_children_of_its_attempt() {
    collector();
    let dir = tempfile::tempdir().unwrap();
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let build = |config| Worker::new(config).offer(Offer::new("instrumented", Instrumented));
    mesh.attach(Config::default(), build).await.unwrap();
    let (trace_id, header) = crate::trace();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("instrumented").header("traceparent", header);
    assert_eq!(task::state(&rpc.send("x").await), COMPLETED);
    let spans = until("all spans are finished", SOON, async || {
        let spans: Vec<_> =
            read_memory(&collector().spans()).into_iter().filter(|s| s.trace == trace_id).collect();
        (spans.len() >= 9).then_some(spans)
    })
    .await;
    assert_eq!(spans.len(), 9, "{}", tree(&spans));
    let named = |name: &str, kind: &str| {
        let span = spans.iter().find(|span| span.name == name && span.kind == kind);
        span.unwrap_or_else(|| panic!("no {kind} {name}:\n{}", tree(&spans)))
    };
    let attempt = named("attempt instrumented", "server");
    let looked = named("look up", "client");
    let query = named("query", "internal");
    let charge = named("charge", "internal");
    assert_eq!(
        [&looked.parent, &query.parent, &charge.parent],
        [&attempt.id, &looked.id, &attempt.id],
        "{}",
        tree(&spans)
    );
    assert_eq!((looked.get("customer"), query.get("rows")), ("7", "2.5"));
    assert_eq!(looked.event_names(), ["the cache is cold"]);
    assert_eq!(charge.error.as_deref(), Some("the card was refused"));
    for span in [looked, query, charge] {
        assert_eq!(span.get("faultline.role"), "agent");
        assert!(attempt.start <= span.start && span.end <= attempt.end, "{}", tree(&spans));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_without_a_trace_gets_a_new_trace() {
    collector();
    let dir = tempfile::tempdir().unwrap();
    let mesh = LocalMesh::start(in_process(dir.path())).await.unwrap();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script");
    let task = rpc.send("fail INTERNAL").await;
    let failure = &task["metadata"]["faultline.dev/failure"];
    let trace_id = failure["traceId"].as_str().expect("a failure has a trace id");
    assert_eq!(trace_id.len(), 32);
    assert_eq!(rpc.inspect(task::id(&task)).await["traceId"], trace_id);
    let spans = until("the spans are finished", SOON, async || {
        let spans: Vec<_> =
            read_memory(&collector().spans()).into_iter().filter(|s| s.trace == trace_id).collect();
        (spans.len() >= 6).then_some(spans)
    });
    let spans = spans.await;
    let roots = spans.iter().filter(|span| span.parent.is_empty()).count();
    assert_eq!((spans.len(), roots), (6, 1), "{}", tree(&spans));
}
