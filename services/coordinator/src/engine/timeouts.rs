//! Deadlines and other timers of tasks: time budgets, retry pauses, question expiry,
//! cancel-on-disconnect and stop deadlines. One loop sleeps until the earliest timer. After a
//! restart the timers are set again from the stored tasks.

pub(crate) mod timers;

use std::{sync::Arc, time::Duration};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    id::{TaskId, WorkerId},
    reason,
    v1::Plane,
};
use tokio::time::{Instant, sleep_until};

use crate::{
    calls::caller::Caller,
    clock::now,
    engine::{
        core::{Core, State},
        workers::registry::Agent,
    },
    error::Error,
    task::{Millis, Task, a2a_view::cancelled, time_budget, trace_segment},
};

/// Retry hint for the caller of a task that ran out of time.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The longest delay of a timer; later deadlines are checked again.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);
/// Timers fired under one lock, so that other users of the lock do not wait long.
const AT_ONCE: usize = 256;

/// A timer of a task or an attempt. A task has one of each kind at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Timer {
    /// The time budget of the task is used up.
    Deadline(TaskId),
    /// The retry pause of the task ends.
    Pause(TaskId),
    /// A question of the task expires.
    Question(TaskId),
    /// The grace period of a client that disconnected ends.
    Abandoned(TaskId),
    /// The worker should have confirmed by now that the attempt has stopped.
    StopDeadline(WorkerId, TaskId, u32),
}

impl Core {
    /// Fires timers when they are due. Never returns.
    pub(crate) async fn run_timers(self: Arc<Self>) {
        loop {
            let next = self.lock().timers.next();
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.change(|state| state.fire_due_timers(Instant::now(), now())),
                () = self.sooner.notified() => {}
            }
        }
    }
}

impl Core {
    /// The limit of active time for a new task of this agent.
    pub(crate) fn limit(
        &self,
        state: &State,
        agent: &Agent,
        caller: &Caller,
    ) -> Result<Option<Duration>, Error> {
        let asked_max = self.config.timeout_ms_max.map(Duration::from_millis);
        // A detached child may outlive its parent, so the budget of the parent does not bound it.
        let calling = caller.calling.as_ref().filter(|calling| !calling.detached);
        let parent = calling.and_then(|calling| state.tasks.get(&calling.task));
        let left = parent.and_then(|parent| parent.pending().budget.left(now()));
        time_budget::allot(caller.task_timeout, asked_max, agent.policy.timeout, left).map_err(
            |left| {
                let caller =
                    parent.map_or_else(String::new, |parent| parent.pending().agent.clone());
                Error::BudgetExhausted { caller, agent: agent.offer.name.clone(), left }
            },
        )
    }
}

impl State {
    pub(crate) fn fire_due_timers(&mut self, at: Instant, now: Millis) {
        for _ in 0..AT_ONCE {
            let Some(due) = self.timers.pop(at) else { return };
            // The state is discarded or no longer owned: the recovery sets the timers again.
            if self.closed.is_some() {
                continue;
            }
            match due {
                Timer::Deadline(id) => self.expire_deadline(id, now),
                Timer::Pause(id) => self.place(id, now),
                Timer::Question(id) => self.expire_questions(id, now),
                Timer::Abandoned(id) => self.cancel_abandoned(id, now),
                Timer::StopDeadline(worker, id, attempt) => self.note_orphan(worker, id, attempt),
            }
        }
    }

    /// Sets the timers of a task after a step.
    pub(crate) fn set_timers(&mut self, id: TaskId) {
        let Some(active) = self.tasks.get(&id) else { return };
        if active.pending().is_final() {
            self.clear_timers(id);
            return;
        }
        let (budget, due) = (active.pending().budget, Timer::Deadline(id));
        if let Some(at) = active.pending().retry_at {
            let pause = until(at, now()).min(limits::RETRY_BACKOFF_MAX);
            self.timers.set(Timer::Pause(id), Instant::now() + pause);
        }
        match active.pending().next_expiry() {
            Some(at) => self.timers.set(Timer::Question(id), Instant::now() + until(at, now())),
            None => self.timers.clear(Timer::Question(id)),
        }
        if budget.limit().is_none() {
            return;
        }
        if !budget.is_running() {
            self.timers.clear(due);
        } else if self.timers.at(due).is_none() {
            // From here on by the monotonic clock.
            let left = budget.left(now()).unwrap_or_default();
            self.timers.set(due, Instant::now() + left);
        }
    }

    /// Clears the timers of a task that has ended or left memory.
    pub(crate) fn clear_timers(&mut self, id: TaskId) {
        for due in
            [Timer::Deadline(id), Timer::Pause(id), Timer::Question(id), Timer::Abandoned(id)]
        {
            self.timers.clear(due);
        }
    }

    /// Places a task without a worker, unless its retry pause still runs.
    pub(crate) fn place_after_pause(&mut self, id: TaskId, now: Millis) {
        if self.tasks.get(&id).is_some_and(|active| active.pending().retry_at.is_none()) {
            self.place(id, now);
        }
    }

    /// Answers the expired questions of a task with a timeout. The agent decides how the task
    /// continues.
    fn expire_questions(&mut self, id: TaskId, now: Millis) {
        let Some(active) = self.tasks.get(&id) else { return };
        for key in active.pending().expired(now) {
            let Some(active) = self.tasks.get(&id) else { return };
            let trace = active.pending().run_trace().trace_id();
            tracing::info!(
                task.id = %id, trace.id = trace, question = key,
                "question expired without an answer"
            );
            // No call caused this step, so it starts a trace of its own.
            let body = trace_segment::traced(
                active.pending().decide_expire(key),
                &active.pending().run.parent().anew(),
            );
            self.answer(id, body, None, now, |_| {});
        }
        // The wall clock may have been slower, or more questions are open.
        self.set_timers(id);
    }

    fn expire_deadline(&mut self, id: TaskId, now: Millis) {
        let Some(task) = self.tasks.get(&id).map(|active| active.pending()) else { return };
        let failure = task.complete_failure(timed_out(task), "coordinator");
        if let Ok(body) = task.decide_fail(failure) {
            self.end(id, body, "deadline", now);
        }
    }

    /// Starts the grace period of a task whose client disconnected before the reply.
    pub(crate) fn start_disconnect_grace(&mut self, id: TaskId, grace: Duration) {
        // The caller reconnected at another coordinator before this disconnect was noticed.
        if self
            .watched_by_peers
            .get(&id)
            .is_some_and(|since| since.elapsed() < limits::PEER_WATCH_TTL)
        {
            return;
        }
        let known = self.tasks.contains(&id) || self.remote_watches.contains_key(&id);
        if self.closed.is_some() || !known && !self.may_be_remote() {
            return;
        }
        let (due, at) = (Timer::Abandoned(id), Instant::now() + grace);
        // With several disconnected callers, the longest grace period counts.
        let at = self.timers.at(due).map_or(at, |known| known.max(at));
        self.timers.set(due, at);
    }

    /// Whether the client of this call left before its task was known.
    pub(crate) fn has_left(&mut self, caller: &Caller) -> bool {
        let announced = caller.call.filter(|_| caller.cancel_after.is_some());
        announced.is_some_and(|call| !self.early_disconnects.remove(&call))
    }

    /// Ends the grace period: the caller reconnected at another coordinator.
    pub(crate) fn clear_disconnect_grace(&mut self, id: TaskId) {
        self.timers.clear(Timer::Abandoned(id));
        let now = Instant::now();
        if self.watched_by_peers.len() >= limits::PEER_WATCHES_MAX {
            self.watched_by_peers
                .retain(|_, since| now.duration_since(*since) < limits::PEER_WATCH_TTL);
        }
        if self.watched_by_peers.len() < limits::PEER_WATCHES_MAX {
            self.watched_by_peers.insert(id, now);
        }
    }

    fn cancel_abandoned(&mut self, id: TaskId, now: Millis) {
        if self.is_followed_here(id) {
            return;
        }
        let Some(active) = self.tasks.get(&id) else {
            if self.is_shared {
                self.remote_to_cancel.push(id);
            }
            return;
        };
        let text = "cancelled because its caller went away";
        let failure = cancelled("disconnect", text, None);
        let failure = active.pending().complete_failure(failure, "coordinator");
        if let Ok(body) = active.pending().decide_cancel(failure) {
            self.end(id, body, "disconnect", now);
        }
    }

    /// Sets the stop deadline of an attempt that is being cancelled.
    pub(crate) fn expect_stop(&mut self, worker: WorkerId, id: TaskId, attempt: u32) {
        if let Some(worker) = self.registry.workers.get_mut(&worker) {
            worker.stop(id);
        }
        let at = Instant::now() + limits::ORPHANED_AFTER;
        self.timers.set(Timer::StopDeadline(worker, id, attempt), at);
    }

    fn note_orphan(&mut self, worker_id: WorkerId, id: TaskId, attempt: u32) {
        let worker = self.registry.workers.get_mut(&worker_id);
        // A worker without a stream did not get the cancel; it gets the cancel when it reattaches.
        let Some(worker) = worker.filter(|w| w.is_attached() && w.runs(id, attempt)) else {
            return;
        };
        worker.orphan(id);
        tracing::warn!(
            task.id = %id,
            attempt,
            worker = worker.name,
            "cancelled attempt did not stop in time: it holds its slot until it stops"
        );
    }
}

/// Cancels the task of a call on drop, unless it was disarmed before: the client disconnected. Held
/// by the call or its stream; never dropped under the state lock, because its drop takes that lock
/// (deadlock).
pub(crate) struct DisconnectGuard {
    core: Option<Arc<Core>>,
    task: TaskId,
    grace: Duration,
}

impl DisconnectGuard {
    /// `None`: the task does not depend on this caller.
    pub(crate) fn of(caller: &Caller, core: &Arc<Core>, task: TaskId) -> Option<Self> {
        let grace = caller.cancel_after?;
        Some(Self { core: Some(Arc::clone(core)), task, grace })
    }

    /// The call was answered: the drop does nothing.
    pub(crate) fn disarm(mut self) {
        self.core = None;
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.change(|state| state.start_disconnect_grace(self.task, self.grace));
        }
    }
}

/// The wall clock may have been set meanwhile, so the delay is bounded by the caller.
fn until(at: Millis, now: Millis) -> Duration {
    let millis = u64::try_from(at.saturating_sub(now)).unwrap_or(0);
    Duration::from_millis(millis).min(FAR)
}

fn timed_out(task: &Task) -> Failure {
    let limit = task.budget.limit().unwrap_or_default();
    Failure::new(&reason::TASK_TIMEOUT)
        .because(format!("agent '{}' did not finish within {limit:?}", task.agent))
        .with_retry_after(RETRY_AFTER)
        .with_plane(Plane::Execution)
}

#[cfg(test)]
mod tests;
