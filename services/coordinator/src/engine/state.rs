//! The in-memory state of a coordinator: active tasks, workers, waiting calls, timers and the
//! commit queue. All of it changes under one lock.

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
        timeouts::{Timer, timers::Timers},
        workers::registry::Registry,
    },
    error::Error,
    store::Write,
    telemetry::metrics::{AgentMeters, Meters},
    webhooks::deliveries::Deliveries,
};

/// Everything that a coordinator holds in memory, behind the one lock of [`Core`].
///
/// The engine, cluster, api and push code reads and changes it under that lock, for a moment at a
/// time and never across an await. Active tasks change only through `State::transition`. The state
/// lives as long as the store accepts writes: after a failed batch it is replaced by a new one that
/// is read from the store.
///
/// [`Core`]: crate::engine::core::Core
pub(crate) struct State {
    /// The tasks that this coordinator owns and that have not ended.
    pub(crate) tasks: ActiveTasks,
    /// Agents, workers, slots and queues.
    pub(crate) registry: Registry,
    pub(crate) task_tree: TaskTree,
    pub(crate) tokens: Tokens,
    /// The task that each waiting call of a gateway link waits for.
    pub(crate) calls: HashMap<CallKey, TaskId>,
    /// Calls with cancel-on-disconnect whose client left before their task was known.
    pub(crate) early_disconnects: HashSet<CallKey>,
    pub(crate) deliveries: Deliveries,
    pub(crate) feed: Feed,
    pub(crate) timers: Timers<Timer>,
    /// Tasks of other coordinators that have watchers or waiters here.
    pub(crate) remote_watches: HashMap<TaskId, RemoteWatch>,
    /// Remote watches whose task may have changed in the store.
    pub(crate) remote_dirty: HashSet<TaskId>,
    /// Tasks of other coordinators to cancel, because their last watcher here has left.
    pub(crate) remote_to_cancel: Vec<TaskId>,
    /// Tasks of this coordinator that are watched at a peer, and since when.
    pub(crate) watched_by_peers: HashMap<TaskId, Instant>,
    /// A worker here has free slots, and a peer has a backlog.
    pub(crate) has_spare_capacity: bool,
    /// Other coordinators may own tasks in the same store.
    pub(crate) is_shared: bool,
    /// Tasks that just ended without a worker that could be told; see `deferred_cancel`.
    pub(crate) undelivered_cancels: Vec<TaskId>,
    pub(crate) queue: CommitQueue,
    /// A batch is with the store, or confirmed and not yet published.
    pub(crate) busy: bool,
    /// Set while no call is accepted: the store is being read again, or the coordinator is leaving.
    pub(crate) closed: Option<Closed>,
    /// The store does not answer: new calls that would write are refused.
    pub(crate) is_away: bool,
    /// When the store was read. Workers reattach after that.
    pub(crate) since: Instant,
    pub(crate) next_session: u64,
    /// Callbacks that run after the lock is released.
    pub(crate) deferred: Vec<Deferred>,
}

/// Why no call is accepted.
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

    /// The metrics of an agent, known or not.
    pub(crate) fn meters_of(&self, agent: &str) -> Arc<AgentMeters> {
        match self.registry.agents.get(agent) {
            Some(agent) => Arc::clone(&agent.meters),
            None => AgentMeters::new(&self.registry.meters, agent),
        }
    }

    /// The number of a new worker session.
    pub(crate) fn session(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    /// Whether a call that writes is accepted now (backpressure: the commit queue is bounded).
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.closed {
            None if self.is_away => Err(Error::Store { detail: "no answer".to_owned() }),
            None if self.queue.writes.len() >= limits::STORE_QUEUE_MAX => Err(Error::Overloaded),
            None => Ok(()),
            Some(_) => self.check_served(),
        }
    }

    /// Whether a call that only reads is accepted now, however long the commit queue is.
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
        self.deferred.push(Deferred::Reject(done, Box::new(error.into())));
    }

    /// Rejects a call that was decided by the pending state of a task, once that state is durable.
    /// If the store refuses that state, the call ends as a conflict. Returns both arguments if the
    /// state is confirmed already, or if no such task is here.
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

    /// Queues an effect that runs once everything queued before it is durable.
    pub(crate) fn after_commit(&mut self, then: Effect) {
        self.queue_post_commit(None, then);
    }

    /// Queues an effect that depends on the writes of a task that are queued already. If the store
    /// refuses one of them, the effect is dropped and its waiter fails with a conflict.
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

    /// Removes the waiter of a call whose client left; `None`: the call is answered already.
    pub(crate) fn forget_call(&mut self, call: CallKey) -> Option<Waiter> {
        self.early_disconnects.remove(&call);
        let (id, waiter) = self.take_waiter(call)?;
        if let Some(grace) = waiter.cancel_after {
            self.start_disconnect_grace(id, grace);
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

    /// Removes the waiter of a call that reached its deadline. The caller learns the id of the
    /// task, so the reply can no longer be a bare message.
    pub(crate) fn take_expired_call(&mut self, call: CallKey) -> Option<(TaskId, Done)> {
        let (id, waiter) = self.take_waiter(call)?;
        if let Some(active) = self.tasks.get_mut(&id) {
            active.may_reply_without_task = false;
        } else if let Some(followed) = self.remote_watches.get_mut(&id) {
            followed.may_reply_without_task = false;
        }
        Some((id, waiter.done))
    }

    /// Removes the waiters of a gateway link that was closed.
    pub(crate) fn forget_link(&mut self, link: u64) {
        let calls = self.calls.keys().chain(&self.early_disconnects);
        let calls: Vec<_> = calls.filter(|call| call.0 == link).copied().collect();
        for call in calls {
            drop(self.forget_call(call));
        }
    }
}
