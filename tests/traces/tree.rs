//! The span tree of a delegated, retried and failed task.

use faultline_tests::{
    Collector,
    otlp::{SpanRecord, tree},
    task::{self, CANCELED, COMPLETED, FAILED},
};
use serde_json::{Value, json};

use crate::{CLIENT, exporting, trace};

const SCRIPT: &str =
    "delegate script { fail UNAVAILABLE text=\"the ledger is away\" code=LEDGER_7 }";
const SEND: &str = "lf.a2a.v1.A2AService/SendMessage";

/// The only span of this name and kind below `parent`.
fn below<'a>(spans: &'a [SpanRecord], parent: &str, kind: &str, name: &str) -> &'a SpanRecord {
    let found: Vec<_> =
        spans.iter().filter(|s| s.parent == parent && s.kind == kind && s.name == name).collect();
    let [one] = found.as_slice() else { panic!("one {kind} {name}:\n{}", tree(spans)) };
    one
}

fn check(span: &SpanRecord, attributes: &[(&str, &str)]) {
    for (key, value) in attributes {
        assert_eq!(span.get(key), *value, "{key} of {span:#?}");
    }
}

/// The spans of one hop of the tree, beginning with the call that starts the task.
struct Hop<'a> {
    serving: &'a SpanRecord,
    run: &'a SpanRecord,
    attempts: Vec<(&'a SpanRecord, &'a SpanRecord)>,
}

fn hop<'a>(spans: &'a [SpanRecord], calling: &'a SpanRecord) -> Hop<'a> {
    let serving = below(spans, &calling.id, "server", SEND);
    let run = below(spans, &serving.id, "client", "invoke_agent script");
    let attempts = spans.iter().filter(|s| s.parent == run.id && s.name == "attempt script");
    let attempts = attempts.map(|s| (s, below(spans, &s.id, "server", "attempt script")));
    Hop { serving, run, attempts: attempts.collect() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tree_of_a_delegated_retried_failed_task_is_complete() {
    let collector = Collector::start().await;
    let plan =
        exporting(&collector).env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=t");
    let cluster = plan.start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("script").header("traceparent", header);
    let task = rpc.header("tracestate", "vendor=opaque").send(SCRIPT).await;
    assert_eq!(task::state(&task), FAILED);
    let spans = collector.until(&trace_id, 13).await;
    let expected = format!(
        "server POST /agents/{{agent}}
  client {SEND}
    server {SEND}
      client invoke_agent script ✗
        client attempt script ✗
          server attempt script ✗
            client {SEND}
              server {SEND}
                client invoke_agent script ✗
                  client attempt script ✗
                    server attempt script ✗
                  client attempt script ✗
                    server attempt script ✗
"
    );
    assert_eq!(tree(&spans), expected, "the exact tree");
    check_edge(&spans, &task);
    let edge = below(&spans, CLIENT, "server", "POST /agents/{agent}");
    let outer = hop(&spans, below(&spans, &edge.id, "client", SEND));
    check_outer(&outer, &task);
    let delegating = below(&spans, &outer.attempts[0].1.id, "client", SEND);
    check(delegating, &[("faultline.role", "worker"), ("rpc.response.status_code", "OK")]);
    assert_eq!(delegating.error, None, "the call succeeded and returned a failed task");
    let inner = hop(&spans, delegating);
    check_inner(&inner, &outer, &task);
    for span in &spans {
        assert_eq!(span.state, "vendor=opaque", "{span:?}");
        assert_eq!(span.resource["deployment.environment.name"], "t");
        assert_eq!(
            span.resource["service.name"],
            format!("faultline-{}", span.get("faultline.role"))
        );
        let failed = span.event_attributes("faultline.failure", "faultline.failure.id");
        assert!(!failed.is_empty(), "no failure event: {span:?}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a value is text")
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

fn check_edge(spans: &[SpanRecord], task: &Value) {
    let edge = below(spans, CLIENT, "server", "POST /agents/{agent}");
    check(
        edge,
        &[
            ("http.request.method", "POST"),
            ("http.route", "/agents/{agent}"),
            ("http.response.status_code", "200"),
            ("url.path", "/agents/script"),
            ("a2a.method.name", "SendMessage"),
            ("a2a.task.id", task::id(task)),
            ("a2a.task.state", "failed"),
            ("gen_ai.conversation.id", text(&task["contextId"])),
        ],
    );
    assert_eq!(edge.error, None, "a failed task is a successful call");
    let calling = below(spans, &edge.id, "client", SEND);
    let rpc = [("rpc.system.name", "grpc"), ("rpc.method", SEND), ("server.address", "127.0.0.1")];
    check(calling, &rpc);
    check(calling, &[("rpc.response.status_code", "OK"), ("faultline.role", "gateway")]);
    assert!(calling.get("server.port").parse::<u16>().is_ok(), "{calling:?}");
}

fn check_outer(outer: &Hop<'_>, task: &Value) {
    check(outer.serving, &[("rpc.method", SEND), ("rpc.response.status_code", "OK")]);
    check(
        outer.run,
        &[
            ("gen_ai.operation.name", "invoke_agent"),
            ("gen_ai.agent.name", "script"),
            ("gen_ai.conversation.id", text(&task["contextId"])),
            ("a2a.task.id", task::id(task)),
            ("a2a.task.state", "failed"),
            ("error.type", "UNAVAILABLE"),
            ("faultline.failure.hop", "1"),
            ("faultline.failure.root.reason", "UNAVAILABLE"),
            ("faultline.failure.business_code", "LEDGER_7"),
            ("faultline.failure.origin.agent", "script"),
            ("faultline.failure.plane", "execution"),
            ("faultline.failure.retryable", "true"),
        ],
    );
    assert_eq!(outer.run.error.as_deref(), Some("script: the ledger is away"));
    let [(calling, serving)] = outer.attempts.as_slice() else {
        panic!("a forwarded failure is attempted once")
    };
    for span in [calling, serving] {
        assert_eq!(
            span.event_names(),
            ["faultline.failure"],
            "the failure originates in another span"
        );
        let about = |key| span.event_attributes("faultline.failure", key);
        assert_eq!(about("faultline.failure.id"), [text(&failure(task)["id"])]);
        assert_eq!(about("faultline.failure.hop"), ["1"]);
        assert_eq!(about("faultline.failure.downstream.agent"), ["script"]);
        assert_eq!(about("faultline.failure.code"), ["UNAVAILABLE"]);
    }
}

fn check_inner(inner: &Hop<'_>, outer: &Hop<'_>, task: &Value) {
    let [first, second] = inner.attempts.as_slice() else { panic!("two attempts") };
    check(inner.run, &[("faultline.task.parent.id", outer.run.get("a2a.task.id"))]);
    check(inner.run, &[("faultline.task.attempts", "2"), ("faultline.task.depth", "1")]);
    assert_eq!(inner.run.error.as_deref(), Some("the ledger is away"));
    assert_ne!(inner.run.get("a2a.task.id"), outer.run.get("a2a.task.id"));
    let conversation = "gen_ai.conversation.id";
    assert_eq!(inner.run.get(conversation), outer.run.get(conversation));
    check(first.0, &[("faultline.attempt", "1"), ("faultline.attempt.outcome", "failed")]);
    check(second.0, &[("faultline.attempt", "2"), ("faultline.retry.attempt", "1")]);
    assert_eq!(first.0.links, []);
    assert_eq!(second.0.linked_span("retry_of"), Some(first.0.id.as_str()));
    for (calling, serving) in &inner.attempts {
        assert_eq!(calling.event_names(), ["faultline.failure"]);
        assert_eq!(
            serving.event_names(),
            ["exception", "faultline.failure"],
            "the failure originates here"
        );
        assert_eq!(serving.event_attributes("exception", "exception.type"), ["UNAVAILABLE"]);
        assert_eq!(
            serving.event_attributes("exception", "exception.message"),
            ["the ledger is away"]
        );
        check(serving, &[("error.type", "UNAVAILABLE"), ("faultline.role", "worker")]);
        assert!(
            calling.start <= serving.start && serving.end <= calling.end,
            "the server span is not within the client span"
        );
    }
    // The failure record has the id of its span, and the span has the id of the failure.
    assert_eq!(failure(task)["spanId"], second.1.id.as_str());
    let ids = second.1.event_attributes("faultline.failure", "faultline.failure.id");
    assert_eq!(ids, [text(&failure(task)["id"])]);
    assert_ne!(
        first.1.event_attributes("faultline.failure", "faultline.failure.id"),
        ids,
        "another failure"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_failure_marks_the_attempt_and_not_the_call() {
    let collector = Collector::start().await;
    let cluster = exporting(&collector).start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("script").header("traceparent", header);
    let task = rpc.send("fail UNAVAILABLE times=1; chunk done").await;
    assert_eq!(task::state(&task), COMPLETED);
    let spans = collector.until(&trace_id, 8).await;
    let failed: Vec<_> = spans.iter().filter(|s| s.error.is_some()).collect();
    let failed: Vec<_> = failed.iter().map(|s| (s.kind, s.name.as_str())).collect();
    assert_eq!(failed, [("client", "attempt script"), ("server", "attempt script")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_span_is_linked_to_the_cancelled_run() {
    let collector = Collector::start().await;
    let cluster = exporting(&collector).start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("script").header("traceparent", header);
    let task = rpc.send_immediately("say hi; sleep 1m").await;
    let (cancel_trace, header) = trace();
    let rpc = cluster.rpc().agent("script").header("traceparent", header);
    let ended = rpc.call("CancelTask", json!({"id": task::id(&task)})).await.unwrap();
    assert_eq!(task::state(&ended), CANCELED);
    let spans = collector.until(&trace_id, 6).await;
    let run = spans.iter().find(|s| s.name == "invoke_agent script").unwrap();
    check(run, &[("error.type", "CANCELLED"), ("a2a.task.state", "canceled")]);
    let attempt =
        |kind| spans.iter().find(|s| s.name == "attempt script" && s.kind == kind).unwrap();
    assert!(attempt("client").error.is_some(), "the client span has an error");
    assert_eq!(attempt("server").error, None, "the server span ended as requested");
    assert!(spans.iter().all(|s| !s.event_names().contains(&"exception")), "{}", tree(&spans));
    let cancelling = collector.until(&cancel_trace, 3).await;
    let serving = cancelling.iter().find(|s| s.kind == "server" && s.name.ends_with("CancelTask"));
    let serving = serving.unwrap();
    let link = (trace_id, run.id.clone(), "cancels".to_owned());
    assert_eq!(serving.links, [link]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_call_has_its_exception_in_the_refusing_span() {
    let collector = Collector::start().await;
    let cluster = exporting(&collector).start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("nobody").header("traceparent", header);
    let error = rpc.call("SendMessage", faultline_tests::rpc::message("x")).await.unwrap_err();
    let spans = collector.until(&trace_id, 3).await;
    let errors: Vec<_> = spans.iter().map(|s| (s.kind, s.error.is_some())).collect();
    // The agent does not exist: only the client span has an error.
    assert_eq!(errors, [("server", false), ("client", true), ("server", false)], "{error}");
    let born: Vec<_> =
        spans.iter().map(|s| s.event_attributes("exception", "exception.type").len()).collect();
    assert_eq!(born, [0, 0, 1], "{}", tree(&spans));
    check(&spans[1], &[("error.type", "NOT_FOUND"), ("rpc.response.status_code", "NOT_FOUND")]);
    check(&spans[2], &[("rpc.response.status_code", "NOT_FOUND"), ("error.type", "")]);
}
