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
        let grace = i64::try_from(core.config.reattach_grace_ms).unwrap_or(i64::MAX);
        let patience = i64::try_from(core.config.wait_for_worker_ms).unwrap_or(i64::MAX);
        core.change(|state| {
            for worker in state.overdue(now.saturating_sub(grace)) {
                state.lose(worker, &core.config, now);
            }
            state.give_up_waiting(now.saturating_sub(patience), now);
        });
    }
}
