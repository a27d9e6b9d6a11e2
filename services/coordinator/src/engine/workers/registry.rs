//! Who is attached and what they offer: agents, workers, slots and queues. It counts and chooses;
//! it knows no stream, no store and no transition.

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

pub(crate) struct Registry {
    config: Arc<Config>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) agents: BTreeMap<String, Agent>,
    pub(crate) workers: HashMap<WorkerId, Worker>,
    /// What other coordinators have.
    pub(crate) peer_load: PeerLoad,
    /// Workers that were sent to them.
    pub(crate) evictions: HashMap<WorkerId, Evicted>,
}

pub(crate) struct Agent {
    pub(crate) offer: AgentOffer,
    /// Since when the offer is what it is.
    pub(crate) changed: Millis,
    /// When a worker last offered it. While one does it is now, whatever stands here.
    pub(crate) offered: Millis,
    /// Attached workers that offer it. The choice rotates.
    pub(crate) workers: VecDeque<WorkerId>,
    /// Tasks that wait for a slot.
    pub(crate) queue: FairQueue,
    pub(crate) policy: Policy,
    pub(crate) breaker: Breaker,
    pub(crate) retry_budget: RetryBudget,
    /// Tasks that wait for somebody's answer.
    pub(crate) waiting: u32,
    pub(crate) meters: Arc<AgentMeters>,
}

pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) agents: Vec<String>,
    pub(crate) slots: u32,
    pub(crate) since: Millis,
    pub(crate) draining: bool,
    /// Was sent to another coordinator, and goes when it knows one.
    pub(crate) evicted: bool,
    pub(crate) link: Presence,
    /// The credential that introduced it; `None`: it has not attached since this start.
    pub(crate) binding: Option<Binding>,
    /// What it runs, whether it computes or waits.
    running: HashMap<TaskId, RunningAttempt>,
    /// How many of them compute…
    used: u32,
    /// …by agent.
    used_by: HashMap<Arc<str>, u32>,
    /// Tasks that wait for a slot to go on: answered, or done with waiting for others. They come
    /// before new ones.
    resuming: VecDeque<TaskId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningAttempt {
    agent: Arc<str>,
    pub(crate) attempt: u32,
    /// Holds a slot.
    pub(crate) computing: bool,
    /// Gave it back because it waits for others, and will ask for it.
    released: bool,
    /// Since when it is told to stop.
    stopping: Option<Instant>,
    /// Was told to stop, and did not.
    orphan: bool,
}

/// A worker's stream, or since when it has none.
pub(crate) enum Presence {
    Attached {
        session: u64,
        outbox: mpsc::Sender<ToWorker>,
    },
    /// By a clock that does not jump.
    Gone {
        since: Instant,
    },
}

impl Worker {
    /// One that is known only because a stored task names it.
    pub(crate) fn remembered(since: Millis) -> Self {
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

    /// The task is over, and its agent is told.
    pub(crate) fn stop(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task) {
            running.stopping.get_or_insert_with(Instant::now);
        }
    }

    /// Since when it is told to stop, if it is.
    pub(crate) fn stopping(&self, task: TaskId) -> Option<Instant> {
        self.running.get(&task)?.stopping
    }

    /// The task is over and its agent did not stop in time.
    pub(crate) fn orphan(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task) {
            running.orphan = true;
        }
    }

    /// How many of those hold a slot.
    pub(crate) fn orphans(&self) -> u32 {
        self.running.values().filter(|r| r.orphan && r.computing).count() as u32
    }

    /// Gives it a task, with a slot or, while the task waits, without.
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

    /// A slot is taken.
    fn hold(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task).filter(|r| !r.computing) {
            running.computing = true;
            self.used += 1;
            *self.used_by.entry(Arc::clone(&running.agent)).or_default() += 1;
        }
    }

    /// How many tasks of this agent compute.
    pub(crate) fn used_by(&self, agent: &str) -> u32 {
        self.used_by.get(agent).copied().unwrap_or(0)
    }

    /// The task waits: its slot goes back.
    pub(crate) fn pause(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task).filter(|r| r.computing) {
            running.computing = false;
            self.used -= 1;
            if let Some(used) = self.used_by.get_mut(&running.agent) {
                *used -= 1;
            }
        }
    }

    /// The task waits for others: its slot goes back until it is asked for.
    /// True: an answer waited for that slot, and must not wait any longer.
    pub(crate) fn release(&mut self, task: TaskId) -> bool {
        let answered = self.waits_for_slot(task) && self.resuming.contains(&task);
        self.pause(task);
        self.stop_resuming(task);
        if let Some(running) = self.running.get_mut(&task) {
            running.released = true;
        }
        answered
    }

    /// The task goes on: a slot is taken again. True: it had asked for it.
    pub(crate) fn go_on(&mut self, task: TaskId) -> bool {
        self.hold(task);
        let Some(running) = self.running.get_mut(&task) else { return false };
        std::mem::take(&mut running.released)
    }

    /// It waits for others no longer, and for a human still: so it needs no slot.
    pub(crate) fn go_on_without(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task) {
            running.released = false;
        }
    }

    /// The agent goes on without the answer, slot or no slot, unless it waits for others as well.
    pub(crate) fn take_back_question(&mut self, task: TaskId) {
        if self.waits_for_slot(task) {
            self.go_on(task);
        }
    }

    /// The task goes on as soon as there is a slot.
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

    /// How many tasks of this agent wait for a slot to go on.
    pub(crate) fn resuming_of(&self, agent: &str) -> usize {
        let of = |task: &&TaskId| self.running.get(task).is_some_and(|r| &*r.agent == agent);
        self.resuming.iter().filter(of).count()
    }

    /// The task is to stop, and needs no slot for that.
    pub(crate) fn stop_resuming(&mut self, task: TaskId) {
        self.resuming.retain(|t| *t != task);
    }

    /// The next task that goes on, if there is a slot for it.
    pub(crate) fn next_to_resume(&mut self) -> Option<TaskId> {
        match self.is_attached() && self.used < self.slots {
            true => self.resuming.pop_front(),
            false => None,
        }
    }

    pub(crate) fn computes(&self, task: TaskId) -> bool {
        self.running.get(&task).is_some_and(|r| r.computing)
    }

    /// Has none, and cannot go on without one.
    pub(crate) fn waits_for_slot(&self, task: TaskId) -> bool {
        self.running.get(&task).is_some_and(|r| !r.computing && !r.released)
    }

    /// The task no longer is its business.
    pub(crate) fn finish(&mut self, task: TaskId) {
        self.pause(task);
        self.running.remove(&task);
        self.stop_resuming(task);
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.link, Presence::Attached { .. })
    }

    /// May a new task go there now?
    pub(crate) fn has_room(&self) -> bool {
        let is_full = self.used >= self.slots || self.running.len() >= limits::HELD_MAX;
        self.is_attached() && !self.draining && !is_full
    }

    /// Puts a message on its stream. False: there is none, or it is stuck.
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

    /// Of an agent's card.
    pub(crate) fn version(&self, agent: &str) -> &str {
        let card = self.agents.get(agent).and_then(|agent| agent.offer.card.as_ref());
        card.map_or("", |card| &card.version)
    }

    /// Takes note of an agent. True: it is new or has changed.
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

    /// The same for an agent as the store remembers it.
    pub(crate) fn learn(&mut self, known: Remembered) {
        let name = known.offer.name.clone();
        self.offer(known.offer, known.changed);
        if let Some(agent) = self.agents.get_mut(&name) {
            agent.offered = agent.offered.max(known.offered);
        }
    }

    /// How long workers may take to come back.
    pub(crate) fn reattach_grace(&self) -> Duration {
        Duration::from_millis(self.config.reattach_grace_ms)
    }

    /// How many tasks of this agent compute, wherever they do.
    pub(crate) fn computing(&self, agent: &str) -> u32 {
        self.workers.values().map(|worker| worker.used_by(agent)).sum()
    }

    /// Does anybody offer this agent, here or elsewhere?
    pub(crate) fn has_worker(&self, agent: &str) -> bool {
        let here = self.agents.get(agent).is_some_and(|agent| !agent.workers.is_empty());
        here || self.peer_load.workers_of(agent) > 0
    }

    /// How many more tasks of this agent the workers here could take, if none wait here.
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

    /// Has this worker room for tasks that wait at other coordinators?
    pub(crate) fn could_help(&self, id: WorkerId) -> bool {
        let worker = self.workers.get(&id).filter(|worker| worker.has_room());
        worker.is_some_and(|w| w.agents.iter().any(|agent| self.peer_load.wants(agent)))
    }

    /// May one more task of this agent compute?
    fn may_start(&self, name: &str, task: Option<TaskId>) -> bool {
        let Some(agent) = self.agents.get(name) else { return false };
        let slots_max = agent.policy.slots_max;
        agent.breaker.lets_through(task, &agent.policy.breaker, Instant::now())
            && slots_max
                .is_none_or(|max| self.computing(name) + self.peer_load.computing(name) < max)
    }

    /// A worker with a free slot for this agent, in turn. The one to avoid is the last resort.
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
            match workers.get(&id).is_some_and(Worker::has_room) {
                true if avoid == Some(id) => last_resort = avoid,
                true => return Some(id),
                false => {}
            }
        }
        last_resort
    }

    /// The next queued task that this worker may take, and for which agent. They take turns.
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

    /// Its stream is gone; what it runs stays its own for the grace period.
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

/// When a worker was sent away, and for how long it is not sent again.
pub(crate) struct Evicted {
    pub(crate) at: Instant,
    pub(crate) pause: Duration,
}
