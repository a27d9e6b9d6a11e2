//! Waiting for people is no span: what follows an answer belongs to the trace of whoever answered,
//! and is linked to what asked.

use faultline_tests::{
    Collector,
    otlp::tree,
    rpc::answer,
    task::{self, COMPLETED, INPUT_REQUIRED},
};

use crate::{exporting, trace};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_in_its_own_trace_and_says_from_where() {
    let collector = Collector::start().await;
    let cluster = exporting(&collector).start().await;
    let (asking, header) = trace();
    let rpc = cluster.rpc().agent("script");
    let asked = rpc.header("traceparent", header);
    let task = asked.send("delegate script { ask \"which?\"; chunk $answer }; chunk done").await;
    assert_eq!(task::state(&task), INPUT_REQUIRED);
    // All of it is there before anybody has answered.
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
    // The root and its child go on in the new trace, the child below what answers it.
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
            let (old, new) = (of(&before, kind, name), of(&after, kind, name));
            let (old, new) = (old.unwrap(), new.unwrap());
            let link = (asking.clone(), old.id.clone(), "resumed_from".to_owned());
            assert_eq!(new.links, [link], "{kind} {name}:\n{}", tree(&after));
            assert!(old.end <= new.start, "nothing lasts while somebody thinks");
        }
    }
    let later = collector.spans(&asking);
    let of_agents = |s: &&faultline_tests::otlp::SpanRecord| s.name.ends_with("script");
    let (old, new) = (before.iter().filter(of_agents), later.iter().filter(of_agents));
    assert_eq!(old.count(), new.count(), "the old trace is over:\n{}", tree(&later));
}
