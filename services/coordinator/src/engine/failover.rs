//! What follows a failed attempt, and who has a task then: the agent itself after a pause, another
//! that stands in for it, or nobody. The decisions about one failure are in `retry`, those about an
//! agent in `breaker`; here they meet the agents that there are.

use crate::task::failure_origin::is_born_here;
use std::time::Duration;

use faultline_proto::{
    Failure,
    id::{TaskId, WorkerId},
    v1::{AgentOffer, attempt::Outcome, event},
};
use tokio::time::Instant;

use crate::{
    engine::{core::State, deferred_cancel, workers::registry::Registry},
    policy::{
        circuit_breaker::{HealthSignal, cannot_serve, said_by},
        retry::{self, Situation},
    },
    task::{Millis, Task, is_waiting},
};

impl Registry {
    /// The events of a failed attempt. The last failure ends the task; those before it stay with
    /// their attempts.
    pub(crate) fn after_failure(
        &mut self,
        task: &Task,
        failure: Failure,
        now: Millis,
    ) -> Vec<event::Body> {
        let retry = self.pause_after(task, &failure, now);
        let passes_on = retry.is_err_and(|no| self.passes_on(task, &failure, no));
        if let Some(agent) = self.agents.get(task.runner()) {
            agent.meters.retry(&retry, passes_on);
        }
        let failure = match is_born_here(&failure) {
            true => {
                let here = task.retries + task.losses;
                let spent = failure.retries_spent.saturating_add(here);
                failure.with_retries_spent(spent)
            }
            false => failure,
        };
        match retry {
            Ok(pause) => {
                let pause = Millis::try_from(pause.as_micros().div_ceil(1000)).unwrap_or(0);
                tracing::debug!(
                    task.id = %task.id, trace.id = %failure.trace_id, failure.id = %failure.id,
                    attempt = task.attempt, pause, %failure, "tried again"
                );
                task.decide_retry(failure, Some(now + pause))
            }
            Err(_) if passes_on => task.decide_retry(failure, None),
            Err(no) => task.decide_give_up(failure, no.into()).into_iter().collect(),
        }
    }

    fn pause_after(
        &mut self,
        task: &Task,
        failure: &Failure,
        now: Millis,
    ) -> Result<Duration, retry::No> {
        if is_waiting(task.state) {
            return Err(retry::No::Asking);
        }
        let Some(agent) = self.agents.get_mut(task.runner()) else {
            return Err(retry::No::NotRetryable);
        };
        let situation = Situation {
            retries: task.retries,
            // Never by a caller's Idempotency-Key: a key makes the submission safe to repeat, not
            // the agent's work. A stop is a cancel, which is idempotent.
            idempotent: agent.offer.idempotent || deferred_cancel::is_stop(task),
            remaining: task.remaining_ms(now).map(Duration::from_millis),
            chance: rand::random(),
        };
        let rules = agent.policy.retry_rules(task.parent.is_some());
        let rules =
            if deferred_cancel::is_stop(task) { deferred_cancel::rules(rules) } else { rules };
        let decided = retry::pause(failure, &rules, &situation);
        // What would be tried again counts, whether or not it may be.
        let counts = matches!(decided, Ok(_) | Err(retry::No::Spent));
        match counts && !agent.retry_budget.failed(&agent.policy.budget) {
            true => decided.and(Err(retry::No::BudgetSpent)),
            false => decided,
        }
    }

    fn passes_on(&self, task: &Task, failure: &Failure, no: retry::No) -> bool {
        no.is_spent() && cannot_serve(failure) && self.next_stand_in(task).is_some()
    }

    /// The best agent that may stand in for this one: it has a skill of it, a worker, and a circuit
    /// that is closed.
    pub(crate) fn stand_in(&self, agent: &str, tried: impl Fn(&str) -> bool) -> Option<&str> {
        let agent = self.agents.get(agent)?;
        let others = agent.policy.failover.iter().filter(|name| !tried(name));
        let mut able = others.filter(|name| {
            self.agents.get(*name).is_some_and(|other| {
                other.breaker.is_closed()
                    && self.has_worker(name)
                    && have_common_skill(&agent.offer, &other.offer)
            })
        });
        able.next().map(String::as_str)
    }

    /// The same for a task, which no agent gets twice. Nobody can stop what another has started.
    pub(crate) fn next_stand_in(&self, task: &Task) -> Option<&str> {
        if deferred_cancel::is_stop(task) {
            return None;
        }
        self.stand_in(&task.agent, |name| task.attempts.iter().any(|a| a.agent == name))
    }

    /// Does it stand in for another, or another for it?
    fn is_in_failover(&self, name: &str) -> bool {
        self.agents.iter().any(|(other, agent)| {
            let failover = &agent.policy.failover;
            !failover.is_empty() && (other == name || failover.iter().any(|n| n == name))
        })
    }

    /// Says which of those who are to stand in for each other cannot. Once for each offer.
    pub(crate) fn warn_failover_without_common_skill(&self, changed: &str) {
        for (name, agent) in &self.agents {
            for other in &agent.policy.failover {
                let Some(stand_in) = self.agents.get(other) else { continue };
                let concerned = name == changed || other == changed;
                if concerned && !have_common_skill(&agent.offer, &stand_in.offer) {
                    tracing::warn!(
                        agent = name,
                        failover = other,
                        "no skill in common: it will not stand in"
                    );
                }
            }
        }
    }
}

fn have_common_skill(one: &AgentOffer, other: &AgentOffer) -> bool {
    let skills = |offer: &AgentOffer| {
        let skills = offer.card.iter().flat_map(|card| &card.skills);
        skills.map(|skill| skill.id.clone()).collect::<Vec<_>>()
    };
    let theirs = skills(other);
    skills(one).iter().any(|id| theirs.contains(id))
}

/// Where a task failed or died last: others come first.
pub(crate) fn worker_to_avoid(task: &Task) -> Option<WorkerId> {
    let last = task.attempts.last()?;
    match last.outcome() {
        Outcome::Failed | Outcome::WorkerLost => last.worker_id.parse().ok(),
        _ => None,
    }
}

impl State {
    /// The agent whose workers should have this task: the one that has it, or one that stands in.
    pub(crate) fn target(&self, task: &Task) -> String {
        let runner = task.runner();
        match task.passed_on || !self.serves(runner, task) {
            true => self.registry.next_stand_in(task).unwrap_or(runner).to_owned(),
            false => runner.to_owned(),
        }
    }

    /// Is this agent worth waiting for? What has saved its progress waits in any case: to another
    /// agent that would be nothing.
    fn serves(&self, agent: &str, task: &Task) -> bool {
        let Some(agent) = self.registry.agents.get(agent) else { return false };
        if agent.policy.failover.is_empty() && task.runner() == task.agent
            || task.checkpoint.is_some()
        {
            return true;
        }
        let lets_through =
            agent.breaker.lets_through(Some(task.id), &agent.policy.breaker, Instant::now());
        lets_through && (self.registry.has_worker(&agent.offer.name) || self.in_startup_grace())
    }

    /// Keeps queues moving that no worker's word moves: circuits let somebody through again, a
    /// bound on slots leaves room, an agent stands in for one that is gone.
    pub(crate) fn serve_queues(&mut self, now: Millis) {
        let agents = self.registry.agents.iter().filter(|(_, agent)| !agent.queue.is_empty());
        let names: Vec<_> = agents.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.serve_queue(&name, now);
            self.move_queue(&name, now);
        }
    }

    /// A worker may have freed a slot of an agent's bound that only another worker has room for.
    pub(crate) fn serve_bounded(&mut self, worker: WorkerId, now: Millis) {
        let Some(worker) = self.registry.workers.get(&worker) else { return };
        let is_bounded = |name: &&String| {
            let agent = self.registry.agents.get(*name);
            agent.is_some_and(|a| a.policy.slots_max.is_some() && !a.queue.is_empty())
        };
        let bounded: Vec<_> = worker.agents.iter().filter(is_bounded).cloned().collect();
        bounded.iter().for_each(|name| self.serve_queue(name, now));
    }

    /// Gives out what is queued for an agent, as far as there is room.
    pub(crate) fn serve_queue(&mut self, name: &str, now: Millis) {
        while self.registry.agents.get(name).is_some_and(|agent| !agent.queue.is_empty()) {
            let Some(worker) = self.registry.choose(name, None, None) else { return };
            let queue = self.registry.agents.get_mut(name).map(|agent| &mut agent.queue);
            let Some(id) = queue.and_then(|queue| queue.pop()) else { return };
            self.assign(id, worker, name, now);
        }
    }

    /// Those who wait for an agent that cannot serve go to one that stands in.
    fn move_queue(&mut self, name: &str, now: Millis) {
        let Some(agent) = self.registry.agents.get(name) else { return };
        let serves = agent.breaker.is_closed() && self.registry.has_worker(name);
        if serves || !self.registry.is_in_failover(name) {
            return;
        }
        let goes =
            |id: &TaskId| self.tasks.get(id).is_some_and(|l| self.target(l.pending()) != name);
        let going: Vec<_> = agent.queue.iter().map(|(id, _)| id).filter(goes).collect();
        for id in going {
            if let Some(agent) = self.registry.agents.get_mut(name) {
                agent.queue.remove(id);
            }
            self.place(id, now);
        }
    }

    /// A task has ended, or an agent has shown otherwise how it is.
    pub(crate) fn note_end(&mut self, id: TaskId, now: Millis) {
        let Some(active) = self.tasks.get(&id) else { return };
        let agent = active.pending().runner().to_owned();
        let own = self.registry.agents.get(&agent).and_then(|agent| agent.policy.timeout);
        let said = said_by(active.pending(), own);
        self.note(&agent, id, said, now);
    }

    pub(crate) fn note(&mut self, name: &str, id: TaskId, said: HealthSignal, now: Millis) {
        let Some(agent) = self.registry.agents.get_mut(name) else { return };
        if said == HealthSignal::Serves {
            agent.retry_budget.succeeded(&agent.policy.budget);
        }
        if !agent.breaker.record(id, said, &agent.policy.breaker, Instant::now()) {
            return;
        }
        agent.meters.circuit(said == HealthSignal::CannotServe);
        match said {
            HealthSignal::CannotServe => {
                let failures = agent.breaker.failures();
                tracing::warn!(agent = name, failures, "the circuit is open");
            }
            _ => {
                tracing::info!(agent = name, "the circuit is closed");
                self.serve_queue(name, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
