//! Sampling: the gateway decides once for all hops; optionally, failed spans are always exported.

use faultline_tests::{Collector, otlp::tree, task};

use crate::{CLIENT, exporting, trace};

#[tokio::test(flavor = "multi_thread")]
async fn unsampled_trace_is_exported_by_no_process() {
    let collector = Collector::start().await;
    let cluster = exporting(&collector).start().await;
    let rpc = cluster.rpc().agent("script");
    let (quiet, _) = trace();
    let unsampled = format!("00-{quiet}-{CLIENT}-00");
    let task = rpc.header("traceparent", unsampled).send("delegate script { fail INTERNAL }").await;
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["traceId"], quiet.as_str(), "failures have trace ids without sampling");
    let (loud, header) = trace();
    rpc.header("traceparent", header).send("chunk a").await;
    collector.until(&loud, 6).await;
    assert_eq!(tree(&collector.spans(&quiet)), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_decides_the_sampling_of_all_hops() {
    let collector = Collector::start().await;
    let plan = exporting(&collector)
        .env("OTEL_TRACES_SAMPLER", "traceidratio")
        .env("OTEL_TRACES_SAMPLER_ARG", "0.5");
    let cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    // By the lower half of the trace id, ignoring the flag of the caller.
    let (low, high) = ("11111111111111110000000000000001", "1111111111111111fffffffffffffff1");
    for id in [low, high] {
        rpc.header("traceparent", format!("00-{id}-{CLIENT}-01"))
            .send("delegate echo { hi }")
            .await;
    }
    let sampled = collector.until(low, 11).await;
    assert_eq!(sampled.len(), 11, "{}", tree(&sampled));
    assert_eq!(tree(&collector.spans(high)), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_spans_of_unsampled_traces_are_kept_on_request() {
    let collector = Collector::start().await;
    let plan = exporting(&collector).env("FAULTLINE_LOG__KEEP_ERRORS", "true");
    let cluster = plan.start().await;
    let (trace_id, _) = trace();
    let rpc = cluster.rpc().agent("script");
    let rpc = rpc.header("traceparent", format!("00-{trace_id}-{CLIENT}-00"));
    rpc.send("fail DATA_LOSS text=gone").await;
    let spans = collector.until(&trace_id, 3).await;
    let names: Vec<_> = spans.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["invoke_agent script", "attempt script", "attempt script"]);
    for span in &spans {
        assert_eq!(span.error.as_deref(), Some("gone"));
        assert_eq!(span.get("faultline.trace.partial"), "true");
    }
    assert_eq!(task::state(&rpc.send("chunk fine").await), task::COMPLETED);
    assert_eq!(collector.spans(&trace_id).len(), 3, "completed spans are not kept");
}
