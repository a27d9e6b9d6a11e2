//! What the spans of one process say: which hops there are, which of them failed, and that no
//! innocent one is marked. Spans are collected for the whole process, so every test looks only at
//! its own trace. How they reach a collector is in `tests/traces`.

use std::sync::OnceLock;

use faultline::Mesh;
use faultline_chassis::telemetry::{self, InMemory};
use faultline_tests::{
    Rpc, in_process,
    otlp::{Seen, read_memory, tree},
    rpc::message,
    task::{self, COMPLETED, FAILED},
    until,
    wait::SOON,
};

fn collected() -> InMemory {
    static SPANS: OnceLock<InMemory> = OnceLock::new();
    *SPANS.get_or_init(|| telemetry::in_memory().expect("nothing else listens in this process"))
}

/// The finished spans of a trace from the outermost to the innermost, when there are so many.
async fn chain(trace: &str, hops: usize) -> Vec<Seen> {
    let mut spans = until(&format!("{hops} spans are finished"), SOON, async || {
        let spans: Vec<_> =
            read_memory(&collected().spans()).into_iter().filter(|s| s.trace == trace).collect();
        (spans.len() >= hops).then_some(spans)
    })
    .await;
    assert_eq!(spans.len(), hops, "one span per hop and no more:\n{}", tree(&spans));
    spans.sort_by_key(|span| span.start);
    let mut chain: Vec<Seen> = Vec::new();
    let mut parent = "00f067aa0ba902b7".to_owned();
    while let Some(span) = spans.iter().find(|span| span.parent == parent) {
        parent.clone_from(&span.id);
        chain.push(span.clone());
    }
    assert_eq!(chain.len(), hops, "each is the child of the one before:\n{}", tree(&spans));
    chain
}

/// The six hops of a task.
fn check_hops(chain: &[Seen], method: &str) {
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
async fn a_task_is_one_span_per_hop_in_the_clients_trace() {
    collected();
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::start(in_process(dir.path())).await.unwrap();
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
async fn a_failed_attempt_marks_its_span_and_no_innocent_one() {
    collected();
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::start(in_process(dir.path())).await.unwrap();
    let (trace_id, header) = crate::trace();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script").header("traceparent", header);
    let task = rpc.send("say a; fail DATA_LOSS text=\"the disk is gone\"").await;
    assert_eq!(task::state(&task), FAILED);
    let spans = chain(&trace_id, 6).await;
    check_hops(&spans, "SendMessage");
    // The call went well: it returned a failed task. The agent did not.
    let errors: Vec<_> = spans.iter().map(|span| span.error.is_some()).collect();
    assert_eq!(errors, [false, false, false, true, true, true]);
    for span in &spans[3..] {
        assert_eq!(span.error.as_deref(), Some("the disk is gone"));
        assert_eq!(span.get("error.type"), "DATA_LOSS", "{span:?}");
    }
    // Born once, and seen at every hop.
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["spanId"], spans[5].id, "{failure}");
    for (at, span) in spans.iter().enumerate() {
        let born = usize::from(at == 5);
        let names = span.event_names();
        assert_eq!(names.iter().filter(|name| **name == "exception").count(), born, "{span:?}");
        let ids = span.said("faultline.failure", "faultline.failure.id");
        assert_eq!(ids, [failure["id"].as_str().unwrap()], "{span:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_is_the_callers_does_not_mark_who_serves() {
    collected();
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::start(in_process(dir.path())).await.unwrap();
    let (trace_id, header) = crate::trace();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("script").header("traceparent", header);
    let task = rpc.send("fail INVALID_ARGUMENT text=\"whole euros\"").await;
    assert_eq!(task::state(&task), FAILED);
    let spans = chain(&trace_id, 6).await;
    let errors: Vec<_> = spans.iter().map(|span| span.error.is_some()).collect();
    assert_eq!(errors, [false, false, false, true, true, false], "{}", tree(&spans));
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
    let spans = until("its spans are finished", SOON, async || {
        let spans: Vec<_> =
            read_memory(&collected().spans()).into_iter().filter(|s| s.trace == trace_id).collect();
        (spans.len() >= 6).then_some(spans)
    });
    let spans = spans.await;
    let roots = spans.iter().filter(|span| span.parent.is_empty()).count();
    assert_eq!((spans.len(), roots), (6, 1), "{}", tree(&spans));
}
