//! Clients that die in mid-request, hundreds at a time and again and again, on a machine that is
//! busy with other things: nobody else may notice.

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
const BEHAVED: usize = 4;
/// The well-behaved wait so long for one answer, and no longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends something and dies before the answer, until the storm is over.
async fn die_again_and_again(rpc: Rpc, stop: Arc<AtomicBool>, deaths: Arc<AtomicUsize>) {
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
        // A connection that the gateway refuses is not what this is about.
        if post_and_reset(rpc.address(), &envelope(method, params), moment).await.is_ok() {
            deaths.fetch_add(1, Relaxed);
        }
    }
}

/// Sends and is answered, every time. Gives how often, and the longest it took.
async fn behave(rpc: Rpc, stop: Arc<AtomicBool>) -> (usize, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
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
async fn clients_that_die_in_mid_request_cost_nobody_else_an_answer() {
    let _turn = crate::turn().await;
    // Those who die leave sleepers behind; the well-behaved do not stand in line with them.
    let plan = Plan::default().workers(&["echo", "script"]).slots(4096);
    let cluster = plan.start().await;
    let rpc = cluster.rpc();
    let stop = Arc::new(AtomicBool::new(false));
    let deaths = Arc::new(AtomicUsize::new(0));
    let busy = (0..2).map(|_| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    let behaved = (0..BEHAVED).map(|_| {
        let rpc = rpc.agent("echo").within(PATIENCE);
        tokio::spawn(behave(rpc, Arc::clone(&stop)))
    });
    let behaved: Vec<_> = behaved.collect();
    let dying = (0..CONNECTIONS).map(|_| {
        tokio::spawn(die_again_and_again(rpc.clone(), Arc::clone(&stop), Arc::clone(&deaths)))
    });
    let dying: Vec<_> = dying.collect();
    tokio::time::sleep(STORM).await;
    stop.store(true, Relaxed);
    let (mut served, mut longest) = (0, Duration::ZERO);
    for client in behaved {
        let (count, took) = client.await.expect("every request of the well-behaved succeeds");
        served += count;
        longest = longest.max(took);
    }
    for client in dying {
        client.await.expect("dying is no panic");
    }
    busy.into_iter().for_each(|thread| thread.join().expect("it only spins"));
    let deaths = deaths.load(Relaxed);
    eprintln!("{deaths} clients died; {served} requests were served, the slowest in {longest:?}");
    assert!(deaths > 4 * CONNECTIONS, "that was no storm: {deaths}");
    assert!(served > BEHAVED, "that was no service: {served}");
    // Tasks belong to the store and not to a connection: the abandoned ones end like all others.
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
