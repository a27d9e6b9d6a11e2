//! Behaviour during a store outage (a database that is away, a disk that hangs). No send waits for
//! the store longer than a bound. A send whose task is stored is answered with that task; any other
//! send or write is refused with STORE_UNAVAILABLE, which states whether the outcome is unknown.
//! Reads have the bound of the store.
//!
//! No call has a timer of its own. The commit loop, the lease and the recovery have one each; when
//! the store is silent for too long, one sweep answers all waiting callers.
//! store has not answered them in time, one sweep answers all callers that wait.

use std::pin::pin;

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{self, TaskState, TaskStatus},
    id::TaskId,
    reason,
};
use prost_types::{Value, value::Kind};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::{
    engine::{
        active_task::{ActiveTask, CallError, Done, Waiter, task_response},
        commit_queue::PostCommit,
        core::{Core, State},
        effect::Effect,
    },
    error::Error,
};

/// Metadata of an early answer: the reason why a blocking send returned before the end of its task.
const EARLY_ANSWER_KEY: &str = "faultline.dev/earlyAnswer";

/// A waiting caller and its answer.
type Answered = (Done, Result<a2a::SendMessageResponse, CallError>);

/// The store counts as away after so many silent ticks. Ticks are counted instead of time, because
/// time also passes while this process is suspended.
const TICKS: u32 = 8;

/// The first tick may come at once.
fn is_silent(ticks: u32) -> bool {
    ticks > TICKS
}

/// The timer for [`Core::await_store`], shared by many batches.
pub(crate) fn clock() -> Interval {
    let mut clock = interval(limits::STORE_RESPONSE_TIMEOUT / TICKS);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock
}

impl Core {
    /// Awaits the store. While the store is silent, the waiting callers are answered; `under_way`
    /// is the batch that the store has.
    pub(crate) async fn await_store<T>(
        &self,
        clock: &mut Interval,
        store: impl Future<Output = T>,
        under_way: &mut [PostCommit],
    ) -> T {
        let (mut store, mut ticks) = (pin!(store), 0);
        loop {
            tokio::select! {
                biased;
                answer = &mut store => {
                    if is_silent(ticks) {
                        self.store_is_back();
                    }
                    return answer;
                }
                _ = clock.tick() => {}
            }
            ticks += 1;
            if is_silent(ticks) {
                self.answer_without_store(under_way);
            }
        }
    }

    /// Answers every caller that waits for the store, and refuses new calls until the store answers
    /// again.
    pub(crate) fn answer_without_store(&self, under_way: &mut [PostCommit]) {
        let answered = {
            let mut state = self.lock();
            state.is_away = true;
            state.take_answered(under_way)
        };
        if !answered.is_empty() {
            let callers = answered.len();
            tracing::warn!(callers, "the store does not answer; waiting callers were answered");
        }
        answered.into_iter().for_each(|(done, answer)| done(answer));
    }

    /// The store answers again: new calls are accepted.
    pub(crate) fn store_is_back(&self) {
        self.lock().is_away = false;
    }
}

/// Bounds a read before the first change of a send.
pub(crate) async fn read_in_time<T>(
    reading: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = || Error::Store { detail: LATE.to_owned() };
    timeout(limits::STORE_RESPONSE_TIMEOUT, reading).await.unwrap_or_else(|_| Err(late()))
}

/// Bounds a step of a send that may have changed something.
pub(crate) async fn write_in_time<T>(
    writing: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limits::STORE_RESPONSE_TIMEOUT, writing).await.unwrap_or_else(|_| Err(unknown()))
}

impl State {
    fn take_answered(&mut self, under_way: &mut [PostCommit]) -> Vec<Answered> {
        let mut all = Vec::new();
        for post_commit in under_way.iter_mut().chain(&mut self.queue.post_commits) {
            let active = |id: Option<TaskId>| id.and_then(|id| self.tasks.get(&id));
            // A reply about a stored task can return its last confirmed state.
            let read = active(post_commit.depends_on_task).filter(|active| active.published > 0);
            let changed = active(
                post_commit.task.as_ref().map(|task| task.0).or(post_commit.depends_on_task),
            );
            for effect in post_commit.effects.extract_if(.., |effect| is_answer(effect)) {
                let (done, stored, history) = match effect {
                    Effect::Answer(done, _) => (done, read, Some(0)),
                    Effect::Reply(waiter, _) => {
                        let stored = changed.filter(|active| waiter.is_stored(active.published));
                        (waiter.done, stored, waiter.history)
                    }
                    _ => continue,
                };
                let task = stored.map(|active| task_response(active.as_confirmed(history)));
                all.push((done, task.ok_or_else(|| unknown().into())));
            }
        }
        let mut calls = Vec::new();
        for active in self.tasks.values_mut() {
            let (stored, others) = active.take_timed_out_waiters();
            calls.extend(stored.iter().chain(&others).filter_map(|waiter| waiter.call));
            // A caller knows the task now, so the reply can no longer be a bare message.
            active.may_reply_without_task &= stored.is_empty();
            all.extend(active.answers(stored));
            all.extend(others.into_iter().map(refused));
        }
        for (id, followed) in &mut self.remote_watches {
            let (stored, others) = followed.take_timed_out_waiters();
            calls.extend(stored.iter().chain(&others).filter_map(|waiter| waiter.call));
            followed.may_reply_without_task &= stored.is_empty();
            let answer = || Ok(task_response(marked(working(*id, &followed.context_id))));
            all.extend(stored.into_iter().map(|waiter| (waiter.done, answer())));
            all.extend(others.into_iter().map(refused));
        }
        for call in calls {
            self.calls.remove(&call);
        }
        all
    }
}

/// Whether an effect answers a caller that does not wait through the outage.
fn is_answer(effect: &Effect) -> bool {
    match effect {
        Effect::Answer(..) => true,
        Effect::Reply(waiter, _) => !waiter.patient,
        _ => false,
    }
}

impl Waiter {
    /// Whether the write of this waiter's call is among the first `confirmed` events.
    fn is_stored(&self, confirmed: u64) -> bool {
        confirmed > 0 && self.depends_on_seq <= confirmed
    }
}

impl ActiveTask {
    /// Takes out the waiters that are answered without the store: those whose write is stored, and
    /// those whose write has an unknown outcome.
    pub(crate) fn take_timed_out_waiters(&mut self) -> (Vec<Waiter>, Vec<Waiter>) {
        split(&mut self.waiters, self.published)
    }

    /// Answers for these waiters, with the task as it was last confirmed.
    pub(crate) fn answers(&self, waiters: Vec<Waiter>) -> impl Iterator<Item = Answered> {
        waiters
            .into_iter()
            .map(|waiter| (waiter.done, Ok(task_response(self.as_confirmed(waiter.history)))))
    }

    /// The task as the store is known to have it. If memory is ahead of the store, only its
    /// existence and its non-final state are certain.
    fn as_confirmed(&self, history: Option<i32>) -> a2a::Task {
        let task = match self.confirmed() {
            Some(confirmed) => confirmed.to_a2a(history, true),
            None => working(self.pending().id, &self.pending().context_id),
        };
        marked(task)
    }
}

/// Takes out the waiters that are not patient: those whose write is among the first `confirmed`
/// events, and the others.
pub(crate) fn split(waiters: &mut Vec<Waiter>, confirmed: u64) -> (Vec<Waiter>, Vec<Waiter>) {
    let impatient = waiters.extract_if(.., |waiter| !waiter.patient);
    impatient.partition(|waiter| waiter.is_stored(confirmed))
}

/// Marks a task as an early answer to a blocking send.
fn marked(mut task: a2a::Task) -> a2a::Task {
    let why = Value { kind: Some(Kind::StringValue(reason::STORE_UNAVAILABLE.name.to_owned())) };
    task.metadata.get_or_insert_default().fields.insert(EARLY_ANSWER_KEY.to_owned(), why);
    task
}

fn working(id: TaskId, context_id: &str) -> a2a::Task {
    let status = TaskStatus { state: TaskState::Working as i32, ..TaskStatus::default() };
    a2a::Task {
        id: id.to_string(),
        context_id: context_id.to_owned(),
        status: Some(status),
        ..a2a::Task::default()
    }
}

fn refused(waiter: Waiter) -> Answered {
    (waiter.done, Err(unknown().into()))
}

const LATE: &str = "no answer in time";

fn unknown() -> Error {
    Error::StoreSilent { detail: LATE.to_owned() }
}

/// The failure of a call whose task is stored: it names the task.
pub(crate) fn stored(error: Error, id: TaskId) -> Error {
    match error {
        Error::Store { detail } | Error::StoreSilent { detail } => {
            Error::StoredUnread { id, detail }
        }
        other => other,
    }
}

/// The failure of a call with an idempotency key: with an unknown outcome, the call can be
/// repeated.
pub(crate) fn with_key(failure: Failure) -> Failure {
    let is_unknown = failure.row() == &reason::STORE_UNAVAILABLE
        && failure.retryable == Some(false)
        && failure.task_id.is_empty();
    if is_unknown {
        failure
            .because(
                "the store does not answer, so it is unknown whether the call was carried out: \
                 repeat it with the same Idempotency-Key, nothing is done twice",
            )
            .with_retry_after(limits::STORE_RETRY_AFTER)
            .with_repeat_by_key()
    } else {
        failure
    }
}

#[cfg(test)]
mod tests;
