//! The one way to change an active task: apply events, queue the write by version (optimistic
//! concurrency), and queue the effects that follow its commit.

use faultline_proto::{
    a2a::{self, SendMessageResponse},
    id::TaskId,
    v1::{Event, event},
};

use crate::{
    calls::attempt_token::Tokens,
    engine::{
        active_task::{ActiveTask, Waiter, task_response},
        commit_queue::PostCommit,
        core::State,
        effect::Effect,
        workers::registry::Registry,
    },
    store::{Extras, Row, Write, encode},
    task::{Millis, Task, confirmed::Confirmed},
};

/// A change of one active task in progress. Created by `State::transition` under the state lock and
/// gone when it returns; its events and effects are then queued together.
pub(crate) struct Transition<'a> {
    pub(crate) id: TaskId,
    pub(crate) now: Millis,
    /// Watchers, waiters and bookkeeping of the task.
    pub(crate) active: &'a mut ActiveTask,
    pub(crate) registry: &'a mut Registry,
    pub(crate) tokens: &'a Tokens,
    pub(crate) effects: Vec<Effect>,
    events: Vec<Event>,
}

impl Transition<'_> {
    /// The task with the events that were applied so far.
    pub(crate) fn task(&self) -> &Task {
        &self.active.task
    }

    pub(crate) fn apply(&mut self, body: event::Body) {
        self.events.push(self.active.task.apply_now(body, self.now));
    }

    pub(crate) fn apply_all(&mut self, bodies: impl IntoIterator<Item = event::Body>) {
        bodies.into_iter().for_each(|body| self.apply(body));
    }

    /// Shows an open question again that the applied events hid.
    pub(crate) fn show_open_question(&mut self) {
        let shown = self.active.task.shown_again();
        self.apply_all(shown);
    }

    /// Whether this change has events, or accepted a report after `reported_before`.
    pub(crate) fn has_changed(&self, reported_before: u32) -> bool {
        !self.events.is_empty() || self.active.task.reported != reported_before
    }

    /// The report `number` of the current attempt is part of this change.
    pub(crate) fn accept_report(&mut self, number: u32) {
        self.active.task.reported = number;
    }

    /// Answers a waiter with the task as this change leaves it, once the change is durable.
    pub(crate) fn reply(&mut self, waiter: Waiter) {
        let response = self.response(waiter.history);
        self.effects.push(Effect::Reply(Box::new(waiter), Box::new(response)));
    }

    /// A response with the task as this change leaves it, for an effect of this change.
    pub(crate) fn response(&self, history: Option<i32>) -> SendMessageResponse {
        task_response(self.snapshot(history))
    }

    /// The task as this change leaves it, for a call that is answered once the change is durable.
    pub(crate) fn snapshot(&self, history: Option<i32>) -> a2a::Task {
        Confirmed::on_commit(&self.active.task).to_a2a(history, true)
    }
}

impl State {
    /// Changes an active task by one version. `change` decides from `Transition::task` and applies
    /// events. A change without events keeps the version, and its effects follow the writes of this
    /// task that are queued already. If the store refuses the write, `rollback` restores the stored
    /// state. `None`: there is no such task.
    pub(crate) fn transition<T>(
        &mut self,
        id: TaskId,
        with: Option<Box<Extras>>,
        now: Millis,
        change: impl FnOnce(&mut Transition<'_>) -> T,
    ) -> Option<T> {
        let active = self.tasks.get_mut(&id)?;
        let from = active.task.version;
        let reported = active.task.reported;
        let mut step = Transition {
            id,
            now,
            active,
            registry: &mut self.registry,
            tokens: &self.tokens,
            effects: Vec::new(),
            events: Vec::new(),
        };
        let out = change(&mut step);
        let Transition { active, events, effects, .. } = step;
        if events.is_empty() && active.task.reported == reported && with.is_none() {
            effects.into_iter().for_each(|effect| self.after_writes_of(id, effect));
        } else {
            active.task.version += 1;
            self.queue_step(id, from, events, with, effects);
        }
        Some(out)
    }

    /// Completes the insertion of a task that is not in the store yet: its first events and those
    /// that this change adds are one commit.
    pub(crate) fn insert_step(
        &mut self,
        id: TaskId,
        first: Vec<Event>,
        with: Option<Box<Extras>>,
        now: Millis,
        change: impl FnOnce(&mut Transition<'_>),
    ) {
        let Some(active) = self.tasks.get_mut(&id) else { return };
        let mut step = Transition {
            id,
            now,
            active,
            registry: &mut self.registry,
            tokens: &self.tokens,
            effects: Vec::new(),
            events: first,
        };
        change(&mut step);
        let Transition { events, effects, .. } = step;
        self.queue_step(id, 0, events, with, effects);
    }

    /// Queues the write of a step from version `from`; 0: the task is new.
    fn queue_step(
        &mut self,
        id: TaskId,
        from: u64,
        events: Vec<Event>,
        with: Option<Box<Extras>>,
        mut effects: Vec<Effect>,
    ) {
        let Some(active) = self.tasks.get_mut(&id) else { return };
        effects.extend(active.follow_spans(&self.registry).map(Effect::from));
        let first = active.task.seq + 1 - events.len() as u64;
        let stored = (first..).zip(&events).map(|(seq, event)| encode(seq, event)).collect();
        let row = Row::from(&active.task);
        let write = if from == 0 {
            Write::Insert { row, events: stored, with }
        } else {
            Write::Advance { from, row, events: stored, with }
        };
        self.queue.writes.push(write);
        self.queue.post_commits.push(PostCommit {
            wrote: true,
            same_transaction_as_previous: false,
            task: Some((id, first, events)),
            depends_on_task: None,
            effects,
        });
        self.set_timers(id);
    }
}
