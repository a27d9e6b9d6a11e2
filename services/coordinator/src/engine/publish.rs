//! Publishes confirmed writes: events to watchers, answers to waiters, messages to workers. Replies
//! and other callbacks run after the state lock is released, so that none can deadlock on it.

use std::collections::HashMap;

use faultline_proto::{
    a2a::SendMessageResponse,
    id::{TaskId, WorkerId},
    v1::{Ack, Acks, Event, ToWorker, to_worker},
};

use crate::{
    engine::{
        active_task::{ActiveTask, CallError, Done, task_response},
        commit_queue::PostCommit,
        effect::{Effect, WriteResult},
        state::State,
        workers::registry::Worker,
    },
    task::is_waiting,
};

/// A callback that runs after the state lock is released, in the order it was queued.
pub(crate) enum Deferred {
    Answer(Done, Box<SendMessageResponse>),
    Reject(Done, Box<CallError>),
    Run(Box<dyn FnOnce() + Send>),
}

impl Deferred {
    pub(crate) fn run(self) {
        match self {
            Self::Answer(done, response) => done(Ok(*response)),
            Self::Reject(done, error) => done(Err(*error)),
            Self::Run(work) => work(),
        }
    }
}

impl State {
    /// Performs the effects of confirmed writes, in the order of the queue.
    pub(crate) fn publish(&mut self, confirmed: Vec<PostCommit>) {
        let mut acks: HashMap<WorkerId, Vec<Ack>> = HashMap::new();
        for post_commit in confirmed {
            if let Some((id, first, events)) = post_commit.task {
                self.publish_task(id, first, events);
            }
            for effect in post_commit.effects {
                self.perform(effect, &mut acks);
            }
        }
        // One acknowledgement for each worker, however many reports the batch held.
        for (worker, acks) in acks {
            let body = to_worker::Body::Acks(Acks { acks });
            self.tell(worker, ToWorker { body: Some(body) });
        }
    }

    /// Passes the events of a confirmed step to the watchers, and answers the waiters.
    pub(crate) fn publish_task(&mut self, id: TaskId, first: u64, events: Vec<Event>) {
        self.feed.note_step(id, &events);
        let Some(active) = self.tasks.get_mut(&id) else {
            return self.confirm_remote(id, (first + events.len() as u64).saturating_sub(1));
        };
        if !events.is_empty() {
            active.meters.happened(active.pending(), &events);
            active.publish(first, events);
        }
        let mut waiters = std::mem::take(&mut active.waiters);
        // More steps of this task are queued: the last of them answers the waiters.
        let Some(confirmed) = active.confirmed() else {
            active.waiters = waiters;
            return;
        };
        if confirmed.is_final() {
            active.waiters = waiters;
            if let Some(active) = self.tasks.remove(&id) {
                self.drop_calls(&active);
                self.deferred.extend(active.finish());
            }
        } else if is_waiting(confirmed.state) {
            let seq = confirmed.seq;
            let answered: Vec<_> = waiters.extract_if(.., |waiter| waiter.min_seq <= seq).collect();
            for waiter in answered {
                waiter.call.map(|call| self.calls.remove(&call));
                let task = confirmed.to_a2a(waiter.history, true);
                self.deferred.push(Deferred::Answer(waiter.done, Box::new(task_response(task))));
            }
            active.waiters = waiters;
        } else {
            active.waiters = waiters;
        }
    }

    fn note_acked(&mut self, ack: &Ack) {
        if let Ok(id) = ack.task_id.parse::<TaskId>()
            && let Some(active) = self.tasks.get_mut(&id)
            && active.pending().attempt == ack.attempt
        {
            active.acked = active.acked.max(ack.number);
        }
    }

    pub(crate) fn drop_calls(&mut self, active: &ActiveTask) {
        for call in active.waiters.iter().filter_map(|w| w.call) {
            self.calls.remove(&call);
        }
    }

    fn perform(&mut self, effect: Effect, acks: &mut HashMap<WorkerId, Vec<Ack>>) {
        match effect {
            Effect::Tell(worker, message) => self.tell(worker, *message),
            Effect::Assign(worker, assign) => {
                let Ok(id) = assign.task_id.parse::<TaskId>() else { return };
                let active = self.tasks.get_mut(&id);
                if let Some(active) = active.filter(|l| l.pending().attempt == assign.attempt) {
                    active.assigned = true;
                }
                // The worker was lost meanwhile and the task has a newer attempt: nothing would
                // stop this one.
                let worker_runs = self.registry.workers.get(&worker);
                if !worker_runs.is_some_and(|w| w.runs(id, assign.attempt)) {
                    return;
                }
                self.tell(worker, ToWorker { body: Some(to_worker::Body::Assign(*assign)) });
            }
            Effect::Ack(worker, ack) => {
                self.note_acked(&ack);
                acks.entry(worker).or_default().push(ack);
            }
            Effect::Answer(done, response) => {
                self.deferred.push(Deferred::Answer(done, response));
            }
            Effect::Reply(waiter, response) => {
                self.deferred.push(Deferred::Answer(waiter.done, response));
            }
            Effect::Receipt(receipt) => drop(receipt.send(WriteResult::Done)),
            Effect::Reject(done, failure) => {
                self.deferred.push(Deferred::Reject(done, Box::new((*failure).into())));
            }
            Effect::Note(id) => self.feed.note(id),
            Effect::Run(work) => self.deferred.push(Deferred::Run(work)),
        }
    }

    /// Sends a message to a worker. A worker whose channel is full is detached (flow control); it
    /// reattaches and catches up.
    pub(crate) fn tell(&mut self, id: WorkerId, message: ToWorker) {
        let told = self.registry.workers.get(&id).is_some_and(|w| w.tell(message));
        if !told && self.registry.workers.get(&id).is_some_and(Worker::is_attached) {
            tracing::warn!(worker = %id, "stream of the worker is full: the worker was detached");
            self.registry.detach(id);
        }
    }
}
