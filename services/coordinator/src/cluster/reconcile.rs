//! Reconciles the in-memory copy of a task with the store after another coordinator changed it
//! (cancel or answer, by optimistic concurrency) or took ownership. Applies the same local side
//! effects as a local change would.

use std::sync::Arc;

use faultline_proto::{
    a2a::TaskState,
    id::{TaskId, WorkerId},
    v1::{Cancel, Event, ToWorker, to_worker},
};
use prost::Message;
use tokio::time::Instant;

use crate::{
    clock::now,
    engine::{
        active_task::Waiter,
        core::{Core, State},
        effect::Effect,
        timeouts::Timer,
    },
    error::Error,
    policy::circuit_breaker::HealthSignal,
    store::{ReadError, Scope, Stored},
    task::{Millis, Task, is_waiting},
};

/// The state of a task in the store, compared with its copy in memory.
pub(crate) enum StoredTask {
    /// This coordinator owns the task, or the task has ended.
    Here(Box<RemoteStep>),
    /// A peer owned the task at this time. An acquisition after that is newer.
    Remote(Instant),
    /// The task has no row: its reply was a bare message, or its retention has passed.
    Gone,
}

/// The events of a task that are newer than its copy in memory.
pub(crate) struct RemoteStep {
    task: Task,
    events: Vec<Event>,
    /// This coordinator owned the task when it ended.
    is_ours: bool,
}

impl Core {
    /// Reads a task that a peer may have changed, and reconciles its copy in memory.
    pub(crate) async fn refresh_task(self: &Arc<Self>, id: TaskId) -> Result<(), Error> {
        let Some(published) = self.lock().tasks.get(&id).map(|active| active.published) else {
            return Ok(());
        };
        let found = self.find(id, published).await?;
        self.change(|state| state.reconcile(id, found, now()));
        Ok(())
    }

    /// Reads a task from the store for a call. If a peer owns the task, the copy in memory is older
    /// and is released first.
    pub(crate) async fn read(&self, id: TaskId, scope: Scope) -> Result<Option<Task>, Error> {
        let asked = Instant::now();
        let Some(Stored { task, ours, .. }) = self.store.task(id, scope).await? else {
            return Ok(None);
        };
        if !ours && !task.is_final() && self.lock().tasks.contains(&id) {
            self.change(|state| state.reconcile(id, StoredTask::Remote(asked), now()));
        }
        Ok(Some(task))
    }

    /// Reads a task from the store, with its events after `seq`.
    pub(crate) async fn find(&self, id: TaskId, seq: u64) -> Result<StoredTask, Error> {
        let asked = Instant::now();
        let stored = match self.store.task(id, Scope::default()).await {
            // A corrupt task stays corrupt however often it is read.
            Err(damaged @ ReadError::Damaged { .. }) => {
                tracing::error!(
                    error = %damaged,
                    "task is corrupt in the store: dropped from memory"
                );
                None
            }
            stored => stored?,
        };
        let Some(Stored { task, ours, .. }) = stored else { return Ok(StoredTask::Gone) };
        // A task that has ended has no owner, and this coordinator knows its worker.
        if !ours && !task.is_final() {
            return Ok(StoredTask::Remote(asked));
        }
        let news = usize::try_from(task.seq.saturating_sub(seq)).unwrap_or(usize::MAX);
        let stored = self.store.events(id, seq, news).await?;
        let damaged = |e: prost::DecodeError| Error::Store { detail: e.to_string() };
        let events = stored.into_iter().map(|event| Event::decode(event.body));
        let events = events.collect::<Result<_, _>>().map_err(damaged)?;
        Ok(StoredTask::Here(Box::new(RemoteStep { task, events, is_ours: ours })))
    }
}

impl State {
    pub(crate) fn reconcile(&mut self, id: TaskId, found: StoredTask, now: Millis) {
        let Some(active) = self.tasks.get(&id) else { return };
        match found {
            StoredTask::Remote(asked) if active.owned_since > asked => {}
            StoredTask::Remote(_) => self.release_ownership(id),
            // The store refuses the writes that are queued here, and their rollback reconciles.
            StoredTask::Here(step)
                if !active.is_confirmed() || step.task.version <= active.pending().version => {}
            StoredTask::Here(step)
                if active.published + step.events.len() as u64 == step.task.seq =>
            {
                self.apply_remote_events(*step, now);
            }
            // The task moved on during the read; a notification follows.
            StoredTask::Here(_) => {}
            StoredTask::Gone if active.published > 0 => {
                self.release_ownership(id);
                self.end_children(id, now);
            }
            StoredTask::Gone => {}
        }
    }

    /// Takes out the waiters of the refused write and of writes built on it, here or in the remote
    /// watch.
    pub(crate) fn take_dependent_waiters(&mut self, id: TaskId, refused: u64) -> Vec<Waiter> {
        let waiters = match self.tasks.get_mut(&id) {
            Some(active) => &mut active.waiters,
            None => match self.remote_watches.get_mut(&id) {
                Some(followed) => followed.waiters_mut(),
                None => return Vec::new(),
            },
        };
        let riders: Vec<_> =
            waiters.extract_if(.., |waiter| waiter.depends_on_seq >= refused).collect();
        for call in riders.iter().filter_map(|waiter| waiter.call) {
            self.calls.remove(&call);
        }
        riders
    }

    /// Rolls back a refused write: the task becomes as it is stored. Returns the waiters of the
    /// refused writes.
    pub(crate) fn rollback(&mut self, id: TaskId, found: StoredTask, now: Millis) -> Vec<Waiter> {
        let Some(active) = self.tasks.get_mut(&id) else { return Vec::new() };
        let step = match found {
            StoredTask::Remote(_) => {
                self.release_ownership(id);
                return Vec::new();
            }
            StoredTask::Gone => {
                let waiters = std::mem::take(&mut active.waiters);
                waiters.iter().filter_map(|w| w.call).for_each(|call| {
                    self.calls.remove(&call);
                });
                self.release_ownership(id);
                self.end_children(id, now);
                return waiters;
            }
            StoredTask::Here(step) => *step,
        };
        let task = &step.task;
        // Back to the confirmed state, from where the remote events are applied.
        active.published = task.seq - step.events.len() as u64;
        let (old, assigned) = (active.pending().worker.clone(), active.assigned);
        // The worker has to resend the reports that are not stored, and gets the messages that it
        // may have missed, as after a reattach.
        let concerned = [Some(&old).filter(|_| assigned), Some(&task.worker)];
        for worker in concerned.into_iter().flatten().filter_map(|w| w.parse().ok()) {
            self.registry.detach(worker);
        }
        let Some(active) = self.tasks.get_mut(&id) else { return Vec::new() };
        if task.is_final() {
            // A worker that was never sent the assignment has nothing to stop.
            if !assigned && let Ok(worker) = old.parse::<WorkerId>() {
                self.finish_on(worker, id);
            }
            self.apply_remote_events(step, now);
            return Vec::new();
        }
        let waiters = std::mem::take(&mut active.waiters);
        if is_waiting(active.pending().state) {
            let agent = active.pending().agent.clone();
            self.count_waiting(&agent, -1);
        }
        self.tasks.remove(&id);
        self.clear_timers(id);
        if let Ok(worker) = old.parse::<WorkerId>() {
            self.finish_on(worker, id);
        }
        self.load(step.task, now);
        self.announce_if_queued(id);
        self.join_task_tree(id, now);
        if let Some(active) = self.tasks.get_mut(&id) {
            active.waiters = waiters;
        }
        self.answer_settled(id);
        Vec::new()
    }

    /// A peer owns the task now. The waiters here keep waiting as a remote watch.
    pub(crate) fn release_ownership(&mut self, id: TaskId) {
        let Some(active) = self.tasks.remove(&id) else { return };
        let (agent, runner) =
            (active.pending().agent.clone(), active.pending().runner().to_owned());
        let abandoned = self.timers.at(Timer::Abandoned(id));
        self.clear_timers(id);
        abandoned.into_iter().for_each(|at| self.timers.set(Timer::Abandoned(id), at));
        self.leave_queues(id, &agent);
        if is_waiting(active.pending().state) {
            self.count_waiting(&agent, -1);
        }
        if let Ok(worker) = active.pending().worker.parse::<WorkerId>() {
            self.finish_on(worker, id);
            // Reports of this worker belong to the new owner: the worker must find that
            // coordinator.
            if active.assigned {
                self.registry.detach(worker);
            }
        }
        if let Some(agent) = self.registry.agents.get_mut(&runner) {
            let rules = &agent.policy.breaker;
            agent.breaker.record(id, HealthSignal::Nothing, rules, Instant::now());
        }
        self.registry.meters.moved.add(1);
        self.convert_to_remote_watch(id, *active);
    }

    /// Applies the events of a peer to a task of this coordinator.
    fn apply_remote_events(&mut self, step: RemoteStep, now: Millis) {
        let RemoteStep { task, events, is_ours } = step;
        let id = task.id;
        // The owner at the time of the cancel knows the worker, and defers the cancel if necessary.
        if is_ours && task.state == TaskState::Canceled {
            self.note_undelivered_cancel(id);
            self.enqueue_deferred_cancels(now);
        }
        let Some(active) = self.tasks.get_mut(&id) else { return };
        let (was_waiting, attempt) = (is_waiting(active.pending().state), active.pending().attempt);
        let worker = active.pending().worker.parse::<WorkerId>().ok();
        let first = active.published + 1;
        active.replace_by_stored(task);
        let (over, agent) = (active.pending().is_final(), active.pending().agent.clone());
        let asks = is_waiting(active.pending().state);
        let spans = active.follow_spans(&self.registry);
        spans.into_iter().for_each(|spans| self.after_commit(spans.into()));
        self.set_timers(id);
        if over {
            if let Some(worker) = worker {
                self.tell_stop(worker, id, attempt);
            }
            if was_waiting {
                self.count_waiting(&agent, -1);
            }
            self.leave_queues(id, &agent);
            self.note_end(id, now);
            self.publish_task(id, first, events);
            self.end_children(id, now);
            return;
        }
        self.publish_task(id, first, events);
        if was_waiting && !asks {
            self.count_waiting(&agent, -1);
        }
        self.answered(id, asks, &agent, now);
    }

    fn tell_stop(&mut self, worker: WorkerId, id: TaskId, attempt: u32) {
        let failure = self.tasks.get(&id).and_then(|active| active.pending().failure.as_ref());
        let initiator = failure.and_then(|failure| failure.cancel.as_ref());
        let initiator = initiator.map_or("user", |told| told.initiator.as_str()).to_owned();
        let cancel = Cancel { task_id: id.to_string(), attempt, initiator };
        let body = Some(to_worker::Body::Cancel(cancel));
        self.after_commit(Effect::Tell(worker, Box::new(ToWorker { body })));
        if let Some(worker) = self.registry.workers.get_mut(&worker) {
            worker.stop_resuming(id);
        }
        self.expect_stop(worker, id, attempt);
    }
}
