//! Questions in traces: no span is open while a task waits for an answer. The task continues in the
//! trace of the answer, with a span link to the question.

use faultline_tests::{
    Collector,
    otlp::tree,
    rpc::answer,
    task::{self, COMPLETED, INPUT_REQUIRED},
};

use crate::{exporting, trace};

#[tokio::test(flavor = "multi_thread")]
async fn answer_continues_in_its_own_trace_with_a_link_to_the_question() {
    let collector = Collector::start().await;
    let cluster = exporting(&collector).start().await;
    let (asking, header) = trace();
    let rpc = cluster.rpc().agent("script");
    let asked = rpc.header("traceparent", header);
    let task = asked.send("delegate script { ask \"which?\"; chunk $answer }; chunk done").await;
    assert_eq!(task::state(&task), INPUT_REQUIRED);
    // All spans of the first part are exported before the answer.
    let before = collector.until(&asking, 11).await;
    let open: Vec<_> = before.iter().filter(|s| s.name == "invoke_agent script").collect();
    assert_eq!(open.len(), 2, "{}", tree(&before));
    for run in &open {
        assert_eq!((run.get("a2a.task.state"), &run.error), ("input-required", &None));
        assert_eq!(run.event_names(), ["faultline.interrupt"]);
    }
    let (answering, header) = trace();
    let answered = rpc.header("traceparent", header);
    let ended = answered.call("SendMessage", answer(task::id(&task), "blue")).await.unwrap();
    assert_eq!(task::state(&ended["task"]), COMPLETED);
    let after = collector.until(&answering, 11).await;
    // The root and its child continue in the new trace, the child below its answer.
    for agent_task in [task::id(&task), open[1].get("a2a.task.id")] {
        let of = |spans: &[faultline_tests::otlp::SpanRecord], kind: &str, name: &str| {
            let mut found = spans.iter().filter(|s| s.kind == kind && s.name == name);
            found.find(|s| s.get("a2a.task.id") == agent_task).cloned()
        };
        for (kind, name) in [
            ("client", "invoke_agent script"),
            ("client", "attempt script"),
            ("server", "attempt script"),
        ] {
            let old = of(&before, kind, name).unwrap();
            let new = of(&after, kind, name).unwrap();
            let link = (asking.clone(), old.id.clone(), "resumed_from".to_owned());
            assert_eq!(new.links, [link], "{kind} {name}:\n{}", tree(&after));
            assert!(old.end <= new.start, "no span is open while the task waits");
        }
    }
    let later = collector.spans(&asking);
    let of_agents = |s: &&faultline_tests::otlp::SpanRecord| s.name.ends_with("script");
    let old = before.iter().filter(of_agents);
    let new = later.iter().filter(of_agents);
    assert_eq!(old.count(), new.count(), "the old trace got new spans:\n{}", tree(&later));
}
