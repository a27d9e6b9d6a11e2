//! Registry of attached workers and known agents: counts slots and chooses workers. It knows no
//! stream protocol, no store and no transition.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use faultline_chassis::{credential::Binding, limits};
use faultline_proto::{
    id::{TaskId, WorkerId},
    v1::{AgentOffer, ToWorker},
};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    Config,
    clock::now,
    engine::{peer_load::PeerLoad, workers::fair_queue::FairQueue},
    policy::{agent_policy::Policy, circuit_breaker::Breaker, retry::RetryBudget},
    store::Remembered,
    task::Millis,
    telemetry::metrics::{AgentMeters, Meters},
};

/// The agents and workers that this coordinator knows. Part of the state: changed by dispatch, the
/// worker sessions and the cluster code under the state lock, and rebuilt after a restart from the
/// store and from the workers that reattach.
pub(crate) struct Registry {
    config: Arc<Config>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) agents: BTreeMap<String, Agent>,
    pub(crate) workers: HashMap<WorkerId, Worker>,
    /// The load of the other coordinators.
    pub(crate) peer_load: PeerLoad,
    /// Workers that were told to move to another coordinator.
    pub(crate) evictions: HashMap<WorkerId, Evicted>,
}

/// An agent that a worker offers or has offered. Changed under the state lock by offers and by
/// dispatch; forgotten by `known_agents`.
pub(crate) struct Agent {
    pub(crate) offer: AgentOffer,
    /// When the offer last changed.
    pub(crate) changed: Millis,
    /// When a worker last offered it. Not updated while a worker offers it.
    pub(crate) offered: Millis,
    /// Attached workers that offer it, in rotation (round robin).
    pub(crate) workers: VecDeque<WorkerId>,
    /// Tasks that wait for a slot.
    pub(crate) queue: FairQueue,
    pub(crate) policy: Policy,
    pub(crate) breaker: Breaker,
    pub(crate) retry_budget: RetryBudget,
    /// Tasks that wait for an answer.
    pub(crate) waiting: u32,
    pub(crate) meters: Arc<AgentMeters>,
}

/// A worker, attached or within its grace period. Changed under the state lock by its session and
/// by dispatch; removed when it leaves or is lost.
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) agents: Vec<String>,
    pub(crate) slots: u32,
    pub(crate) since: Millis,
    pub(crate) draining: bool,
    /// The worker was told to move to another coordinator, and goes when it knows one.
    pub(crate) evicted: bool,
    pub(crate) link: Presence,
    /// The credential that introduced it; `None`: the worker has not attached since this start.
    pub(crate) binding: Option<Binding>,
    /// Its attempts, computing or waiting.
    running: HashMap<TaskId, RunningAttempt>,
    /// The number of attempts that hold a slot.
    used: u32,
    /// The number of attempts that hold a slot, by agent.
    used_by: HashMap<Arc<str>, u32>,
    /// Tasks that wait for a slot to continue: answered, or with their children done. They come
    /// before new tasks.
    resuming: VecDeque<TaskId>,
}

/// An attempt on a worker. Changed by [`Worker`] alone, and dropped when the worker reports its
/// end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningAttempt {
    agent: Arc<str>,
    pub(crate) attempt: u32,
    /// The attempt holds a slot.
    pub(crate) computing: bool,
    /// The attempt gave its slot back because it waits for other agents, and will request it.
    released: bool,
    /// When the attempt was cancelled, if it was.
    stopping: Option<Instant>,
    /// The attempt did not stop within its stop deadline.
    orphan: bool,
}

/// The stream of a worker, or the time since which it has none.
pub(crate) enum Presence {
    Attached {
        session: u64,
        outbox: mpsc::Sender<ToWorker>,
    },
    /// By the monotonic clock.
    Gone {
        since: Instant,
    },
}

impl Worker {
    /// A worker that is known only from a stored task.
    pub(crate) fn from_store(since: Millis) -> Self {
        Self {
            name: String::new(),
            agents: Vec::new(),
            slots: 0,
            since,
            draining: false,
            evicted: false,
            link: Presence::Gone { since: Instant::now() },
            binding: None,
            running: HashMap::new(),
            used: 0,
            used_by: HashMap::new(),
            resuming: VecDeque::new(),
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (TaskId, RunningAttempt)> {
        self.running.iter().map(|(id, running)| (*id, running.clone()))
    }

    pub(crate) fn runs(&self, task: TaskId, attempt: u32) -> bool {
        self.running.get(&task).is_some_and(|r| r.attempt == attempt)
    }

    /// Marks an attempt as cancelled.
    pub(crate) fn stop(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task) {
            running.stopping.get_or_insert_with(Instant::now);
        }
    }

    /// When the attempt was cancelled, if it was.
    pub(crate) fn stopping(&self, task: TaskId) -> Option<Instant> {
        self.running.get(&task)?.stopping
    }

    /// Marks an attempt as an orphan: cancelled and not stopped in time.
    pub(crate) fn orphan(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task) {
            running.orphan = true;
        }
    }

    /// The number of orphans that hold a slot.
    pub(crate) fn orphans(&self) -> u32 {
        self.running.values().filter(|r| r.orphan && r.computing).count() as u32
    }

    /// Adds an attempt, with a slot or, while the task waits, without.
    pub(crate) fn start(&mut self, task: TaskId, agent: &str, attempt: u32, computing: bool) {
        self.finish(task);
        let agent = Arc::from(agent);
        let running = RunningAttempt {
            agent,
            attempt,
            computing: false,
            released: false,
            stopping: None,
            orphan: false,
        };
        self.running.insert(task, running);
        if computing {
            self.hold(task);
        }
    }

    /// Takes a slot for an attempt.
    fn hold(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task).filter(|r| !r.computing) {
            running.computing = true;
            self.used += 1;
            *self.used_by.entry(Arc::clone(&running.agent)).or_default() += 1;
        }
    }

    /// The number of attempts of this agent that hold a slot.
    pub(crate) fn used_by(&self, agent: &str) -> u32 {
        self.used_by.get(agent).copied().unwrap_or(0)
    }

    /// Frees the slot of a task that waits for an answer.
    pub(crate) fn pause(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task).filter(|r| r.computing) {
            running.computing = false;
            self.used -= 1;
            if let Some(used) = self.used_by.get_mut(&running.agent) {
                *used -= 1;
            }
        }
    }

    /// Frees the slot of a task that waits for other agents. True: an answer waited for that slot
    /// and must be sent now.
    pub(crate) fn release(&mut self, task: TaskId) -> bool {
        let answered = self.waits_for_slot(task) && self.resuming.contains(&task);
        self.pause(task);
        self.stop_resuming(task);
        if let Some(running) = self.running.get_mut(&task) {
            running.released = true;
        }
        answered
    }

    /// Takes the slot of a task again. True: the task had requested the slot.
    pub(crate) fn go_on(&mut self, task: TaskId) -> bool {
        self.hold(task);
        let Some(running) = self.running.get_mut(&task) else { return false };
        std::mem::take(&mut running.released)
    }

    /// The task no longer waits for other agents, but still waits for an answer: it needs no slot.
    pub(crate) fn go_on_without(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task) {
            running.released = false;
        }
    }

    /// The agent withdrew its question and continues without a slot, unless it waits for other
    /// agents.
    pub(crate) fn take_back_question(&mut self, task: TaskId) {
        if self.waits_for_slot(task) {
            self.go_on(task);
        }
    }

    /// Queues a task to continue as soon as a slot is free.
    pub(crate) fn resume(&mut self, task: TaskId) {
        if !self.resuming.contains(&task) {
            self.resuming.push_back(task);
        }
    }

    /// Tasks that need this worker, by agent: those that compute, and those that wait for a slot.
    pub(crate) fn demand(&self) -> impl Iterator<Item = (&str, u64)> {
        let computing = self.used_by.iter().map(|(agent, used)| (&**agent, u64::from(*used)));
        let resuming = self.resuming.iter().filter_map(|task| self.running.get(task));
        computing.chain(resuming.map(|running| (&*running.agent, 1)))
    }

    /// The number of tasks of this agent that wait for a slot to continue.
    pub(crate) fn resuming_of(&self, agent: &str) -> usize {
        let of = |task: &&TaskId| self.running.get(task).is_some_and(|r| &*r.agent == agent);
        self.resuming.iter().filter(of).count()
    }

    /// Removes a cancelled task from the tasks that wait for a slot.
    pub(crate) fn stop_resuming(&mut self, task: TaskId) {
        self.resuming.retain(|t| *t != task);
    }

    /// The next task to continue, if a slot is free.
    pub(crate) fn next_to_resume(&mut self) -> Option<TaskId> {
        if self.is_attached() && self.used < self.slots { self.resuming.pop_front() } else { None }
    }

    pub(crate) fn computes(&self, task: TaskId) -> bool {
        self.running.get(&task).is_some_and(|r| r.computing)
    }

    /// Whether the attempt has no slot and cannot continue without one.
    pub(crate) fn waits_for_slot(&self, task: TaskId) -> bool {
        self.running.get(&task).is_some_and(|r| !r.computing && !r.released)
    }

    /// Removes an attempt and frees its slot.
    pub(crate) fn finish(&mut self, task: TaskId) {
        self.pause(task);
        self.running.remove(&task);
        self.stop_resuming(task);
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.link, Presence::Attached { .. })
    }

    /// Whether a new task may be assigned now.
    pub(crate) fn has_room(&self) -> bool {
        let is_full = self.used >= self.slots || self.running.len() >= limits::HELD_MAX;
        self.is_attached() && !self.draining && !is_full
    }

    /// Puts a message on the stream. False: there is no stream, or its channel is full.
    pub(crate) fn tell(&self, message: ToWorker) -> bool {
        match &self.link {
            Presence::Attached { outbox, .. } => outbox.try_send(message).is_ok(),
            Presence::Gone { .. } => false,
        }
    }
}

impl Agent {
    fn new(offer: AgentOffer, policy: Policy, changed: Millis, meters: Arc<AgentMeters>) -> Self {
        Self {
            retry_budget: RetryBudget::full(&policy.budget),
            breaker: Breaker::default(),
            queue: FairQueue::default(),
            workers: VecDeque::new(),
            waiting: 0,
            meters,
            offer,
            policy,
            changed,
            offered: changed,
        }
    }
}

impl Registry {
    pub(crate) fn new(config: Arc<Config>, meters: Arc<Meters>) -> Self {
        Self {
            config,
            meters,
            agents: BTreeMap::new(),
            workers: HashMap::new(),
            peer_load: PeerLoad::default(),
            evictions: HashMap::new(),
        }
    }

    /// The version on the card of an agent.
    pub(crate) fn version(&self, agent: &str) -> &str {
        let card = self.agents.get(agent).and_then(|agent| agent.offer.card.as_ref());
        card.map_or("", |card| &card.version)
    }

    /// Registers an offer. True: the agent is new or has changed.
    pub(crate) fn offer(&mut self, offer: AgentOffer, at: Millis) -> bool {
        let (name, policy) = (offer.name.clone(), Policy::of(&self.config, &offer));
        match self.agents.get_mut(&name) {
            Some(agent) if agent.offer == offer => return false,
            Some(agent) => {
                agent.offer = offer;
                agent.policy = policy;
                agent.changed = at;
            }
            None => {
                let meters = AgentMeters::new(&self.meters, &name);
                self.agents.insert(name.clone(), Agent::new(offer, policy, at, meters));
            }
        }
        self.warn_failover_without_common_skill(&name);
        true
    }

    /// Registers an agent from the store.
    pub(crate) fn restore(&mut self, known: Remembered) {
        let name = known.offer.name.clone();
        self.offer(known.offer, known.changed);
        if let Some(agent) = self.agents.get_mut(&name) {
            agent.offered = agent.offered.max(known.offered);
        }
    }

    /// The grace period within which workers may reattach.
    pub(crate) fn reattach_grace(&self) -> Duration {
        Duration::from_millis(self.config.reattach_grace_ms)
    }

    /// Tasks of this agent that hold a slot, at all coordinators.
    pub(crate) fn computing(&self, agent: &str) -> u32 {
        self.workers.values().map(|worker| worker.used_by(agent)).sum()
    }

    /// Whether a worker offers this agent, here or at a peer.
    pub(crate) fn has_worker(&self, agent: &str) -> bool {
        let here = self.agents.get(agent).is_some_and(|agent| !agent.workers.is_empty());
        here || self.peer_load.workers_of(agent) > 0
    }

    /// The number of additional tasks of this agent that the workers here could take.
    pub(crate) fn room_for(&self, name: &str) -> usize {
        let Some(agent) = self.agents.get(name).filter(|agent| agent.queue.is_empty()) else {
            return 0;
        };
        if !self.may_start(name, None) {
            return 0;
        }
        let workers = agent.workers.iter().filter_map(|id| self.workers.get(id));
        let free = workers.filter(|worker| worker.has_room());
        free.map(|worker| (worker.slots - worker.used) as usize).sum()
    }

    /// Whether this worker has free slots for tasks that are queued at peers.
    pub(crate) fn could_help(&self, id: WorkerId) -> bool {
        let worker = self.workers.get(&id).filter(|worker| worker.has_room());
        worker.is_some_and(|w| w.agents.iter().any(|agent| self.peer_load.has_backlog(agent)))
    }

    /// Whether one more task of this agent may start, within its slot bound.
    fn may_start(&self, name: &str, task: Option<TaskId>) -> bool {
        let Some(agent) = self.agents.get(name) else { return false };
        let slots_max = agent.policy.slots_max;
        agent.breaker.lets_through(task, &agent.policy.breaker, Instant::now())
            && slots_max
                .is_none_or(|max| self.computing(name) + self.peer_load.computing(name) < max)
    }

    /// A worker with a free slot for this agent, in rotation. The worker to avoid is the last
    /// resort.
    pub(crate) fn choose(
        &mut self,
        agent: &str,
        task: Option<TaskId>,
        avoid: Option<WorkerId>,
    ) -> Option<WorkerId> {
        if !self.may_start(agent, task) {
            return None;
        }
        let Registry { agents, workers, .. } = self;
        let agent = agents.get_mut(agent)?;
        let mut last_resort = None;
        for _ in 0..agent.workers.len() {
            agent.workers.rotate_left(1);
            let id = *agent.workers.back()?;
            if workers.get(&id).is_some_and(Worker::has_room) {
                if avoid != Some(id) {
                    return Some(id);
                }
                last_resort = avoid;
            }
        }
        last_resort
    }

    /// The next queued task that this worker may take, and its agent. Agents take turns (fairness).
    pub(crate) fn next_for(&mut self, id: WorkerId) -> Option<(TaskId, String)> {
        let agents = self.workers.get(&id).filter(|w| w.has_room())?.agents.len();
        for _ in 0..agents {
            let worker = self.workers.get_mut(&id)?;
            worker.agents.rotate_left(1);
            let name = worker.agents.last()?;
            if self.agents.get(name).is_none_or(|agent| agent.queue.is_empty()) {
                continue;
            }
            let name = name.clone();
            if self.may_start(&name, None)
                && let Some(task) = self.agents.get_mut(&name)?.queue.pop()
            {
                return Some((task, name));
            }
        }
        None
    }

    /// Marks the stream as gone. The attempts stay with the worker for the grace period.
    pub(crate) fn detach(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.link = Presence::Gone { since: Instant::now() };
            for name in &worker.agents {
                if let Some(agent) = self.agents.get_mut(name) {
                    agent.workers.retain(|w| *w != id);
                    agent.offered = now();
                }
            }
        }
    }
}

/// When a worker was evicted, and how long it is not evicted again.
pub(crate) struct Evicted {
    pub(crate) at: Instant,
    pub(crate) pause: Duration,
}
