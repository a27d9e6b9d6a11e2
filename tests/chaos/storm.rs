//! Hundreds of clients that reset their connections in mid-request, on a machine under CPU load.
//! The calls of other clients must still succeed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_tests::{
    Plan, Rpc,
    raw::post_and_reset,
    rpc::{envelope, message},
    task::{self, COMPLETED},
    until,
};
use rand::Rng;
use serde_json::json;
use tokio::time::Instant;

const CONNECTIONS: usize = 256;
const STORM: Duration = Duration::from_secs(10);
const CLIENTS: usize = 4;
/// Time limit of one call of a well-behaved client.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Sends calls and resets each connection before the answer, until the stop flag is set.
async fn reset_connections(rpc: Rpc, stop: Arc<AtomicBool>, resets: Arc<AtomicUsize>) {
    while !stop.load(Relaxed) {
        let (method, text) = match rand::rng().random_range(0..4) {
            0 => ("SendMessage", "chunk quick"),
            1 => ("SendMessage", "sleep 5s"),
            2 => ("SendStreamingMessage", "chunk a; sleep 20ms; chunk b; sleep 20ms; chunk c"),
            _ => ("SendStreamingMessage", "say on my way; sleep 5s"),
        };
        let mut params = message(text);
        params["tenant"] = "script".into();
        let moment = Duration::from_millis(rand::rng().random_range(0..60));
        // A refused connection does not count as a reset.
        if post_and_reset(rpc.address(), &envelope(method, params), moment).await.is_ok() {
            resets.fetch_add(1, Relaxed);
        }
    }
}

/// Sends calls that must all succeed. Returns their number and the longest duration.
async fn call_until_stopped(rpc: Rpc, stop: Arc<AtomicBool>) -> (usize, Duration) {
    let mut count = 0;
    let mut longest = Duration::ZERO;
    while !stop.load(Relaxed) {
        let start = Instant::now();
        let text = format!("hello {count}");
        let task = rpc.send(&text).await;
        assert_eq!(task::state(&task), COMPLETED, "{task}");
        assert_eq!(task::artifacts(&task)["echo"], text);
        longest = longest.max(start.elapsed());
        count += 1;
    }
    (count, longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_resets_do_not_fail_calls_of_other_clients() {
    let _turn = crate::turn().await;
    // Enough slots for the sleeping tasks that reset connections leave behind.
    let plan = Plan::default().workers(&["echo", "script"]).slots(4096);
    let cluster = plan.start().await;
    let rpc = cluster.rpc();
    let stop = Arc::new(AtomicBool::new(false));
    let resets = Arc::new(AtomicUsize::new(0));
    let busy = (0..2).map(|_| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    let calling = (0..CLIENTS).map(|_| {
        let rpc = rpc.agent("echo").within(ANSWER_MAX);
        tokio::spawn(call_until_stopped(rpc, Arc::clone(&stop)))
    });
    let calling: Vec<_> = calling.collect();
    let resetting = (0..CONNECTIONS).map(|_| {
        tokio::spawn(reset_connections(rpc.clone(), Arc::clone(&stop), Arc::clone(&resets)))
    });
    let resetting: Vec<_> = resetting.collect();
    tokio::time::sleep(STORM).await;
    stop.store(true, Relaxed);
    let mut served = 0;
    let mut longest = Duration::ZERO;
    for client in calling {
        let (count, took) = client.await.expect("every call of a well-behaved client succeeds");
        served += count;
        longest = longest.max(took);
    }
    for client in resetting {
        client.await.expect("a reset is no panic");
    }
    busy.into_iter().for_each(|thread| thread.join().expect("it only spins"));
    let resets = resets.load(Relaxed);
    eprintln!(
        "{resets} connections were reset; {served} requests were served, the slowest in {longest:?}"
    );
    assert!(resets > 4 * CONNECTIONS, "too few resets: {resets}");
    assert!(served > CLIENTS, "too few calls were served: {served}");
    // A task outlives the connection of its client: the abandoned tasks end as all others do.
    until("the abandoned tasks have ended", Duration::from_secs(60), async || {
        let workers = rpc.mesh("Workers", json!({})).await;
        let agents = rpc.mesh("Agents", json!({})).await;
        let is_zero = |value: &serde_json::Value| value.as_u64().unwrap_or(0) == 0;
        let idle = workers["workers"].as_array()?.iter().all(|w| is_zero(&w["used"]));
        let empty = agents["agents"].as_array()?.iter().all(|a| is_zero(&a["queued"]));
        (idle && empty).then_some(())
    })
    .await;
}
