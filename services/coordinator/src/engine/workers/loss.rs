//! Loss of workers: tasks of a lost worker are retried elsewhere or fail, and queued tasks of an
//! agent without workers fail after a wait.

use std::time::Duration;

use faultline_proto::{
    Failure,
    id::{TaskId, WorkerId},
    reason,
    v1::{self, event},
};

use crate::{
    Config,
    engine::{
        active_task::ActiveTask, core::State, deferred_cancel::is_stop, workers::registry::Presence,
    },
    task::{Millis, Task, is_waiting},
};

impl State {
    /// A worker did not reattach within the grace period: its tasks are retried elsewhere or fail.
    pub(crate) fn lose_worker(&mut self, worker_id: WorkerId, now: Millis) {
        let Some(worker) = self.registry.workers.remove(&worker_id) else { return };
        for (id, _) in worker.running() {
            self.lose_attempt(id, worker_id, now);
        }
    }

    fn lose_attempt(&mut self, id: TaskId, worker_id: WorkerId, now: Millis) {
        let name = worker_id.to_string();
        let Some(active) = self.tasks.get_mut(&id).filter(|l| l.pending().worker == name) else {
            return;
        };
        let agent = self.registry.agents.get(active.pending().runner());
        let losses_max = agent.map_or(1, |agent| agent.policy.losses_max);
        let waited = is_waiting(active.pending().state);
        let enough = !waited && active.pending().losses + 1 >= losses_max;
        let bodies = if enough && self.registry.next_stand_in(active.pending()).is_some() {
            Ok(active.pending().decide_retry(worker_lost(active.pending(), losses_max), None))
        } else {
            active.pending().decide_lose(losses_max, |task| worker_lost(task, losses_max))
        };
        let Ok(bodies) = bodies else { return };
        if bodies.iter().any(|body| matches!(body, event::Body::Ended(_))) {
            self.note_undelivered_cancel(id);
        }
        let lost = self.transition(id, None, now, |transition| {
            transition.apply_all(bodies);
            let task = transition.task();
            let trace = task.run_trace().trace_id();
            let over = task.is_final();
            tracing::warn!(
                task.id = %id, trace.id = trace, attempt = task.attempt, losses = task.losses, over,
                "worker of the task was lost"
            );
            (over, task.needs_worker())
        });
        let Some((over, needs_worker)) = lost else { return };
        if over {
            self.end_children(id, now);
            self.note_end(id, now);
        } else if needs_worker {
            self.place(id, now);
        }
    }

    /// The worker is attached but does not know the attempt any more. The release costs no retry.
    pub(crate) fn release_attempt(&mut self, id: TaskId, worker: WorkerId, now: Millis) {
        self.finish_on(worker, id);
        let name = worker.to_string();
        // A task that has ended has no worker.
        let is_its = |active: &ActiveTask| active.pending().worker == name;
        if !self.tasks.get(&id).is_some_and(is_its) {
            return;
        }
        let needs_worker = self.transition(id, None, now, |transition| {
            let released = transition.task().decide_release();
            transition.apply_all(released);
            transition.task().needs_worker()
        });
        if needs_worker == Some(true) {
            self.place(id, now);
        }
    }

    /// Workers whose stream has been broken for longer than the grace period.
    pub(crate) fn overdue(&self, grace: Duration) -> Vec<WorkerId> {
        let gone = self.registry.workers.iter().filter(|(_, worker)| match worker.link {
            Presence::Gone { since } => since.elapsed() >= grace,
            Presence::Attached { .. } => false,
        });
        gone.map(|(id, _)| *id).collect()
    }

    /// Fails tasks that have waited too long for an agent without workers. After a restart the
    /// workers first have time to reattach.
    pub(crate) fn give_up_waiting(&mut self, config: &Config, now: Millis) {
        if self.in_startup_grace() {
            return;
        }
        let patience = Duration::from_millis(config.wait_for_worker_ms);
        let mut stale = Vec::new();
        let agents = self.registry.agents.iter();
        for (_, agent) in agents.filter(|(name, _)| !self.registry.has_worker(name)) {
            let waited = agent.queue.iter().filter(|(_, since)| since.elapsed() >= patience);
            // Deferred cancels wait for their whole time budget.
            let stop =
                |id: &TaskId| self.tasks.get(id).is_some_and(|active| is_stop(active.pending()));
            stale.extend(waited.map(|(id, _)| id).filter(|id| !stop(id)));
        }
        for id in stale {
            let Some(active) = self.tasks.get(&id) else { continue };
            let failure = Failure::new(&reason::AGENT_UNAVAILABLE)
                .because(format!("no worker offers agent '{}'", active.pending().agent))
                .with_retryable(true)
                .with_plane(v1::Plane::Execution);
            let failure = active.pending().complete_failure(failure, "coordinator");
            if let Ok(body) = active.pending().decide_fail(failure) {
                self.end(id, body, "operator", now);
            }
        }
    }
}

fn worker_lost(task: &Task, losses_max: u32) -> Failure {
    let text = match losses_max {
        1 => "the worker was lost, and tasks of this agent are not tried again".to_owned(),
        n => format!("the worker was lost in each of {n} attempts"),
    };
    let failure = Failure::new(&reason::WORKER_LOST)
        .because(text)
        .with_plane(v1::Plane::Execution)
        .with_retries_spent(task.losses + task.retries);
    // The agent does not allow a second run after a loss, so the caller has to check first whether
    // the work was done.
    let failure = match losses_max {
        1 => failure.with_retryable(false),
        _ => failure,
    };
    let worker = task.attempts.last().map_or("", |attempt| attempt.worker.as_str());
    task.complete_failure(failure, "worker").with_origin_worker(worker)
}

#[cfg(test)]
mod tests;
