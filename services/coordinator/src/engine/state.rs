//! The in-memory state of a coordinator: active tasks, workers, waiting calls, timers and the commit
//! queue. All of it changes under one lock.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use faultline_chassis::limits;
use faultline_proto::id::TaskId;
use tokio::time::Instant;

use crate::{
    Config,
    calls::{attempt_token::Tokens, caller::CallKey},
    engine::{
        active_task::{ActiveTasks, CallError, Done, Waiter},
        change_feed::Feed,
        commit_queue::{CommitQueue, PostCommit},
        effect::Effect,
        publish::Deferred,
        remote_watch::RemoteWatch,
        task_tree::TaskTree,
        timeouts::Timer,
        timers::Timers,
        workers::registry::Registry,
    },
    error::Error,
    store::Write,
    telemetry::metrics::{AgentMeters, Meters},
    webhooks::deliveries::Deliveries,
};

/// Everything that a coordinator holds in memory, behind the one lock of [`Core`].
///
/// It is read and changed by the engine, cluster and api under that lock, for a moment at a time and
/// never across an await. It lives as long as the store takes writes: when a batch cannot be
/// written, the state is thrown away and read from the store again.
///
/// [`Core`]: crate::engine::core::Core
pub(crate) struct State {
    pub(crate) tasks: ActiveTasks,
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
    /// Callbacks that wait until the lock is released.
    pub(crate) deferred: Vec<Deferred>,
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
            tasks: ActiveTasks::default(),
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
            deferred: Vec::new(),
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

    /// Answers a call after the lock is released.
    pub(crate) fn reply(&mut self, done: Done, error: impl Into<CallError>) {
        self.deferred.push(Deferred::Reply(done, Err(error.into())));
    }

    /// Rejects a call that was decided by the pending state of a task: once that state is durable.
    /// If the store refuses it, the call ends as a conflict. Gives both back where the state is
    /// confirmed already, or there is no such task here.
    pub(crate) fn reject_on_commit(
        &mut self,
        id: Option<TaskId>,
        done: Done,
        error: Error,
    ) -> Result<(), (Done, Error)> {
        let pending = id.filter(|id| self.tasks.get(id).is_some_and(|task| !task.is_confirmed()));
        let Some(id) = pending else { return Err((done, error)) };
        self.after_writes_of(id, Effect::Reject(done, Box::new(error.into())));
        Ok(())
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
        let waiters = match self.tasks.get_mut(&id) {
            Some(active) => &mut active.waiters,
            None => self.remote_watches.get_mut(&id)?.waiters_mut(),
        };
        let at = waiters.iter().position(|w| w.call == Some(call))?;
        Some((id, waiters.swap_remove(at)))
    }

    /// A caller's patience ended. It was told of the task, so the task must stay.
    pub(crate) fn end_patience(&mut self, call: CallKey) -> Option<(TaskId, Done)> {
        let (id, waiter) = self.take_waiter(call)?;
        if let Some(active) = self.tasks.get_mut(&id) {
            active.may_reply_without_task = false;
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
}
