//! Loading of stored tasks into memory, after a restart, a take-over or a rollback, and the grace
//! period for workers to reattach after the store was read.

use faultline_proto::id::WorkerId;

use crate::{
    engine::{active_task::ActiveTask, core::State, workers::registry::Worker},
    task::{Millis, Task, is_waiting},
};

impl State {
    /// Loads a task from the store: it waits for its worker, for a slot or for an answer.
    pub(crate) fn load(&mut self, task: Task, now: Millis) {
        let (id, agent, runner) = (task.id, task.agent.clone(), task.runner().to_owned());
        if self.tasks.contains(&id) || task.is_final() {
            return;
        }
        let (waiting, attempt) = (is_waiting(task.state), task.attempt);
        let retry_at = task.retry_at;
        let needs_worker = task.needs_worker();
        let worker = task.worker.parse::<WorkerId>().ok();
        let meters = self.meters_of(&agent);
        self.tasks.insert(id, ActiveTask::new(task, meters));
        self.set_timers(id);
        if waiting {
            self.count_waiting(&agent, 1);
        }
        match worker {
            Some(worker) => {
                let worker =
                    self.registry.workers.entry(worker).or_insert_with(|| Worker::from_store(now));
                worker.start(id, &runner, attempt, !waiting);
            }
            None if needs_worker && retry_at.is_some() => self.place_after_pause(id, now),
            None if needs_worker => {
                let target = self.tasks.get(&id).map(|active| self.target(active.pending()));
                self.enqueue(id, &target.unwrap_or(runner));
            }
            None => {}
        }
        self.take_remote_watch(id);
    }

    /// Whether the store was read so recently that workers may still reattach.
    pub(crate) fn in_startup_grace(&self) -> bool {
        self.since.elapsed() < self.registry.reattach_grace()
    }
}
