//! Drain on SIGTERM: processes exit in time with code 0 and lose no task.

use std::{os::unix::process::ExitStatusExt, path::Path, time::Duration};

use faultline_tests::{
    Frame, Plan, Process, Rpc,
    rpc::message,
    task::{self, COMPLETED, Fold, WORKING, is_final},
    until,
    wait::SOON,
};
use serde_json::json;
use tokio::time::Instant;

/// Bound of a drain, with a margin for a busy machine.
const DRAIN: Duration = Duration::from_secs(12);
const AT_ONCE: Duration = Duration::from_secs(2);

/// Asserts that the process exits in time with code 0 and cuts nothing off.
async fn assert_drained(process: &mut Process, within: Duration) {
    let ended = process.exit_within(within).await.expect("the process exits in time");
    let log = process.log();
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(!log.contains("cut off"), "{log}");
}

async fn up(dir: &Path) -> (Process, Rpc) {
    let process = Process::up(dir).await;
    let address =
        process.ready().strip_prefix("http://").expect("the ready line holds the address");
    let rpc = Rpc::at(address.parse().expect("an address"));
    (process, rpc)
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_mesh_drains_quickly_and_keeps_its_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, rpc) = up(dir.path()).await;
    let task = rpc.send("hello").await;
    process.terminate().await;
    assert_drained(&mut process, Duration::from_secs(5)).await;
    let (_process, rpc) = up(dir.path()).await;
    assert_eq!(rpc.task(task::id(&task)).await, task);
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_mesh_drains_in_time_and_resumes_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, rpc) = up(dir.path()).await;
    let script = rpc.agent("script");
    let quick = script.send_immediately("say quick; sleep 1s; chunk done").await;
    let long = script.send_immediately("chunk a; say long; sleep 11s; chunk b").await;
    let asking = script.send("ask \"well?\"; chunk $answer").await;
    process.terminate().await;
    assert_drained(&mut process, DRAIN).await;
    let (_process, rpc) = up(dir.path()).await;
    let script = rpc.agent("script");
    let ended = rpc.task(task::id(&quick)).await;
    assert_eq!(
        task::artifacts(&ended)["output"],
        "done",
        "short tasks finish during the drain: {ended}"
    );
    let answer = faultline_tests::rpc::answer(task::id(&asking), "yes");
    let answered = script.call("SendMessage", answer).await.unwrap();
    assert_eq!(task::artifacts(&answered["task"])["output"], "yes");
    let id = task::id(&long);
    let ended = until("the interrupted task has ended", 2 * SOON, async || {
        let task = rpc.task(id).await;
        is_final(task::state(&task)).then_some(task)
    });
    assert_eq!(task::artifacts(&ended.await)["output"], "ab");
    let inspected = rpc.inspect(id).await;
    assert_eq!(inspected["attempts"][0]["outcome"], "OUTCOME_RELEASED", "{inspected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_ends_a_mesh_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, rpc) = up(dir.path()).await;
    let task = rpc.agent("script").send_immediately("say hanging; hang").await;
    assert_eq!(task::state(&task), WORKING);
    process.terminate().await;
    let log = until("the signal has arrived", SOON, async || {
        Some(process.log()).filter(|log| log.contains("draining for at most"))
    });
    log.await;
    assert!(
        process.exit_within(Duration::from_millis(300)).await.is_none(),
        "the drain waits for the agent"
    );
    let start = Instant::now();
    process.terminate().await;
    let ended = process.exit_within(AT_ONCE).await.expect("the second signal ends the process");
    assert!(start.elapsed() < AT_ONCE);
    assert_eq!((ended.code(), ended.signal()), (Some(143), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_drains_with_exit_code_zero() {
    let mut cluster = Plan::default().start().await;
    cluster.rpc().send("hello").await;
    for process in [&mut cluster.gateways[0], &mut cluster.workers[0], &mut cluster.coordinators[0]]
    {
        process.terminate().await;
        assert_drained(process, DRAIN).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_worker_returns_its_task_without_counting_an_attempt() {
    // One lost worker is allowed and occurs: if the drain counted as well, the task would fail.
    let plan = Plan::default().with("max_attempts = 2").with("reattach_grace_ms = 300");
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let script = "chunk a; sleep 10ms; chunk b; say here; sleep 9s; chunk c";
    let mut stream = rpc.stream("SendStreamingMessage", message(script)).await.unwrap();
    let mut frames: Vec<Frame> = Vec::new();
    let is_here =
        |frame: &Frame| task::text(&frame.body["statusUpdate"]["status"]["message"]) == "here";
    while !frames.last().is_some_and(is_here) {
        frames.push(stream.next().await.unwrap().expect("the task runs"));
    }
    let id = task::id(&frames[0].body["task"]).to_owned();
    cluster.add_worker("echo,script", 4).await;
    cluster.workers[0].terminate().await;
    until("the coordinator knows of the drain", SOON, async || {
        let workers = rpc.mesh("Workers", json!({})).await;
        workers["workers"].as_array()?.iter().any(|w| w["draining"] == true).then_some(())
    })
    .await;
    // A draining worker takes no new work and continues its running tasks.
    for _ in 0..8 {
        assert_eq!(task::state(&rpc.send("chunk x").await), COMPLETED);
    }
    assert_drained(&mut cluster.workers[0], DRAIN).await;
    until("another worker has the task", SOON, async || {
        let inspected = rpc.inspect(&id).await;
        (inspected["attempts"].as_array()?.len() == 2).then_some(())
    })
    .await;
    cluster.workers[1].kill().await;
    cluster.add_worker("echo,script", 4).await;
    frames.extend(stream.all().await);
    let fold = Fold::of(&frames);
    assert_eq!((fold.artifacts["output"].as_str(), fold.finals()), ("abc", vec![COMPLETED]));
    let inspected = rpc.inspect(&id).await;
    let attempts = inspected["attempts"].as_array().unwrap().iter();
    let outcomes: Vec<_> = attempts.map(|a| &a["outcome"]).collect();
    let expected = ["OUTCOME_RELEASED", "OUTCOME_WORKER_LOST", "OUTCOME_ENDED"];
    assert_eq!(outcomes, expected, "{inspected}");
}
