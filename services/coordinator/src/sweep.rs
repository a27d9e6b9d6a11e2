//! What happens because time passes: workers that did not come back, tasks that nobody takes.

use std::{sync::Arc, time::Duration};

use crate::core::{Core, now};

/// How late the sweep may be.
const TICK: Duration = Duration::from_millis(100);

pub(crate) async fn run(core: Arc<Core>) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let now = now();
        let grace = Duration::from_millis(core.config.reattach_grace_ms);
        let patience = Duration::from_millis(core.config.wait_for_worker_ms);
        core.change(|state| {
            for worker in state.overdue(grace) {
                state.lose(worker, &core.config, now);
            }
            state.give_up_waiting(patience, now);
        });
    }
}
