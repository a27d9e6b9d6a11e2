//! Periodic sweeps: lost workers, tasks without workers, expired keys, the retention of ended
//! tasks, and agents without workers. Timers of single tasks are in `timeouts`.

use std::{sync::Arc, time::Duration};

use faultline_chassis::limits;
use faultline_proto::id::TaskId;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    background::retention::START,
    clock::now,
    engine::core::Core,
    store::{Write, key_retention},
};

/// The sweep interval.
const TICK: Duration = Duration::from_millis(100);
/// Interval between two sweeps of expired keys. A late sweep does no harm: lookups ignore expired
/// keys.
const KEYS_TICK: Duration = Duration::from_secs(10);
/// Interval between two retention scans.
const ENDED_TICK: Duration = Duration::from_secs(10 * 60);
/// Keys erased in one commit, so that other writes do not wait long.
const KEYS_AT_ONCE: usize = 1000;

pub(crate) async fn run(core: Arc<Core>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut keys_due = Instant::now();
    let (mut ended_due, mut place) = (Instant::now(), None);
    let mut bindings_due = Instant::now() + limits::WORKER_ID_RENEWAL;
    // Not at once: after a long stop the workers have to reattach first.
    let agents_interval = core.config.agents_interval();
    let (mut agents_due, mut _forgetting) = (Instant::now() + agents_interval, None);
    loop {
        tick.tick().await;
        let now = now();
        let grace = Duration::from_millis(core.config.reattach_grace_ms);
        core.change(|state| {
            for worker in state.overdue(grace) {
                state.lose_worker(worker, now);
            }
            state.serve_queues(now);
            state.give_up_waiting(&core.config, now);
        });
        if keys_due <= Instant::now() {
            // More keys than one commit erases are erased by the following ticks.
            let all = core.forget_keys().await;
            keys_due = Instant::now() + if all { KEYS_TICK } else { TICK };
        }
        if bindings_due <= Instant::now() {
            core.keep_introduced().await;
            bindings_due = Instant::now() + limits::WORKER_ID_RENEWAL;
        }
        if agents_due <= Instant::now() {
            // Concurrent, because the sweep must not wait for a commit.
            let own = Arc::clone(&core);
            let forgetting = tokio::spawn(async move { own.forget_agents().await });
            _forgetting = Some(AbortOnDropHandle::new(forgetting));
            agents_due = Instant::now() + agents_interval;
        }
        if ended_due <= Instant::now() {
            place = core.expire_tasks(place.unwrap_or(TaskId::from_bytes(START))).await;
            ended_due = Instant::now() + if place.is_none() { ENDED_TICK } else { TICK };
        }
    }
}

impl Core {
    /// Erases expired keys. False: there may be more.
    pub(crate) async fn forget_keys(&self) -> bool {
        let before = now() - key_retention();
        match self.store.oldest_key().await {
            Ok(Some(oldest)) if oldest < before => {
                let write = Write::ForgetKeys { before, limit: KEYS_AT_ONCE };
                self.change(|state| state.commit_write(write, Vec::new()));
                false
            }
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "sweep of expired keys failed");
                true
            }
        }
    }
}
