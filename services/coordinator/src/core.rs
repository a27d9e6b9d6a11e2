//! The heart: everything in memory behind one lock, and the loop that makes it durable. A change
//! is decided and applied in memory under the lock, queued for the store in the same breath, and
//! shown to the world only after the store has confirmed it. The lock is never held across an
//! await, and the queue keeps the order.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::SendMessageResponse,
    id::{TaskId, WorkerId},
    v1::{self, Ack, Acks, Event, ToWorker, to_worker},
};
use tokio::sync::Notify;

use crate::{
    Config,
    error::Error,
    live::{CallKey, Done, Live, Waiter, task_response},
    registry::{Registry, Worker},
    store::{Row, Store, Write, WriteError, Written, encode},
    task::{Millis, is_waiting},
};

pub(crate) struct Core {
    state: Mutex<State>,
    pub(crate) store: Box<dyn Store>,
    pub(crate) config: Config,
    /// There is something to write.
    work: Notify,
    /// The queue to the store has shrunk.
    room: Notify,
}

pub(crate) struct State {
    pub(crate) live: HashMap<TaskId, Box<Live>>,
    pub(crate) registry: Registry,
    /// Which task each waiting call of a link waits for.
    pub(crate) calls: HashMap<CallKey, TaskId>,
    queue: Queue,
    /// A batch is with the store, or confirmed and not yet shown.
    busy: bool,
    /// No call is taken: the store failed and is being read again, or the service is leaving.
    closed: Option<Closed>,
    next_session: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    StoreFailed,
    Leaving,
}

/// What follows once a write, and everything queued before it, is durable.
struct Followup {
    /// False: it only waits for what was queued before it.
    wrote: bool,
    /// The task and its new events, for watchers.
    task: Option<(TaskId, u64, Vec<Event>)>,
    effects: Vec<Effect>,
}

#[derive(Default)]
struct Queue {
    writes: Vec<Write>,
    followups: Vec<Followup>,
}

pub(crate) enum Effect {
    Tell(WorkerId, Box<ToWorker>),
    /// The same, and the attempt counts as handed over.
    Assign(WorkerId, Box<v1::Assign>),
    Ack(WorkerId, Ack),
    Answer(Done, Box<SendMessageResponse>),
}

pub(crate) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_millis() as Millis
}

impl State {
    fn new() -> Self {
        Self {
            live: HashMap::new(),
            registry: Registry::default(),
            calls: HashMap::new(),
            queue: Queue::default(),
            busy: false,
            closed: None,
            next_session: 1,
        }
    }

    pub(crate) fn session(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.closed {
            None if self.queue.writes.len() >= limits::STORE_QUEUE_MAX => Err(Error::Overloaded),
            None => Ok(()),
            Some(_) => self.check_served(),
        }
    }

    /// The same for those who only read, whatever waits to be written.
    pub(crate) fn check_served(&self) -> Result<(), Error> {
        match self.closed {
            None => Ok(()),
            Some(Closed::StoreFailed) => Err(Error::Store { detail: "recovering".to_owned() }),
            Some(Closed::Leaving) => Err(Error::Leaving),
        }
    }

    pub(crate) fn close(&mut self, why: Closed) {
        self.closed = Some(why);
    }

    /// Queues the step that `task` has just taken from version `from`; 0: it is new.
    pub(crate) fn commit(&mut self, id: TaskId, from: u64, events: Vec<Event>, then: Vec<Effect>) {
        let Some(live) = self.live.get(&id) else { return };
        let first = live.task.seq + 1 - events.len() as u64;
        let stored = (first..).zip(&events).map(|(seq, event)| encode(seq, event)).collect();
        let row = Row::from(&live.task);
        let write = match from {
            0 => Write::Insert { row, events: stored },
            from => Write::Advance { from, row, events: stored },
        };
        self.queue.writes.push(write);
        self.queue.followups.push(Followup {
            wrote: true,
            task: Some((id, first, events)),
            effects: then,
        });
    }

    pub(crate) fn commit_write(&mut self, write: Write, then: Vec<Effect>) {
        self.queue.writes.push(write);
        self.queue.followups.push(Followup { wrote: true, task: None, effects: then });
    }

    /// What follows once everything queued before it is durable.
    pub(crate) fn after_commit(&mut self, then: Effect) {
        self.queue.followups.push(Followup { wrote: false, task: None, effects: vec![then] });
    }

    /// Puts the waiter of a call away; `None`: it was answered already.
    pub(crate) fn forget_call(&mut self, call: CallKey) -> Option<Waiter> {
        let id = self.calls.remove(&call)?;
        let waiters = &mut self.live.get_mut(&id)?.waiters;
        let at = waiters.iter().position(|w| w.call == Some(call))?;
        Some(waiters.swap_remove(at))
    }

    /// A caller's patience ended. It was told of the task, so the task must stay.
    pub(crate) fn end_patience(&mut self, call: CallKey) -> Option<(TaskId, Done)> {
        let id = *self.calls.get(&call)?;
        let waiter = self.forget_call(call)?;
        if let Some(live) = self.live.get_mut(&id) {
            live.may_vanish = false;
        }
        Some((id, waiter.done))
    }

    /// Nobody listens on this link any more.
    pub(crate) fn forget_link(&mut self, link: u64) {
        let calls: Vec<_> = self.calls.keys().filter(|call| call.0 == link).copied().collect();
        for call in calls {
            drop(self.forget_call(call));
        }
    }

    /// Shows the world what the store has confirmed.
    fn publish(&mut self, confirmed: Vec<Followup>) {
        let mut acks: HashMap<WorkerId, Vec<Ack>> = HashMap::new();
        for followup in confirmed {
            if let Some((id, first, events)) = followup.task {
                self.publish_task(id, first, events);
            }
            for effect in followup.effects {
                self.perform(effect, &mut acks);
            }
        }
        // One message a worker, however many reports the batch held.
        for (worker, acks) in acks {
            let body = to_worker::Body::Acks(Acks { acks });
            self.tell(worker, ToWorker { body: Some(body) });
        }
    }

    fn publish_task(&mut self, id: TaskId, first: u64, events: Vec<Event>) {
        let Some(live) = self.live.get_mut(&id) else { return };
        if !events.is_empty() {
            live.publish(first, events);
        }
        if !live.is_confirmed() {
            // More of this task is on its way to the store; that will answer.
            return;
        }
        if live.task.is_final() {
            if let Some(live) = self.live.remove(&id) {
                self.drop_calls(&live);
                live.finish();
            }
        } else if is_waiting(live.task.state) {
            let waiters = std::mem::take(&mut live.waiters);
            let answer = |history| task_response(live.task.to_a2a(history, true));
            for waiter in waiters {
                waiter.call.map(|call| self.calls.remove(&call));
                (waiter.done)(Ok(answer(waiter.history)));
            }
        }
    }

    fn note_acked(&mut self, ack: &Ack) {
        if let Ok(id) = ack.task_id.parse::<TaskId>()
            && let Some(live) = self.live.get_mut(&id)
            && live.task.attempt == ack.attempt
        {
            live.acked = live.acked.max(ack.number);
        }
    }

    pub(crate) fn drop_calls(&mut self, live: &Live) {
        for call in live.waiters.iter().filter_map(|w| w.call) {
            self.calls.remove(&call);
        }
    }

    fn perform(&mut self, effect: Effect, acks: &mut HashMap<WorkerId, Vec<Ack>>) {
        match effect {
            Effect::Tell(worker, message) => self.tell(worker, *message),
            Effect::Assign(worker, assign) => {
                let Ok(id) = assign.task_id.parse::<TaskId>() else { return };
                let live = self.live.get_mut(&id);
                if let Some(live) = live.filter(|l| l.task.attempt == assign.attempt) {
                    live.assigned = true;
                }
                // Lost meanwhile, and given to another: nobody would stop it here.
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
            Effect::Answer(done, response) => done(Ok(*response)),
        }
    }

    /// A worker whose stream takes nothing more is cut off; it will attach again and catch up.
    pub(crate) fn tell(&mut self, id: WorkerId, message: ToWorker) {
        let told = self.registry.workers.get(&id).is_some_and(|w| w.tell(message));
        if !told && self.registry.workers.get(&id).is_some_and(Worker::is_attached) {
            tracing::warn!(worker = %id, "the worker's stream is stuck and was cut");
            self.registry.detach(id);
        }
    }
}

impl Core {
    pub(crate) fn new(store: Box<dyn Store>, config: Config) -> Self {
        let (work, room) = (Notify::new(), Notify::new());
        Self { state: Mutex::new(State::new()), store, config, work, room }
    }

    /// The lock, for a moment and to look. Whoever changes something uses [`Core::change`].
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and lets the writer know.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let done = work(&mut self.lock());
        self.work.notify_one();
        done
    }

    /// Waits until nothing is on its way to the store, but not for ever.
    pub(crate) async fn flushed(&self) {
        for _ in 0..200 {
            let idle = {
                let state = self.lock();
                state.queue.followups.is_empty() && !state.busy
            };
            if idle {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the streams that were cut have noticed, so that the store is closed when the
    /// service returns and another may open it.
    pub(crate) async fn released(self: Arc<Self>) {
        for _ in 0..200 {
            if Arc::strong_count(&self) == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the queue to the store is short enough for more.
    pub(crate) async fn room(&self) {
        loop {
            let room = self.room.notified();
            if self.lock().queue.writes.len() < limits::STORE_QUEUE_MAX / 2 {
                return;
            }
            room.await;
        }
    }

    /// Group commit: whatever waits is committed at once, and while the disk works on it the
    /// batch before is published. Never returns.
    pub(crate) async fn write(&self) {
        let mut confirmed = Vec::new();
        loop {
            let Queue { writes, followups } = self.take_batch();
            if followups.is_empty() {
                self.lock().publish(std::mem::take(&mut confirmed));
                if self.rest() {
                    self.work.notified().await;
                }
                continue;
            }
            let expected = writes.len();
            let answer = (expected > 0).then(|| self.store.commit(writes));
            self.lock().publish(std::mem::take(&mut confirmed));
            let failed = match answer {
                Some(answer) => failure_of(answer.await.ok(), expected),
                None => None,
            };
            match failed {
                None => confirmed = followups,
                Some(error) => self.recover_from(error, followups).await,
            }
        }
    }

    /// Nothing is under way. False: something has just come in.
    fn rest(&self) -> bool {
        let mut state = self.lock();
        state.busy = false;
        state.queue.followups.is_empty()
    }

    fn take_batch(&self) -> Queue {
        let batch = {
            let mut state = self.lock();
            state.busy = true;
            let queue = &mut state.queue;
            let count = queue.followups.len().min(limits::STORE_BATCH_MAX);
            let followups: Vec<_> = queue.followups.drain(..count).collect();
            let writes = followups.iter().filter(|f| f.wrote).count();
            Queue { writes: queue.writes.drain(..writes).collect(), followups }
        };
        self.room.notify_waiters();
        batch
    }

    /// The store did not take a batch. Memory is ahead of it and cannot be trusted: everybody who
    /// waits is told, and the store is read again as after a restart.
    async fn recover_from(&self, error: WriteError, lost: Vec<Followup>) {
        tracing::error!(%error, "the store failed; reading it again");
        let failure = Failure::from(Error::Store { detail: error.to_string() });
        let (queue, live) = {
            let mut state = self.lock();
            let old = std::mem::replace(&mut *state, State::new());
            state.next_session = old.next_session;
            state.closed = old.closed.or(Some(Closed::StoreFailed));
            (old.queue, old.live)
        };
        for effect in lost.into_iter().chain(queue.followups).flat_map(|f| f.effects) {
            if let Effect::Answer(done, _) = effect {
                done(Err(failure.clone()));
            }
        }
        for waiter in live.into_values().flat_map(|live| live.waiters) {
            (waiter.done)(Err(failure.clone()));
        }
        while let Err(error) = self.recover().await {
            tracing::error!(%error, "the store cannot be read");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Reads every task that has not ended, and opens the door.
    pub(crate) async fn recover(&self) -> Result<(), Error> {
        let (tasks, offers) = (self.store.recover().await?, self.store.agents().await?);
        let now = now();
        self.change(|state| {
            for offer in offers {
                state.registry.offer(offer);
            }
            for task in tasks {
                state.remember(task, now);
            }
            state.closed = state.closed.filter(|why| *why == Closed::Leaving);
        });
        Ok(())
    }
}

fn failure_of(written: Option<Written>, expected: usize) -> Option<WriteError> {
    let gone = || WriteError::Unavailable("the store's writer is gone".to_owned());
    match written {
        Some(written) if written.len() == expected => written.into_iter().find_map(Result::err),
        _ => Some(gone()),
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
