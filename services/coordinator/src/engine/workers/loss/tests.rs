//! Tasks that wait while no worker is there, and what is taken back from one.

use faultline_proto::{
    a2a::{GetTaskRequest, TaskState},
    advice::{Reader, Verdict, advise},
};

use super::*;
use crate::{
    clock::now,
    task::a2a_view::cancelled,
    testing::{Bench, at_once, offer, principal, request, soon, task_of},
};

#[tokio::test]
async fn agent_without_workers_is_refused_at_once_if_waiting_is_disabled() {
    let config = |wait_for_worker_ms| Config { wait_for_worker_ms, ..Config::default() };
    for (wait, refused) in [(60_000, false), (0, true)] {
        let bench = Bench::start_with(config(wait), vec![offer("a")]).await;
        let bench = bench.restart(Vec::new()).await;
        let sent = soon(bench.send(at_once(request("a", "hi")), &principal("ann"))).await.unwrap();
        let reason = sent.map_err(|failure| (failure.reason.clone(), failure.may_retry()));
        assert_eq!(reason.is_err(), refused);
        if let Err(reason) = reason {
            assert_eq!(reason, ("AGENT_UNAVAILABLE".to_owned(), true));
        }
    }
}

#[tokio::test]
async fn workers_have_time_to_reattach_after_a_restart() {
    for (grace, state) in [(60_000, TaskState::Submitted), (0, TaskState::Failed)] {
        let config =
            Config { wait_for_worker_ms: 0, reattach_grace_ms: grace, ..Config::default() };
        let bench = Bench::start_with(config, vec![offer("a")]).await;
        let busy =
            |state: &mut State| state.registry.workers.values_mut().for_each(|w| w.slots = 0);
        bench.core.change(busy);
        let task = task_of(bench.send(at_once(request("a", "hi")), &principal("ann"))).await;
        let bench = bench.restart(Vec::new()).await;
        let core = &bench.core;
        core.change(|state| state.give_up_waiting(&core.config, now()));
        core.flushed().await;
        let get = GetTaskRequest { id: task.id, ..GetTaskRequest::default() };
        let task = core.get(get, &principal("ann")).await.unwrap();
        assert_eq!(task.status.unwrap().state(), state);
    }
}

#[test]
fn lost_worker_of_an_agent_that_is_not_run_again_is_checked_first() {
    let task = Task::blank(TaskId::new(), "a".into(), "c".into(), 0);
    for (losses_max, verdict) in [(1, Verdict::Check), (3, Verdict::Retry)] {
        let lost = worker_lost(&task, losses_max);
        assert_eq!(lost.may_retry(), verdict == Verdict::Retry);
        let advice = advise(&lost, Reader::Operator);
        assert_eq!(advice.verdict, verdict);
        let step = "look for a crash in the log of the worker of agent 'a'";
        assert!(advice.text.contains(step), "{}", advice.text);
    }
}

#[tokio::test]
async fn ended_task_is_not_released() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let running = bench.root("a").await;
    let id = running.task_id.parse::<TaskId>().unwrap();
    bench.hold_writes().await;
    bench.core.change(|state| {
        let failure = cancelled("user", "enough", None);
        let body = state.tasks.get(&id).unwrap().pending().decide_cancel(failure).unwrap();
        state.end(id, body, "user", now());
        let queued = state.queue.writes.len();
        state.release_attempt(id, bench.worker, now());
        assert_eq!(state.queue.writes.len(), queued, "nothing follows an end");
    });
}
