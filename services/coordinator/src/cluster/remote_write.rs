//! Cancels or answers a task owned by another coordinator, with a compare-and-swap on its version
//! (optimistic concurrency). The owner is notified and runs the side effects (`reconcile`).

use crate::engine::admission::answer_of;
use crate::task::confirmed::Confirmed;
use std::sync::Arc;

use faultline_proto::{
    Failure, a2a,
    a2a::SendMessageRequest,
    id::TaskId,
    reason,
    v1::{Event, event},
};
use tokio::sync::oneshot;

use crate::{
    calls::caller::Caller,
    clock::now,
    engine::{
        core::Core,
        effect::{Effect, WriteResult},
    },
    error::Error,
    store::{Extras, Row, Scope, Write, encode},
    task::{Refused, Task},
};

/// Attempts of a compare-and-swap before the call fails as contended.
pub(crate) const STEP_TRIES: usize = 8;

impl Core {
    /// Whether a peer owns this task.
    pub(crate) fn is_owned_by_peer(&self, task: &Task) -> bool {
        let state = self.lock();
        state.is_shared && !task.is_final() && !state.tasks.contains(&task.id)
    }

    /// Cancels a remote task. `None`: a peer was first, or the task is owned here by now.
    pub(crate) async fn cancel_remote(
        self: &Arc<Self>,
        task: &Task,
        failure: &Failure,
    ) -> Result<Option<a2a::Task>, Error> {
        if !self.is_owned_by_peer(task) {
            return Ok(None);
        }
        let mut task = task.clone();
        let failure = task.complete_failure(failure.clone(), "coordinator");
        let body = match task.decide_cancel(failure) {
            Ok(body) => body,
            Err(Refused::Final) => {
                return Err(Error::NotCancelable { id: task.id, state: task.state });
            }
            Err(_) => return Err(Error::Busy(task.id)),
        };
        if self.write_by_version(&mut task, body, None).await? {
            let id = task.id;
            self.change(|state| state.on_remote_relative_ended(id, now()));
            // The task may be owned here by now, and a coordinator gets no notification of its
            // own write.
            self.refresh_task(id).await?;
            Ok(Some(Confirmed::into_a2a(task, None)))
        } else {
            Ok(None)
        }
    }

    /// Answers a question of a remote task and returns its id.
    pub(crate) async fn answer_remote(
        self: &Arc<Self>,
        task: Task,
        request: &SendMessageRequest,
        caller: &Caller,
        streams: bool,
        with: impl Fn(&Task) -> Option<Box<Extras>>,
    ) -> Result<Answered, Error> {
        let mut task = task;
        for _ in 0..STEP_TRIES {
            if !self.is_owned_by_peer(&task) {
                return Ok(Answered::Here(Box::new(task)));
            }
            let body = {
                let state = self.lock();
                state.check_open()?;
                caller.calling.as_ref().map_or(Ok(()), |calling| state.check_current(calling))?;
                answer_of(&state, &task, request.clone(), caller, streams)?
            };
            let extras = with(&task);
            if self.write_by_version(&mut task, body, extras).await? {
                // The task may be owned here by now, as after a cancel.
                self.refresh_task(task.id).await?;
                return Ok(Answered::Remote(task.id));
            }
            let not_found = || Error::TaskNotFound(task.id.to_string());
            task = self.read(task.id, Scope::default()).await?.ok_or_else(not_found)?;
        }
        Err(contended())
    }

    /// Writes one event by version. False: a peer was first.
    async fn write_by_version(
        self: &Arc<Self>,
        task: &mut Task,
        body: event::Body,
        with: Option<Box<Extras>>,
    ) -> Result<bool, Error> {
        let (from, first, now) = (task.version, task.seq + 1, now());
        task.version += 1;
        let mut events: Vec<Event> = vec![task.apply_now(body, now)];
        events.extend(task.shown_again().map(|body| task.apply_now(body, now)));
        let events = (first..).zip(&events).map(|(seq, event)| encode(seq, event)).collect();
        let extras = with.iter().flat_map(|extras| &extras.pushes);
        let pushes = extras.map(|row| row.key.clone()).collect();
        let write = Write::CompareAndSwap { from, row: Row::from(&*task), events, with };
        let (receipt, written) = oneshot::channel();
        let id = task.id;
        self.change(|state| {
            state.check_open()?;
            let then = vec![Effect::Receipt(receipt), Effect::Note(id)];
            state.commit_write(write, then);
            // Queued with the write, which may be stored even if the caller has left.
            self.deliver_after_commit(state, pushes);
            Ok::<_, Error>(())
        })?;
        match written.await {
            Ok(WriteResult::Done) => Ok(true),
            Ok(WriteResult::Conflict) => Ok(false),
            Ok(WriteResult::Unknown(failure)) => Err(failure.into()),
            Err(_) => Err(Error::unanswered()),
        }
    }
}

/// The outcome of an answer.
pub(crate) enum Answered {
    /// The answer is stored; the owner continues the task.
    Remote(TaskId),
    /// This coordinator owns the task by now.
    Here(Box<Task>),
}

/// The failure of a call that lost too many races on one task.
pub(crate) fn contended() -> Error {
    Failure::new(&reason::ABORTED)
        .because("the task changes all the time; try again")
        .with_retryable(true)
        .into()
}

#[cfg(test)]
mod tests;
