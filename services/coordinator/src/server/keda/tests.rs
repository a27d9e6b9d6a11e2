//! Tests of the demand that the scaler reports.

use faultline_proto::v1::{Interrupt, Slot, report};
use futures::StreamExt;
use tokio::time::timeout;
use tonic::Code;

use super::*;
use crate::{
    clock::now,
    engine::core::Closed,
    testing::{Bench, answering, at_once, offer, principal, request, soon, task_of},
};

fn asked(pairs: &[(&str, &str)]) -> ScaledObjectRef {
    let scaler_metadata = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    ScaledObjectRef { scaler_metadata, ..ScaledObjectRef::default() }
}

async fn bench(agents: &[&str]) -> Bench {
    Bench::start(agents.iter().map(|name| offer(name)).collect()).await
}

async fn tasks(bench: &Bench, agents: &[&str]) -> u64 {
    let agents = agents.iter().map(|name| name.to_string()).collect();
    bench.core.demand_snapshot().demand(&agents).tasks
}

fn slot(bench: &Bench, task_id: &str, released: bool) {
    let slot = Slot { task_id: task_id.into(), attempt: 1, released };
    bench.core.change(|state| state.slot(bench.worker, &slot, now()));
}

#[tokio::test]
async fn demand_counts_computing_and_queued_tasks_only() {
    let mut bench = bench(&["a", "b"]).await;
    bench.set_slots(1);
    let first = bench.root("a").await;
    assert_eq!((tasks(&bench, &["a"]).await, tasks(&bench, &["b"]).await), (1, 0));
    // One for which there is no slot.
    task_of(bench.send(at_once(request("b", "x")), &principal("ann"))).await;
    assert_eq!((tasks(&bench, &["b"]).await, tasks(&bench, &["a", "b"]).await), (1, 2));
    // It waits for another agent, so the other task has its slot…
    slot(&bench, &first.task_id, true);
    let second = bench.assigned().await;
    assert_eq!((tasks(&bench, &["a"]).await, tasks(&bench, &["b"]).await), (0, 1));
    // …and wants it back, which there is none for.
    slot(&bench, &first.task_id, false);
    assert_eq!(tasks(&bench, &["a"]).await, 1);
    // A question to somebody costs nothing until its answer.
    let question = Interrupt { key: "q".into(), ..Interrupt::default() };
    bench.report(&second, 1, report::Body::Ask(question));
    assert_eq!((tasks(&bench, &["a"]).await, tasks(&bench, &["b"]).await), (1, 0));
    let answer = answering(at_once(request("b", "yes")), &second.task_id);
    task_of(bench.send(answer, &principal("ann"))).await;
    assert_eq!(tasks(&bench, &["b"]).await, 1, "answered, and in need of a slot");
    bench.complete(&first, 1);
    bench.complete(&second, 2);
    assert_eq!(tasks(&bench, &["a", "b"]).await, 0);
}

#[tokio::test]
async fn agent_without_any_offer_has_demand_for_one_worker() {
    let mut bench = bench(&[]).await;
    assert_eq!(tasks(&bench, &["a"]).await, 1);
    bench.attach_again(&["a"], 4, Vec::new());
    assert_eq!(tasks(&bench, &["a"]).await, 0, "now it is known, and may have no worker");
    let bench = bench.restart(Vec::new()).await;
    assert_eq!(tasks(&bench, &["a"]).await, 0, "for good");
}

#[tokio::test]
async fn scaling_target_is_the_trigger_value_or_the_slots_of_a_worker() {
    let mut bench = bench(&["a", "b"]).await;
    let scaler = Scaler::with_age(Arc::clone(&bench.core), Duration::ZERO);
    let target = async |pairs: &[(&str, &str)]| {
        let spec = scaler.get_metric_spec(Request::new(asked(pairs))).await.unwrap().into_inner();
        assert_eq!(spec.metric_specs.len(), 1);
        assert_eq!(spec.metric_specs[0].metric_name, METRIC);
        spec.metric_specs[0].target_size
    };
    assert_eq!(target(&[("agents", "a"), ("slots", " 8 ")]).await, 8);
    assert_eq!(target(&[("agents", "a,b")]).await, 100, "one worker, counted once");
    assert_eq!(target(&[("agents", "elsewhere")]).await, i64::from(limits::WORKER_SLOTS));
    bench.attach_again(&["a"], 7, Vec::new());
    assert_eq!(target(&[("agents", "a")]).await, 7);
}

#[tokio::test]
async fn invalid_trigger_is_rejected_with_its_key() {
    let bench = bench(&["a"]).await;
    let scaler = Scaler::with_age(Arc::clone(&bench.core), Duration::ZERO);
    for (pairs, says) in [
        (&[][..], "scalerMetadata.agents: name the agents"),
        (&[("agents", " , ")], "scalerMetadata.agents: name the agents"),
        (&[("agents", "a,b*")], "scalerMetadata.agents: 'b*' cannot name an agent"),
        (&[("agents", "a"), ("slots", "0")], "scalerMetadata.slots: say how many tasks"),
        (&[("agents", "a"), ("slots", "many")], "scalerMetadata.slots: say how many tasks"),
    ] {
        let refusals = [
            scaler.is_active(Request::new(asked(pairs))).await.err(),
            scaler.stream_is_active(Request::new(asked(pairs))).await.err(),
            scaler.get_metric_spec(Request::new(asked(pairs))).await.err(),
        ];
        for status in refusals.map(Option::unwrap) {
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(says), "{}", status.message());
        }
    }
    let metrics = async |metric_name: &str| {
        let scaled_object_ref = Some(asked(&[("agents", "a")]));
        let request = GetMetricsRequest { scaled_object_ref, metric_name: metric_name.into() };
        scaler.get_metrics(Request::new(request)).await
    };
    let other = metrics("cpu").await.unwrap_err();
    assert!(other.message().contains("metricName: there is faultline-demand"), "{other}");
    assert_eq!(metrics(METRIC).await.unwrap().into_inner().metric_values[0].metric_value, 0);
}

#[tokio::test]
async fn scaler_stream_gets_changes_and_the_end() {
    let mut bench = bench(&["a"]).await;
    let scaler = Scaler::with_age(Arc::clone(&bench.core), Duration::ZERO);
    let watch = scaler.stream_is_active(Request::new(asked(&[("agents", "a")]))).await;
    let mut told = watch.unwrap().into_inner();
    let mut next = async || soon(told.next()).await.unwrap().map(|answer| answer.result);
    assert!(!next().await.unwrap());
    let first = bench.root("a").await;
    assert!(next().await.unwrap());
    let silence = timeout(limits::SCALER_POLL_INTERVAL * 5 / 2, next()).await;
    assert!(silence.is_err(), "it is as he was told");
    // A change that is reverted before the next poll is no change.
    bench.complete(&first, 1);
    let second = bench.root("a").await;
    bench.complete(&second, 1);
    assert!(!next().await.unwrap());
    bench.core.change(|state| state.close(Closed::Leaving));
    let end = next().await.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(soon(told.next()).await.is_none());
}

#[tokio::test]
async fn scaler_streams_are_bounded_and_released() {
    let bench = bench(&["a"]).await;
    let scaler = Scaler::with_age(Arc::clone(&bench.core), Duration::ZERO);
    let watch = async || scaler.stream_is_active(Request::new(asked(&[("agents", "a")]))).await;
    let mut watchers = Vec::new();
    for _ in 0..limits::SCALER_STREAMS_MAX {
        watchers.push(watch().await.unwrap());
    }
    let full = watch().await.err().unwrap();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.message().contains("ask with IsActive"), "{full}");
    watchers.pop();
    assert!(watch().await.is_ok());
}

#[tokio::test]
async fn trigger_with_too_many_agents_is_refused_and_names_the_limit() {
    let bench = bench(&["a"]).await;
    let scaler = Scaler::new(Arc::clone(&bench.core));
    let names = |count: usize| (0..count).map(|n| format!("a{n}")).collect::<Vec<_>>().join(",");
    let is_active = async |count| {
        let asked = asked(&[("agents", &names(count))]);
        scaler.is_active(Request::new(asked)).await.map(|answer| answer.into_inner().result)
    };
    assert!(is_active(limits::SCALER_AGENTS_MAX).await.unwrap(), "unknown agents need a worker");
    let refused = is_active(limits::SCALER_AGENTS_MAX + 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("64 are possible"), "{refused}");
}

#[tokio::test]
async fn calls_of_one_moment_share_one_snapshot() {
    let bench = bench(&["a"]).await;
    let recent = Scaler::with_age(Arc::clone(&bench.core), Duration::from_secs(60)).recent;
    let first = recent.get(&bench.core).unwrap();
    assert!(Arc::ptr_eq(&first, &recent.get(&bench.core).unwrap()));
    bench.core.lock().closed = Some(Closed::Leaving);
    assert!(recent.get(&bench.core).is_err(), "a coordinator that leaves does not answer");
}
