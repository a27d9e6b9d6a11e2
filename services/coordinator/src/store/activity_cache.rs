//! A cache of task counts over time. Counts of the past do not change, so each bucket is
//! counted once, however often a screen asks.

use std::collections::{BTreeMap, VecDeque};

use faultline_chassis::limits;
use faultline_proto::v1::AgentActivity;
use parking_lot::{Mutex, MutexGuard};

use crate::{store::Buckets, task::Millis};

/// After so long nothing of a time is on its way to the store any more.
const SETTLED_AFTER_MS: Millis = 10_000;

/// The cached counts, for each recently used width of buckets.
#[derive(Default)]
pub(crate) struct ActivityCache(Mutex<VecDeque<Counted>>);

/// All that happened in these buckets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) over: Buckets,
    pub(crate) agents: Vec<AgentActivity>,
}

impl ActivityCache {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Counted>> {
        self.0.lock()
    }

    /// The beginning of this time, as far as it was counted before.
    pub(crate) fn known(&self, over: Buckets) -> Option<Counted> {
        let all = self.lock();
        let known = all.iter().find(|counted| counted.over.width == over.width)?;
        let covers = known.over.from <= over.from && over.from < known.over.end();
        covers.then(|| known.from(over.from))
    }

    /// Keeps the counts of the past, joined with those from before.
    pub(crate) fn remember(&self, whole: Counted, now: Millis) {
        let mut settled = whole.until(now - SETTLED_AFTER_MS);
        let mut all = self.lock();
        let at = all.iter().position(|counted| counted.over.width == settled.over.width);
        if let Some(before) = at.and_then(|at| all.remove(at)) {
            let joins =
                before.over.from < settled.over.from && settled.over.from <= before.over.end();
            if joins {
                settled = before.until(settled.over.from).then(&settled);
            }
        }
        let most = limits::BUCKETS_MAX as Millis * settled.over.width;
        settled = settled.from(settled.over.end() - most);
        all.push_front(settled);
        all.truncate(limits::ACTIVITY_WIDTHS_MAX);
    }
}

impl Buckets {
    fn end(&self) -> Millis {
        self.from + self.width * self.count as Millis
    }

    /// The part after the end of another range.
    pub(crate) fn after(&self, other: &Buckets) -> Buckets {
        let from = other.end().clamp(self.from, self.end());
        let count = (self.end() - from) / self.width;
        Buckets { from, count: count as usize, ..*self }
    }
}

impl Counted {
    /// The part from this time on, and the part before it.
    fn from(&self, time: Millis) -> Self {
        let skip = (time - self.over.from).div_euclid(self.over.width);
        let skip = usize::try_from(skip).unwrap_or(0).min(self.over.count);
        let from = self.over.from + self.over.width * skip as Millis;
        self.part(skip..self.over.count, from)
    }

    fn until(&self, time: Millis) -> Self {
        let keep = (time - self.over.from).div_euclid(self.over.width);
        let keep = usize::try_from(keep).unwrap_or(0).min(self.over.count);
        self.part(0..keep, self.over.from)
    }

    fn part(&self, range: std::ops::Range<usize>, from: Millis) -> Self {
        let cut = |numbers: &Vec<u32>| numbers[range.clone()].to_vec();
        let agents = self.agents.iter().map(|agent| AgentActivity {
            agent: agent.agent.clone(),
            submitted: cut(&agent.submitted),
            completed: cut(&agent.completed),
            failed: cut(&agent.failed),
            stopped: cut(&agent.stopped),
        });
        let agents = agents.filter(|agent| !is_still(agent)).collect();
        Self { over: Buckets { from, count: range.len(), ..self.over }, agents }
    }

    /// This and the counts that follow it without a gap.
    pub(crate) fn then(self, next: &Self) -> Self {
        let (before, after) = (self.over.count, next.over.count);
        let both = self.agents.iter().map(|a| (&a.agent, (Some(a), None)));
        let mut names: BTreeMap<_, (Option<&AgentActivity>, Option<&AgentActivity>)> =
            both.collect();
        for agent in &next.agents {
            names.entry(&agent.agent).or_default().1 = Some(agent);
        }
        let agents = names.into_iter().map(|(name, (first, second))| {
            let join = |of: fn(&AgentActivity) -> &Vec<u32>| {
                let none = |count| vec![0; count];
                let mut all = first.map_or_else(|| none(before), |agent| of(agent).clone());
                all.extend(second.map_or_else(|| none(after), |agent| of(agent).clone()));
                all
            };
            AgentActivity {
                agent: name.clone(),
                submitted: join(|agent| &agent.submitted),
                completed: join(|agent| &agent.completed),
                failed: join(|agent| &agent.failed),
                stopped: join(|agent| &agent.stopped),
            }
        });
        let agents = agents.collect();
        Self { over: Buckets { count: before + after, ..self.over }, agents }
    }
}

fn is_still(agent: &AgentActivity) -> bool {
    let all = [&agent.submitted, &agent.completed, &agent.failed, &agent.stopped];
    all.iter().all(|numbers| numbers.iter().all(|n| *n == 0))
}

#[cfg(test)]
mod tests;
