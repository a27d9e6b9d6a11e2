//! Traces of a user-written worker, a program without the binary.

use std::collections::BTreeSet;

use faultline_chassis::config::Environment;
use faultline_tests::{
    Cluster, Process, Program,
    otlp::{SpanRecord, tree},
    task::{self, COMPLETED},
    wait::SOON,
};

use crate::{CLIENT, Collector, exporting, trace};

const SEND: &str = "lf.a2a.v1.A2AService/SendMessage";

/// Spans without a parent in the trace.
fn orphans(spans: &[SpanRecord]) -> Vec<&SpanRecord> {
    let ids: BTreeSet<_> = spans.iter().map(|span| span.id.as_str()).collect();
    spans.iter().filter(|span| !ids.contains(span.parent.as_str())).collect()
}

async fn start(program: Program, cluster: &Cluster, mut env: Environment) -> Process {
    let hub = format!("http://{}", cluster.coordinator_proxies[0].address);
    env.insert("FAULTLINE_WORKER__COORDINATOR".to_owned(), hub);
    Process::start_program(program, cluster.dir.path(), "travel", &[], &env).await
}

#[tokio::test(flavor = "multi_thread")]
async fn delegations_in_a_user_written_worker_are_one_trace() {
    let program = Program::example("travel").await;
    let collector = Collector::start().await;
    let cluster = exporting(&collector).workers(&[]).start().await;
    let mut worker = start(program, &cluster, exporting(&collector).env).await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("planner").header("traceparent", header);
    let task = rpc.send("Lisbon").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    assert_eq!(task::artifacts(&task)["plan"], "a trip to Lisbon for 60 €");
    // The shutdown exports the last spans.
    worker.terminate().await;
    assert!(worker.exit_within(SOON).await.expect("it exits").success());

    let hop = |depth: usize, agent: &str| {
        let lines = [
            format!("client {SEND}"),
            format!("  server {SEND}"),
            format!("    client invoke_agent {agent}"),
            format!("      client attempt {agent}"),
            format!("        server attempt {agent}"),
        ];
        lines.map(|line| format!("{}{line}\n", "  ".repeat(depth))).concat()
    };
    let expected = [
        "server POST /agents/{agent}\n".to_owned(),
        hop(1, "planner"),
        hop(6, "billing"),
        hop(11, "ledger"),
        format!("{}internal look up price\n", "  ".repeat(16)),
    ];
    let spans = collector.until(&trace_id, 17).await;
    assert_eq!(tree(&spans), expected.concat());
    let [root] = orphans(&spans)[..] else { panic!("one root:\n{}", tree(&spans)) };
    assert_eq!(root.parent, CLIENT);
    let from = |role: &str| spans.iter().filter(|s| s.resource["service.name"] == role).count();
    // Three attempts, two delegations, and one span of the program.
    assert_eq!(from("faultline-worker"), 6, "{}", tree(&spans));
    let strays: Vec<_> = collector.all().into_iter().filter(|s| s.trace != trace_id).collect();
    assert_eq!(tree(&strays), "", "everything is in the trace of the caller");
}

/// The worker has no OTLP endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn worker_without_export_does_not_break_the_trace() {
    let program = Program::example("travel").await;
    let collector = Collector::start().await;
    let cluster = exporting(&collector).workers(&[]).start().await;
    let _worker = start(program, &cluster, Environment::new()).await;

    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("planner").header("traceparent", header);
    assert_eq!(task::state(&rpc.send("Lisbon").await), COMPLETED);
    let hop = |depth: usize, agent: &str| {
        let lines = [
            format!("server {SEND}"),
            format!("  client invoke_agent {agent}"),
            format!("    client attempt {agent}"),
        ];
        lines.map(|line| format!("{}{line}\n", "  ".repeat(depth))).concat()
    };
    let expected = [
        format!("server POST /agents/{{agent}}\n  client {SEND}\n"),
        hop(2, "planner"),
        hop(5, "billing"),
        hop(8, "ledger"),
    ];
    let spans = collector.until(&trace_id, 11).await;
    assert_eq!(tree(&spans), expected.concat());
    let [root] = orphans(&spans)[..] else { panic!("one root:\n{}", tree(&spans)) };
    assert_eq!(root.parent, CLIENT);
}
