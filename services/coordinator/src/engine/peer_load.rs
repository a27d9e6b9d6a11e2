//! Load of the other coordinators (workers, queues), from their last heartbeat. Up to a heartbeat
//! stale: for placement heuristics, never for ownership.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use faultline_proto::{
    id::WorkerId,
    v1::{self, Presence},
};

#[derive(Default)]
pub(crate) struct PeerLoad {
    presences: Vec<Presence>,
    loads: BTreeMap<String, Sum>,
    attached: HashSet<WorkerId>,
    /// Agents with queued tasks at peers, since the last notification or comparison.
    agents_with_backlog: BTreeSet<String>,
}

/// The totals of one agent at all peers. Computed from the heartbeats when they are read.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    workers: u32,
    queued: u32,
    computing: u32,
    waiting: u32,
    demand: u64,
}

impl PeerLoad {
    pub(crate) fn new(presences: Vec<Presence>) -> Self {
        let mut loads = BTreeMap::<String, Sum>::new();
        for load in presences.iter().flat_map(|presence| &presence.agents) {
            let Some(agent) = &load.agent else { continue };
            let sum = loads.entry(agent.name.clone()).or_default();
            sum.workers += agent.workers;
            sum.queued += agent.queued;
            sum.computing += agent.computing;
            sum.waiting += agent.waiting;
            sum.demand += load.demand;
        }
        let workers = presences.iter().flat_map(|presence| &presence.workers);
        let attached = workers.filter(|worker| worker.attached);
        let attached = attached.filter_map(|worker| worker.id.parse().ok()).collect();
        let queued = loads.iter().filter(|(_, sum)| sum.queued > 0);
        let agents_with_backlog = queued.map(|(name, _)| name.clone()).collect();
        Self { presences, loads, attached, agents_with_backlog }
    }

    /// The next heartbeat. Backlogs that were announced since the last one are kept.
    pub(crate) fn followed_by(&mut self, mut next: Self) {
        if !next.is_empty() {
            next.agents_with_backlog.append(&mut self.agents_with_backlog);
        }
        *self = next;
    }

    /// The number of peers.
    pub(crate) fn count(&self) -> usize {
        self.presences.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.presences.is_empty()
    }

    fn sum(&self, agent: &str) -> Sum {
        self.loads.get(agent).copied().unwrap_or_default()
    }

    pub(crate) fn workers_of(&self, agent: &str) -> u32 {
        self.sum(agent).workers
    }

    pub(crate) fn computing(&self, agent: &str) -> u32 {
        self.sum(agent).computing
    }

    pub(crate) fn demand_for(&self, agent: &str) -> u64 {
        self.sum(agent).demand
    }

    /// Adds the load at peers to the load here. A worker that is attached here counts once, even if
    /// its former coordinator still lists it.
    pub(crate) fn add_to(&self, agent: &mut v1::Agent, is_here: impl Fn(&WorkerId) -> bool) {
        let sum = self.sum(&agent.name);
        let offers = |worker: &&v1::Worker| worker.attached && worker.agents.contains(&agent.name);
        let is_here = |worker: &v1::Worker| worker.id.parse().is_ok_and(|id| is_here(&id));
        let there = self.workers().filter(offers).filter(|worker| !is_here(worker)).count();
        agent.workers += there as u32;
        agent.queued += sum.queued;
        agent.computing += sum.computing;
        agent.waiting += sum.waiting;
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = &v1::Worker> {
        self.presences.iter().flat_map(|presence| &presence.workers)
    }

    /// The number of workers with such agents at each peer that is not leaving.
    pub(crate) fn workers_at_each(&self, are_such: impl Fn(&[String]) -> bool) -> Vec<usize> {
        let staying = self.presences.iter().filter(|presence| !presence.leaving);
        let is_such = |worker: &&v1::Worker| worker.attached && are_such(&worker.agents);
        staying.map(|presence| presence.workers.iter().filter(is_such).count()).collect()
    }

    /// Whether the worker is attached to a peer.
    pub(crate) fn has(&self, worker: &WorkerId) -> bool {
        self.attached.contains(worker)
    }

    /// Tasks of these agents are queued at a peer.
    pub(crate) fn note_backlog(&mut self, agents: Vec<String>) {
        self.agents_with_backlog.extend(agents);
    }

    pub(crate) fn has_backlog(&self, agent: &str) -> bool {
        self.agents_with_backlog.contains(agent)
    }

    /// No more queued tasks of this agent are at peers.
    pub(crate) fn clear_backlog(&mut self, agent: &str) {
        self.agents_with_backlog.remove(agent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_announced_since_the_last_heartbeat_is_kept() {
        let mut elsewhere = PeerLoad::new(vec![Presence::default()]);
        elsewhere.note_backlog(vec!["a".to_owned()]);
        elsewhere.followed_by(PeerLoad::new(vec![Presence::default()]));
        assert!(elsewhere.has_backlog("a"), "heartbeat may be older than the backlog");
        elsewhere.clear_backlog("a");
        elsewhere.followed_by(PeerLoad::new(vec![Presence::default()]));
        assert!(!elsewhere.has_backlog("a"));
        elsewhere.note_backlog(vec!["a".to_owned()]);
        elsewhere.followed_by(PeerLoad::default());
        assert!(!elsewhere.has_backlog("a"), "no peer is left");
    }
}
