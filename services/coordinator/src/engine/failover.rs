//! Retry and failover after a failed attempt: the same agent after a pause, a stand-in agent, or
//! the end of the task. Decisions about one failure are in `policy::retry`, those about an agent in
//! `policy::circuit_breaker`.

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
    /// The events after a failed attempt. The last failure ends the task; earlier failures stay
    /// with their attempts.
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
        let failure = if is_born_here(&failure) {
            let here = task.retries + task.losses;
            let spent = failure.retries_spent.saturating_add(here);
            failure.with_retries_spent(spent)
        } else {
            failure
        };
        match retry {
            Ok(pause) => {
                let pause = Millis::try_from(pause.as_micros().div_ceil(1000)).unwrap_or(0);
                tracing::debug!(
                    task.id = %task.id, trace.id = %failure.trace_id, failure.id = %failure.id,
                    attempt = task.attempt, pause, %failure, "attempt failed: task will be retried"
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
            // The agent's declaration counts, not the idempotency key of a caller: a key makes the
            // submission safe to repeat, not the work of the agent. A deferred cancel is
            // idempotent.
            idempotent: agent.offer.idempotent || deferred_cancel::is_stop(task),
            remaining: task.remaining_ms(now).map(Duration::from_millis),
            chance: rand::random(),
        };
        let rules = agent.policy.retry_rules(task.parent.is_some());
        let rules =
            if deferred_cancel::is_stop(task) { deferred_cancel::rules(rules) } else { rules };
        let decided = retry::pause(failure, &rules, &situation);
        // Every retryable failure counts against the retry budget, also one that is not retried.
        let counts = matches!(decided, Ok(_) | Err(retry::No::Spent));
        if counts && !agent.retry_budget.failed(&agent.policy.budget) {
            decided.and(Err(retry::No::BudgetSpent))
        } else {
            decided
        }
    }

    fn passes_on(&self, task: &Task, failure: &Failure, no: retry::No) -> bool {
        no.is_spent() && cannot_serve(failure) && self.next_stand_in(task).is_some()
    }

    /// The best stand-in for an agent: one with a skill in common, a worker, and a closed circuit.
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

    /// The next stand-in for a task. No agent gets a task twice, and a deferred cancel is not
    /// passed on.
    pub(crate) fn next_stand_in(&self, task: &Task) -> Option<&str> {
        if deferred_cancel::is_stop(task) {
            return None;
        }
        self.stand_in(&task.agent, |name| task.attempts.iter().any(|a| a.agent == name))
    }

    /// Whether the agent stands in for another, or another for it.
    fn is_in_failover(&self, name: &str) -> bool {
        self.agents.iter().any(|(other, agent)| {
            let failover = &agent.policy.failover;
            !failover.is_empty() && (other == name || failover.iter().any(|n| n == name))
        })
    }

    /// Warns of configured stand-ins without a common skill, once for each offer.
    pub(crate) fn warn_failover_without_common_skill(&self, changed: &str) {
        for (name, agent) in &self.agents {
            for other in &agent.policy.failover {
                let Some(stand_in) = self.agents.get(other) else { continue };
                let concerned = name == changed || other == changed;
                if concerned && !have_common_skill(&agent.offer, &stand_in.offer) {
                    tracing::warn!(
                        agent = name,
                        failover = other,
                        "stand-in has no skill in common with the agent: no failover to it"
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

/// The worker of the last failed or lost attempt: other workers come first.
pub(crate) fn worker_to_avoid(task: &Task) -> Option<WorkerId> {
    let last = task.attempts.last()?;
    match last.outcome() {
        Outcome::Failed | Outcome::WorkerLost => last.worker_id.parse().ok(),
        _ => None,
    }
}

impl State {
    /// The agent whose workers should run this task: its own, or a stand-in.
    pub(crate) fn target(&self, task: &Task) -> String {
        let runner = task.runner();
        if task.passed_on || !self.serves(runner, task) {
            self.registry.next_stand_in(task).unwrap_or(runner).to_owned()
        } else {
            runner.to_owned()
        }
    }

    /// Whether the task should wait for this agent. A task with a checkpoint always waits: the
    /// checkpoint is useless to another agent.
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

    /// Serves queues that no event of a worker serves: after a circuit becomes half-open, a slot
    /// bound leaves room, or a stand-in becomes available.
    pub(crate) fn serve_queues(&mut self, now: Millis) {
        let agents = self.registry.agents.iter().filter(|(_, agent)| !agent.queue.is_empty());
        let names: Vec<_> = agents.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.serve_queue(&name, now);
            self.move_queue(&name, now);
        }
    }

    /// Serves queues of bounded agents: the worker may have freed a slot that only another worker
    /// has room for.
    pub(crate) fn serve_bounded(&mut self, worker: WorkerId, now: Millis) {
        let Some(worker) = self.registry.workers.get(&worker) else { return };
        let is_bounded = |name: &&String| {
            let agent = self.registry.agents.get(*name);
            agent.is_some_and(|a| a.policy.slots_max.is_some() && !a.queue.is_empty())
        };
        let bounded: Vec<_> = worker.agents.iter().filter(is_bounded).cloned().collect();
        bounded.iter().for_each(|name| self.serve_queue(name, now));
    }

    /// Assigns queued tasks of an agent to its free slots.
    pub(crate) fn serve_queue(&mut self, name: &str, now: Millis) {
        while self.registry.agents.get(name).is_some_and(|agent| !agent.queue.is_empty()) {
            let Some(worker) = self.registry.choose(name, None, None) else { return };
            let queue = self.registry.agents.get_mut(name).map(|agent| &mut agent.queue);
            let Some(id) = queue.and_then(|queue| queue.pop()) else { return };
            self.assign(id, worker, name, now);
        }
    }

    /// Moves the queue of an agent that cannot serve to its stand-in.
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

    /// Records the end of a task in the circuit breaker of its agent.
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
                tracing::warn!(agent = name, failures, "circuit opened");
            }
            _ => {
                tracing::info!(agent = name, "circuit closed");
                self.serve_queue(name, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
