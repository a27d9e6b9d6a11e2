//! Who is attached and what they offer: agents, workers, slots and queues. It counts and chooses;
//! it knows no stream, no store and no transition.

use std::collections::{BTreeMap, HashMap, VecDeque};

use faultline_proto::{
    id::{TaskId, WorkerId},
    v1::{AgentOffer, ToWorker},
};
use tokio::{sync::mpsc, time::Instant};

use crate::task::Millis;

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) agents: BTreeMap<String, Agent>,
    pub(crate) workers: HashMap<WorkerId, Worker>,
}

pub(crate) struct Agent {
    pub(crate) offer: AgentOffer,
    /// Since when the offer is what it is.
    pub(crate) changed: Millis,
    /// Attached workers that offer it. The choice rotates.
    pub(crate) workers: VecDeque<WorkerId>,
    /// Tasks that wait for a slot, the longest wait first, with since when.
    pub(crate) queue: VecDeque<(TaskId, Instant)>,
    /// Tasks that wait for somebody's answer.
    pub(crate) waiting: u32,
}

pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) agents: Vec<String>,
    pub(crate) slots: u32,
    pub(crate) since: Millis,
    pub(crate) draining: bool,
    pub(crate) link: Presence,
    /// What it runs, whether it computes or waits.
    running: HashMap<TaskId, Running>,
    /// How many of them compute.
    used: u32,
    /// Tasks that wait for a slot to go on: answered, or done with waiting for others. They come
    /// before new ones.
    resuming: VecDeque<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) attempt: u32,
    /// Holds a slot.
    pub(crate) computing: bool,
    /// Gave it back because it waits for others, and will ask for it.
    released: bool,
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
            link: Presence::Gone { since: Instant::now() },
            running: HashMap::new(),
            used: 0,
            resuming: VecDeque::new(),
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (TaskId, Running)> {
        self.running.iter().map(|(id, running)| (*id, *running))
    }

    pub(crate) fn runs(&self, task: TaskId, attempt: u32) -> bool {
        self.running.get(&task).is_some_and(|r| r.attempt == attempt)
    }

    /// Gives it a task, with a slot or, while the task waits, without.
    pub(crate) fn start(&mut self, task: TaskId, attempt: u32, computing: bool) {
        self.finish(task);
        self.running.insert(task, Running { attempt, computing, released: false });
        self.used += u32::from(computing);
    }

    /// The task waits: its slot goes back.
    pub(crate) fn pause(&mut self, task: TaskId) {
        if let Some(running) = self.running.get_mut(&task).filter(|r| r.computing) {
            running.computing = false;
            self.used -= 1;
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
        let Some(running) = self.running.get_mut(&task) else { return false };
        self.used += u32::from(!running.computing);
        running.computing = true;
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
        if let Some(running) = self.running.remove(&task) {
            self.used -= u32::from(running.computing);
        }
        self.stop_resuming(task);
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.link, Presence::Attached { .. })
    }

    /// May a new task go there now?
    pub(crate) fn has_room(&self) -> bool {
        self.is_attached() && !self.draining && self.used < self.slots
    }

    /// Puts a message on its stream. False: there is none, or it is stuck.
    pub(crate) fn tell(&self, message: ToWorker) -> bool {
        match &self.link {
            Presence::Attached { outbox, .. } => outbox.try_send(message).is_ok(),
            Presence::Gone { .. } => false,
        }
    }
}

impl Registry {
    /// Takes note of an agent. True: it is new or has changed.
    pub(crate) fn offer(&mut self, offer: AgentOffer, at: Millis) -> bool {
        match self.agents.get_mut(&offer.name) {
            Some(agent) if agent.offer == offer => false,
            Some(agent) => {
                agent.offer = offer;
                agent.changed = at;
                true
            }
            None => {
                let agent = Agent {
                    offer: offer.clone(),
                    changed: at,
                    workers: VecDeque::new(),
                    queue: VecDeque::new(),
                    waiting: 0,
                };
                self.agents.insert(offer.name, agent);
                true
            }
        }
    }

    /// A worker with a free slot for this agent, in turn.
    pub(crate) fn choose(&mut self, agent: &str) -> Option<WorkerId> {
        let Registry { agents, workers } = self;
        let agent = agents.get_mut(agent)?;
        for _ in 0..agent.workers.len() {
            agent.workers.rotate_left(1);
            let id = *agent.workers.back()?;
            if workers.get(&id).is_some_and(Worker::has_room) {
                return Some(id);
            }
        }
        None
    }

    /// The next queued task that this worker may take. Its agents take turns.
    pub(crate) fn next_for(&mut self, id: WorkerId) -> Option<TaskId> {
        let worker = self.workers.get_mut(&id).filter(|w| w.has_room())?;
        for _ in 0..worker.agents.len() {
            worker.agents.rotate_left(1);
            let name = worker.agents.last()?;
            if let Some((task, _)) = self.agents.get_mut(name)?.queue.pop_front() {
                return Some(task);
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
                }
            }
        }
    }
}
