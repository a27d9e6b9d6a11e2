//! The heart: everything in memory, behind one lock. A change is decided and applied under the
//! lock, queued for the store in the same breath, and shown to the world only after `writer` has
//! seen it confirmed. The lock is never held across an await, and the queue keeps the order.

use crate::engine::effect::Effect;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use faultline_chassis::limits;
use faultline_proto::{
    a2a::SendMessageResponse,
    id::{TaskId, WorkerId},
    v1::{self, Ack, Acks, Event, ToWorker, to_worker},
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    calls::{attempt_token::Tokens, caller::CallKey, idempotency::KeyClaims},
    engine::{
        active_task::{ActiveTask, Done, Waiter, task_response},
        change_feed::{Changed, Feed},
        commit_queue::{CommitQueue, PostCommit},
        remote_watch::RemoteWatch,
        task_tree::TaskTree,
        timeouts::Timer,
        timers::Timers,
        workers::registry::{Registry, Worker},
    },
    error::Error,
    store::{Extras, Row, Store, Write, activity_cache::ActivityCache, encode},
    task::{Millis, is_waiting},
    telemetry::metrics::{AgentMeters, Meters},
    webhooks::{courier::Courier, deliveries::Deliveries},
};

pub(crate) struct Core {
    state: Mutex<State>,
    pub(crate) store: Box<dyn Store>,
    pub(crate) config: Arc<Config>,
    pub(crate) claims: KeyClaims,
    pub(crate) courier: Courier,
    /// To operators who watch.
    pub(crate) changed: Changed,
    pub(crate) pulse: ActivityCache,
    pub(crate) meters: Arc<Meters>,
    /// There is something to write.
    pub(crate) work: Notify,
    /// The queue to the store has shrunk.
    pub(crate) room: Notify,
    /// Something falls due earlier than anything did before.
    pub(crate) sooner: Notify,
    /// Something of another coordinator's is wanted here.
    pub(crate) remote_dirty: Notify,
    /// It leaves: gateways are to make new calls elsewhere.
    pub(crate) farewell: CancellationToken,
    /// It takes nothing more.
    pub(crate) left: AtomicBool,
    /// The lease was not renewed in time: memory is not to be trusted any more.
    pub(crate) lapsed: AtomicBool,
}

pub(crate) struct State {
    pub(crate) live: HashMap<TaskId, Box<ActiveTask>>,
    pub(crate) registry: Registry,
    pub(crate) task_tree: TaskTree,
    pub(crate) tokens: Tokens,
    /// Which task each waiting call of a link waits for.
    pub(crate) calls: HashMap<CallKey, TaskId>,
    /// Calls that take their task along, until it is known which that is.
    pub(crate) early_disconnects: HashSet<CallKey>,
    pub(crate) deliveries: Deliveries,
    pub(crate) feed: Feed,
    pub(crate) timers: Timers<Timer>,
    /// Tasks of other coordinators that somebody here follows or waits for…
    pub(crate) remote_watches: HashMap<TaskId, RemoteWatch>,
    /// …those that something may have happened to…
    pub(crate) remote_dirty: HashSet<TaskId>,
    /// …and those that are to be stopped, as nobody follows them any more.
    pub(crate) remote_to_cancel: Vec<TaskId>,
    /// Tasks that somebody has begun to follow at another coordinator, and when.
    pub(crate) watched_by_peers: HashMap<TaskId, Instant>,
    /// A worker here has room, and tasks wait elsewhere.
    pub(crate) has_spare_capacity: bool,
    /// Other coordinators may have tasks in the same store.
    pub(crate) is_shared: bool,
    /// Tasks that were just ended without a worker to tell; see `stops`.
    pub(crate) undelivered_cancels: Vec<TaskId>,
    pub(crate) queue: CommitQueue,
    /// A batch is with the store, or confirmed and not yet shown.
    pub(crate) busy: bool,
    /// No call is taken: the store failed and is being read again, or the service is leaving.
    pub(crate) closed: Option<Closed>,
    /// The store does not answer: new calls that would write are refused.
    pub(crate) is_away: bool,
    /// When the store was read; workers come back after that.
    pub(crate) since: Instant,
    pub(crate) next_session: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    StoreFailed,
    Leaving,
}

impl State {
    pub(crate) fn new(
        tokens: Tokens,
        config: Arc<Config>,
        meters: Arc<Meters>,
        is_shared: bool,
    ) -> Self {
        Self {
            live: HashMap::new(),
            registry: Registry::new(config, meters),
            task_tree: TaskTree::default(),
            tokens,
            calls: HashMap::new(),
            early_disconnects: HashSet::new(),
            deliveries: Deliveries::default(),
            feed: Feed::default(),
            timers: Timers::default(),
            remote_watches: HashMap::new(),
            remote_dirty: HashSet::new(),
            remote_to_cancel: Vec::new(),
            watched_by_peers: HashMap::new(),
            has_spare_capacity: false,
            is_shared,
            undelivered_cancels: Vec::new(),
            queue: CommitQueue::default(),
            busy: false,
            closed: None,
            is_away: false,
            since: Instant::now(),
            next_session: 1,
        }
    }

    /// Where what becomes of an agent's tasks is counted.
    pub(crate) fn meters_of(&self, agent: &str) -> Arc<AgentMeters> {
        match self.registry.agents.get(agent) {
            Some(agent) => Arc::clone(&agent.meters),
            None => AgentMeters::new(&self.registry.meters, agent),
        }
    }

    pub(crate) fn session(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.closed {
            None if self.is_away => Err(Error::Store { detail: "no answer".to_owned() }),
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
        self.commit_with(id, from, events, None, then);
    }

    /// The same, with what must be durable together with it.
    pub(crate) fn commit_with(
        &mut self,
        id: TaskId,
        from: u64,
        events: Vec<Event>,
        with: Option<Box<Extras>>,
        mut then: Vec<Effect>,
    ) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let version = || self.registry.version(&live.task.agent);
        then.extend(live.open.follow(&live.task, version).map(Effect::from));
        let first = live.task.seq + 1 - events.len() as u64;
        let stored = (first..).zip(&events).map(|(seq, event)| encode(seq, event)).collect();
        let row = Row::from(&live.task);
        let write = match from {
            0 => Write::Insert { row, events: stored, with },
            from => Write::Advance { from, row, events: stored, with },
        };
        self.queue.writes.push(write);
        self.queue.post_commits.push(PostCommit {
            wrote: true,
            same_transaction_as_previous: false,
            task: Some((id, first, events)),
            depends_on_task: None,
            effects: then,
        });
        self.watch_time(id);
    }

    pub(crate) fn commit_write(&mut self, write: Write, then: Vec<Effect>) {
        self.queue.writes.push(write);
        self.queue.post_commits.push(PostCommit {
            wrote: true,
            same_transaction_as_previous: false,
            task: None,
            depends_on_task: None,
            effects: then,
        });
    }

    /// What follows once everything queued before it is durable.
    pub(crate) fn after_commit(&mut self, then: Effect) {
        self.queue_post_commit(None, then);
    }

    /// The same for what tells of a task: should a step of it be refused that was queued before,
    /// whoever waits is told that, and nobody else anything.
    pub(crate) fn after_writes_of(&mut self, id: TaskId, then: Effect) {
        self.queue_post_commit(Some(id), then);
    }

    fn queue_post_commit(&mut self, depends_on_task: Option<TaskId>, then: Effect) {
        let (wrote, same_transaction_as_previous, effects) = (false, false, vec![then]);
        self.queue.post_commits.push(PostCommit {
            wrote,
            same_transaction_as_previous,
            task: None,
            depends_on_task,
            effects,
        });
    }

    /// A client went away. Puts the waiter of its call away; `None`: it was answered already.
    pub(crate) fn forget_call(&mut self, call: CallKey) -> Option<Waiter> {
        self.early_disconnects.remove(&call);
        let (id, waiter) = self.take_waiter(call)?;
        if let Some(grace) = waiter.cancel_after {
            self.abandon_after(id, grace);
        }
        Some(waiter)
    }

    fn take_waiter(&mut self, call: CallKey) -> Option<(TaskId, Waiter)> {
        let id = self.calls.remove(&call)?;
        let waiters = match self.live.get_mut(&id) {
            Some(live) => &mut live.waiters,
            None => self.remote_watches.get_mut(&id)?.waiters_mut(),
        };
        let at = waiters.iter().position(|w| w.call == Some(call))?;
        Some((id, waiters.swap_remove(at)))
    }

    /// A caller's patience ended. It was told of the task, so the task must stay.
    pub(crate) fn end_patience(&mut self, call: CallKey) -> Option<(TaskId, Done)> {
        let (id, waiter) = self.take_waiter(call)?;
        if let Some(live) = self.live.get_mut(&id) {
            live.may_reply_without_task = false;
        } else if let Some(followed) = self.remote_watches.get_mut(&id) {
            followed.may_reply_without_task = false;
        }
        Some((id, waiter.done))
    }

    /// Nobody listens on this link any more.
    pub(crate) fn forget_link(&mut self, link: u64) {
        let calls = self.calls.keys().chain(&self.early_disconnects);
        let calls: Vec<_> = calls.filter(|call| call.0 == link).copied().collect();
        for call in calls {
            drop(self.forget_call(call));
        }
    }

    /// Shows the world what the store has confirmed.
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
        // One message a worker, however many reports the batch held.
        for (worker, acks) in acks {
            let body = to_worker::Body::Acks(Acks { acks });
            self.tell(worker, ToWorker { body: Some(body) });
        }
    }

    /// Passes on a step that the store has confirmed.
    pub(crate) fn publish_task(&mut self, id: TaskId, first: u64, events: Vec<Event>) {
        self.feed.note_step(id, &events);
        let Some(live) = self.live.get_mut(&id) else {
            return self.confirm_remote(id, (first + events.len() as u64).saturating_sub(1));
        };
        if !events.is_empty() {
            live.meters.happened(&live.task, &events);
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
            let seq = live.task.seq;
            let waiters: Vec<_> =
                live.waiters.extract_if(.., |waiter| waiter.min_seq <= seq).collect();
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

    pub(crate) fn drop_calls(&mut self, live: &ActiveTask) {
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
            Effect::Reply(waiter, response) => (waiter.done)(Ok(*response)),
            Effect::Note(id) => self.feed.note(id),
            Effect::Run(work) => work(),
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
        let (work, room, sooner) = (Notify::new(), Notify::new(), Notify::new());
        let meters = Meters::new(&config.metrics);
        let courier = Courier::new(config.push.clone(), meters.deliveries.clone());
        let config = Arc::new(config);
        let tokens = Tokens::new(store.secret());
        let is_shared = store.cluster().is_some();
        let state = State::new(tokens, Arc::clone(&config), Arc::clone(&meters), is_shared);
        Self {
            state: Mutex::new(state),
            store,
            config,
            claims: KeyClaims::default(),
            courier,
            changed: Changed::new(limits::WATCH_BATCHES_MAX),
            pulse: ActivityCache::default(),
            meters,
            work,
            room,
            sooner,
            remote_dirty: Notify::new(),
            farewell: CancellationToken::new(),
            left: AtomicBool::new(false),
            lapsed: AtomicBool::new(false),
        }
    }

    /// The lock, for a moment and to look. Whoever changes something uses [`Core::change`].
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and lets the writer know.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let done = self.touch(work);
        self.work.notify_one();
        done
    }

    /// Changes what is only in memory: there is nothing to write.
    pub(crate) fn touch<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let done = work(&mut state);
        let sooner = state.timers.take_sooner();
        let has_cluster_work = state.has_cluster_work();
        drop(state);
        if sooner {
            self.sooner.notify_one();
        }
        if has_cluster_work {
            self.remote_dirty.notify_one();
        }
        done
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
}
