//! Traces across a crash: the restarted coordinator exports the spans of tasks that it recovers.

use faultline_tests::{
    Collector,
    otlp::{SpanRecord, tree},
    task::{self, FAILED},
    until,
    wait::SOON,
};

use crate::{exporting, trace};

#[tokio::test(flavor = "multi_thread")]
async fn trace_is_complete_after_a_kill_of_the_coordinator() {
    let collector = Collector::start().await;
    let mut cluster = exporting(&collector).start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("script");
    let traced = rpc.header("traceparent", header);
    let script = "delegate script { say under way; sleep 2s; fail DATA_LOSS text=gone }";
    let task = traced.send_immediately(script).await;
    until("the child runs", SOON, async || {
        let root = rpc.inspect(task::id(&task)).await;
        let child = root["children"][0]["taskId"].as_str()?.to_owned();
        let child = rpc.inspect(&child).await;
        (child["task"]["status"]["message"].is_object()).then_some(())
    })
    .await;
    // The spans of the call are exported: it ended before the kill.
    collector.until(&trace_id, 3).await;
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    let ended = until("the task ended", SOON, async || {
        let task = rpc.try_call("GetTask", serde_json::json!({"id": task::id(&task)})).await;
        let task = task.ok()?.ok()?;
        task::is_final(task::state(&task)).then_some(task)
    })
    .await;
    assert_eq!(task::state(&ended), FAILED);
    let send = "lf.a2a.v1.A2AService/SendMessage";
    // The kill cut the delegating call, which was repeated; the parent of the child is the span of
    // the first call, whose server span was lost.
    let root = task::id(&task).to_owned();
    let spans = collector
        .until_spans(&trace_id, "both runs and the server span of the outer attempt", |spans| {
            let runs = spans.iter().filter(|s| s.name == "invoke_agent script").count();
            let attempt = |s: &SpanRecord| s.kind == "server" && s.name == "attempt script";
            runs == 2 && spans.iter().any(|s| attempt(s) && s.get("a2a.task.id") == root)
        })
        .await;
    let find = |kind: &str, name: &str, task: &str| {
        let mut found = spans
            .iter()
            .filter(|s| s.kind == kind && s.name == name && s.get("a2a.task.id") == task);
        let one = found.next().unwrap_or_else(|| panic!("{kind} {name}:\n{}", tree(&spans)));
        assert_eq!(found.next(), None, "duplicate spans:\n{}", tree(&spans));
        one
    };
    let serving = spans.iter().find(|s| s.kind == "server" && s.name == send).unwrap();
    let run = find("client", "invoke_agent script", &root);
    assert_eq!(run.parent, serving.id, "{}", tree(&spans));
    let child = spans.iter().find(|s| s.get("faultline.task.parent.id") == root).unwrap();
    for task in [root.as_str(), child.get("a2a.task.id")] {
        let run = find("client", "invoke_agent script", task);
        let calling = find("client", "attempt script", task);
        let serving = find("server", "attempt script", task);
        assert_eq!(
            (calling.parent.as_str(), serving.parent.as_str()),
            (run.id.as_str(), calling.id.as_str())
        );
        for span in [run, calling, serving] {
            assert_eq!(span.get("error.type"), "DATA_LOSS", "{span:?}");
        }
        assert!(run.end - run.start > 1_900_000_000, "the span is shorter than the task");
    }
    let failure = &ended["metadata"]["faultline.dev/failure"];
    let born = find("server", "attempt script", child.get("a2a.task.id"));
    assert_eq!(failure["spanId"], born.id.as_str());
}
