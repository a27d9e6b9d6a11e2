//! Lost workers: a task is retried up to `max_attempts`, then fails with WORKER_LOST.

use std::time::Duration;

use faultline_tests::{
    Cluster, Plan, Rpc,
    rpc::message,
    task::{self, COMPLETED, FAILED, Fold},
    until,
};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(40);

/// A short reattach grace, with heartbeats that suit a busy machine.
fn plan() -> Plan {
    Plan::default().with("reattach_grace_ms = 300")
}

/// Restarts the worker after each exit until the future completes.
async fn with_restarts<T>(cluster: &mut Cluster, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            ended = cluster.workers[0].exit_within(LONG) => {
                assert!(ended.is_some(), "no exit within {LONG:?}");
                cluster.workers[0].restart().await;
            }
        }
    }
}

fn outcomes(inspected: &Value) -> Vec<&str> {
    let attempts = inspected["attempts"].as_array().expect("there were attempts");
    attempts.iter().map(|a| a["outcome"].as_str().expect("each has an outcome")).collect()
}

async fn check_lost(rpc: &Rpc, task: &Value, attempts: usize) {
    let id = task::id(task);
    assert_eq!(task::state(task), FAILED, "{task}");
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["reason"], "WORKER_LOST", "{failure}");
    assert_eq!(failure["code"], 14, "{failure}");
    assert_eq!(failure["taskId"], id, "{failure}");
    assert_eq!(failure["origin"]["agent"], "script", "{failure}");
    assert_eq!(failure["origin"]["service"], "worker", "{failure}");
    let inspected = rpc.inspect(id).await;
    let last = &inspected["attempts"][attempts - 1];
    let stored = &inspected["failure"];
    assert_eq!(
        stored["origin"]["worker"], last["worker"],
        "the origin names the lost worker: {stored}"
    );
    assert_eq!(outcomes(&inspected), vec!["OUTCOME_WORKER_LOST"; attempts], "{inspected}");
    let numbers = inspected["attempts"].as_array().expect("checked").iter();
    let numbers: Vec<_> = numbers.map(|a| a["number"].as_u64()).collect();
    assert_eq!(numbers, (1..=attempts as u64).map(Some).collect::<Vec<_>>());
    let spent = inspected["failure"]["retriesSpent"].as_u64().unwrap_or(0);
    assert_eq!(spent, attempts as u64 - 1, "{inspected}");
    assert_eq!(task["metadata"]["faultline.dev/failure"], task::public(&inspected["failure"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_counts_the_attempts_before_it() {
    let mut cluster = plan().start().await;
    let rpc = cluster.rpc().agent("script");
    let sent = rpc.send_immediately("chunk a; sleep 1s; fail ABORTED").await;
    cluster.workers[0].kill().await;
    cluster.workers[0].restart().await;
    let failed = until("the second attempt fails", LONG, async || {
        let task = rpc.task(task::id(&sent)).await;
        task::is_final(task::state(&task)).then_some(task)
    })
    .await;
    let failure = &failed["metadata"]["faultline.dev/failure"];
    assert_eq!((&failure["reason"], &failure["retriesSpent"]), (&json!("ABORTED"), &json!(1)));
    let inspected = rpc.inspect(task::id(&sent)).await;
    assert_eq!(outcomes(&inspected), ["OUTCOME_WORKER_LOST", "OUTCOME_ENDED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn task_that_kills_its_workers_fails_after_three_attempts() {
    let mut cluster = plan().start().await;
    let rpc = cluster.rpc().agent("script");
    let (trace_id, header) = crate::trace();
    let traced = rpc.header("traceparent", header);
    let task = with_restarts(&mut cluster, traced.send("chunk a; abort")).await;
    check_lost(&rpc, &task, 3).await;
    assert_eq!(task["metadata"]["faultline.dev/failure"]["traceId"], trace_id.as_str());
    assert_eq!(rpc.task(task::id(&task)).await, task);
    // The next worker does not get the failed task.
    cluster.workers[0].exit_within(Duration::ZERO).await;
    let alive = until("a worker serves again", LONG, async || {
        let workers = rpc.mesh("Workers", json!({})).await;
        let attached = workers["workers"].as_array()?.iter().any(|w| w["attached"] == true);
        attached.then_some(())
    });
    with_restarts(&mut cluster, alive).await;
    assert_eq!(task::state(&rpc.send("chunk well").await), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_may_be_configured_to_fail_at_the_first_loss() {
    let plan = plan().with("agents.script.on_worker_lost = \"fail\"");
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let stream = rpc.stream("SendStreamingMessage", message("chunk a; abort")).await.unwrap();
    let frames = with_restarts(&mut cluster, stream.all()).await;
    let last = &frames[frames.len() - 1].body["statusUpdate"];
    assert_eq!(task::state(last), FAILED);
    assert_eq!(last["metadata"]["faultline.dev/failure"]["reason"], "WORKER_LOST");
    let task = rpc.task(last["taskId"].as_str().unwrap()).await;
    check_lost(&rpc, &task, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_worker_costs_one_retry_and_no_text() {
    let mut cluster = plan().workers(&["echo,script", "echo,script"]).start().await;
    let rpc = cluster.rpc().agent("script");
    let script = "chunk a; sleep 50ms; chunk b; say here; sleep 3s; chunk c; sleep 10ms; chunk d";
    let mut stream = rpc.stream("SendStreamingMessage", message(script)).await.unwrap();
    let mut frames = Vec::new();
    loop {
        let frame = stream.next().await.unwrap().expect("the task still runs");
        let text = task::text(&frame.body["statusUpdate"]["status"]["message"]);
        frames.push(frame);
        if text == "here" {
            break;
        }
    }
    let id = task::id(&frames[0].body["task"]).to_owned();
    let holder = rpc.inspect(&id).await["attempts"][0]["worker"].clone();
    let pid = holder.as_str().unwrap().rsplit('-').next().unwrap().to_owned();
    let at = cluster.workers.iter().position(|w| w.pid().to_string() == pid);
    cluster.workers[at.expect("the name of a worker ends with its process id")].kill().await;
    frames.extend(stream.all().await);
    let fold = Fold::of(&frames);
    assert_eq!(fold.finals(), [COMPLETED]);
    assert_eq!(fold.artifacts["output"], "abcd");
    let task = rpc.task(&id).await;
    assert_eq!(task::artifacts(&task)["output"], "abcd");
    let inspected = rpc.inspect(&id).await;
    assert_eq!(outcomes(&inspected), ["OUTCOME_WORKER_LOST", "OUTCOME_ENDED"], "{inspected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn task_without_a_worker_fails_after_the_wait_limit() {
    let mut cluster = plan().with("wait_for_worker_ms = 2000").start().await;
    let rpc = cluster.rpc().agent("script");
    cluster.workers[0].kill().await;
    until("the coordinator knows of the loss", LONG, async || {
        let agents = rpc.mesh("Agents", json!({"name": "script"})).await;
        (agents["agents"][0]["workers"].as_u64().unwrap_or(0) == 0).then_some(())
    })
    .await;
    let task = rpc.send("chunk a").await;
    assert_eq!(task::state(&task), FAILED, "a known agent makes a task");
    let failure = &task["metadata"]["faultline.dev/failure"];
    assert_eq!(failure["reason"], "AGENT_UNAVAILABLE", "{failure}");
    assert_eq!(failure["origin"]["service"], "coordinator", "{failure}");
    assert_eq!(rpc.task(task::id(&task)).await, task);
    // A worker that attaches in time takes the waiting task.
    let waiting = rpc.send("chunk b");
    let (task, ()) = tokio::join!(waiting, cluster.workers[0].restart());
    assert_eq!(task::state(&task), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_connection_loss_costs_no_attempt_and_no_text() {
    // All processes live, so each reconnects in time and continues.
    let cluster = Plan::default().start().await;
    let rpc = cluster.rpc().agent("script");
    let script: String = (0..1200).map(|n| format!("chunk \"{n} \"; sleep 2ms\n")).collect();
    let expected: String = (0..1200).map(|n| format!("{n} ")).collect();
    let ids: Vec<_> = futures::future::join_all((0..4).map(|_| rpc.send_immediately(&script)))
        .await
        .iter()
        .map(|task| task::id(task).to_owned())
        .collect();
    let ended = until("all tasks have ended", LONG, async || {
        // One cut per poll: it drops everything in flight on the connection.
        cluster.coordinator_proxies[0].cut();
        let mut ended = Vec::new();
        for id in &ids {
            // The gateway uses the same proxy, so its call may fail.
            let task = rpc.call("GetTask", json!({"id": id})).await.ok()?;
            ended.extend(Some(task).filter(|task| task::is_final(task::state(task))));
        }
        (ended.len() == ids.len()).then_some(ended)
    });
    for task in ended.await {
        assert_eq!(task::state(&task), COMPLETED, "{}", task["metadata"]);
        assert_eq!(task::artifacts(&task)["output"], expected);
        let inspected = rpc.inspect(task::id(&task)).await;
        assert_eq!(outcomes(&inspected), ["OUTCOME_ENDED"], "{}", inspected["attempts"]);
    }
}
