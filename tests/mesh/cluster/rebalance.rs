//! Rebalance: workers are distributed over the coordinators, and a moved worker keeps its tasks.

use faultline_tests::{
    Cluster, Plan,
    task::{self, COMPLETED, is_final},
    until,
    wait::SOON,
};
use serde_json::{Value, json};

/// Number of workers attached to each coordinator, from its log.
fn attached(cluster: &Cluster) -> Vec<usize> {
    let count = |log: &str, words: &str| log.matches(words).count();
    let attached_here =
        |log: String| count(&log, "a worker attached") - count(&log, "a worker's stream ended");
    cluster.coordinators.iter().map(|process| attached_here(process.log())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn late_coordinator_gets_its_share_of_workers_and_tasks() {
    let plan = Plan::replicas(2).gateways(2).one_coordinator_each().workers(&[]).slots(2);
    let mut cluster = plan.with("lease_ms = 2000").start().await;
    cluster.coordinator_proxies[1].sever();
    for _ in 0..4 {
        cluster.add_worker("echo,script", 2).await;
    }
    let rpc = cluster.rpc_at(0).agent("script");
    until("all workers are attached to the first coordinator", SOON, async || {
        (attached(&cluster) == [4, 0]).then_some(())
    })
    .await;
    let mut sent = Vec::new();
    for _ in 0..8 {
        let task = rpc.send_immediately("chunk a; sleep 15s; chunk b; sleep 10ms; chunk c").await;
        sent.push(task::id(&task).to_owned());
    }
    let all_at_work = async || {
        let agents = rpc.mesh("Agents", json!({"name": "script"})).await;
        (agents["agents"][0]["computing"] == 8).then_some(())
    };
    until("every slot is taken", SOON, all_at_work).await;
    cluster.coordinator_proxies[1].heal();
    until("each coordinator has its share", 2 * SOON, async || {
        (attached(&cluster) == [2, 2]).then_some(())
    })
    .await;
    until("moved workers keep their tasks", SOON, all_at_work).await;
    for id in &sent {
        let done = until("the task has ended", 2 * SOON, async || {
            Some(rpc.task(id).await).filter(|task| is_final(task::state(task)))
        })
        .await;
        assert_eq!(task::state(&done), COMPLETED, "{done}");
        assert_eq!(task::artifacts(&done)["output"], "abc", "{done}");
        let inspected = rpc.inspect(id).await;
        assert_eq!(inspected["attempts"].as_array().map(Vec::len), Some(1), "{inspected}");
    }
    let workers = rpc.mesh("Workers", json!({})).await;
    let workers = workers["workers"].as_array().cloned().unwrap_or_default();
    let is_free = |worker: &Value| worker["attached"] == true && worker["draining"] != true;
    assert!(workers.len() == 4 && workers.iter().all(is_free), "{workers:?}");
}
