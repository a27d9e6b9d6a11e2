//! Slot release: an attempt gives its slot back while it waits for other agents. Otherwise a call
//! chain deeper than the free slots would deadlock. Slots are counted in `registry`.

use faultline_proto::{
    id::{TaskId, WorkerId},
    v1::{GoOn, Slot, ToWorker, to_worker},
};

use crate::{
    engine::core::State,
    task::{Millis, is_waiting},
};

impl State {
    /// Tells a worker that an attempt holds its slot again.
    pub(crate) fn send_go_on(&mut self, id: TaskId, worker: WorkerId) {
        let Some(active) = self.tasks.get(&id) else { return };
        let go_on = GoOn { task_id: id.to_string(), attempt: active.pending().attempt };
        self.tell(worker, ToWorker { body: Some(to_worker::Body::GoOn(go_on)) });
    }

    /// Handles a slot message: an attempt releases its slot, or requests a slot, ahead of new
    /// tasks.
    pub(crate) fn slot(&mut self, worker_id: WorkerId, slot: &Slot, now: Millis) {
        let Ok(id) = slot.task_id.parse::<TaskId>() else { return };
        let task = self.tasks.get(&id).map(|active| active.pending());
        let Some(task) = task.filter(|task| task.is_current(slot.attempt)) else { return };
        let asks = is_waiting(task.state);
        let worker = self.registry.workers.get_mut(&worker_id);
        let Some(worker) = worker.filter(|w| w.runs(id, slot.attempt)) else { return };
        match (slot.released, worker.computes(id)) {
            (true, _) => {
                if worker.release(id) {
                    self.send_answers(id, worker_id);
                }
            }
            (false, true) => self.send_go_on(id, worker_id),
            // A question is open as well: until the last answer the attempt continues without a
            // slot.
            (false, false) if asks => {
                worker.go_on_without(id);
                self.send_go_on(id, worker_id);
            }
            (false, false) => worker.resume(id),
        }
        self.fill(worker_id, now);
    }
}

#[cfg(test)]
mod tests;
