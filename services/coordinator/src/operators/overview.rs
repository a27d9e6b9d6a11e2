//! The overview for operators: agents, workers, and one task with its children and failures.

use crate::task::confirmed::Confirmed;
use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    id::{TaskId, WorkerId},
    v1::{
        self, AgentsRequest, AgentsResponse, InspectRequest, InspectResponse, WorkersResponse,
        event::Body,
    },
};

use tokio::time::Instant;

use crate::{
    calls::caller::Caller,
    clock::now,
    engine::core::Core,
    error::Error,
    policy::circuit_breaker::{Breaker, Circuit},
    store::Scope,
    task::{Millis, timestamp},
};

impl Core {
    /// Every agent, with the numbers of all coordinators. Circuits are those of this one.
    pub(crate) fn agents(&self, request: &AgentsRequest) -> Result<AgentsResponse, Error> {
        self.lock().check_served()?;
        let mut agents = self.agents_here(request);
        let state = self.lock();
        let workers = &state.registry.workers;
        let is_here = |id: &WorkerId| workers.get(id).is_some_and(|worker| worker.is_attached());
        agents.iter_mut().for_each(|agent| state.registry.peer_load.add_to(agent, is_here));
        Ok(AgentsResponse { agents })
    }

    pub(crate) fn agents_here(&self, request: &AgentsRequest) -> Vec<v1::Agent> {
        let state = self.lock();
        let default = self.default_agent(&state);
        let only = match request.only_default {
            true => Some(default.as_deref().unwrap_or_default()),
            false => Some(request.name.as_str()).filter(|name| !name.is_empty()),
        };
        // Looks up one agent: anonymous card requests must not scan the registry.
        let found = only.map(|name| state.registry.agents.get_key_value(name));
        let all = found.is_none().then_some(&state.registry.agents).into_iter().flatten();
        let agents = found.flatten().into_iter().chain(all);
        let (instant, now) = (Instant::now(), now());
        let agents = agents.map(|(name, agent)| v1::Agent {
            name: name.clone(),
            card: agent.offer.card.clone(),
            workers: agent.workers.len() as u32,
            queued: agent.queue.len() as u32,
            computing: state.registry.computing(name),
            waiting: agent.waiting,
            is_default: default.as_deref() == Some(name),
            card_changed: Some(timestamp(agent.changed)),
            health: Some(health(&agent.breaker, instant, now)),
        });
        agents.collect()
    }

    /// Every worker, wherever it is attached.
    pub(crate) fn workers(&self) -> WorkersResponse {
        let mut workers = self.workers_here();
        let state = self.lock();
        let elsewhere = state.registry.peer_load.workers().cloned();
        workers.extend(elsewhere);
        drop(state);
        // One that has just moved may be told of twice: attached counts.
        workers.sort_by(|a, b| (&a.name, &a.id, !a.attached).cmp(&(&b.name, &b.id, !b.attached)));
        workers.dedup_by(|next, before| next.id == before.id);
        WorkersResponse { workers }
    }

    pub(crate) fn workers_here(&self) -> Vec<v1::Worker> {
        let state = self.lock();
        state
            .registry
            .workers
            .iter()
            .map(|(id, worker)| v1::Worker {
                id: id.to_string(),
                name: worker.name.clone(),
                agents: worker.agents.clone(),
                slots: worker.slots,
                used: worker.used(),
                draining: worker.draining,
                attached: worker.is_attached(),
                since: Some(timestamp(worker.since)),
                orphans: worker.orphans(),
            })
            .collect()
    }

    /// One's own task; anybody's for an operator.
    pub(crate) async fn inspect(
        &self,
        request: InspectRequest,
        caller: &Caller,
    ) -> Result<InspectResponse, Error> {
        let not_found = || Error::TaskNotFound(request.task_id.clone());
        let id = request.task_id.parse::<TaskId>().map_err(|_| not_found())?;
        let scope = if caller.operates { Scope::default() } else { caller.scope("") };
        let stored = self.store.task(id, scope.clone()).await?.ok_or_else(not_found)?;
        let children = self.store.children(id, scope, limits::CHILDREN_SHOWN_MAX).await?;
        let task = stored.task;
        let mut shown = InspectResponse {
            agent: task.agent.clone(),
            trace_id: task.run_trace().trace_id(),
            created: Some(timestamp(task.created)),
            attempts: task.attempts.clone(),
            failure: task.failure.clone().map(Failure::into_record),
            interrupts: task.pending.clone(),
            late_reports: stored.late,
            timeout_ms: task.budget.limit().map(|limit| limit.as_millis() as u64),
            remaining_ms: task.remaining_ms(now()),
            principal: task.principal.clone(),
            parent: task.parent.as_deref().cloned(),
            children,
            ended: task.is_final().then(|| timestamp(task.status_at)),
            tolerated: task.tolerated.failures().to_vec(),
            not_retried: task.not_retried as i32,
            trace_url: String::new(),
            advice: None,
            task: Some(Confirmed::into_a2a(task, None)),
        };
        if !caller.operates {
            hide_workers(&mut shown);
        }
        Ok(shown)
    }
}

/// Worker ids and names, which are host names, are for operators: a tenant reads its own task
/// without them.
fn hide_workers(shown: &mut InspectResponse) {
    for attempt in &mut shown.attempts {
        attempt.worker.clear();
        attempt.worker_id.clear();
        attempt.failure.iter_mut().for_each(hide_worker);
    }
    shown.failure.iter_mut().chain(&mut shown.tolerated).for_each(hide_worker);
}

fn hide_worker(failure: &mut v1::Failure) {
    failure.origin.iter_mut().for_each(|origin| origin.worker.clear());
}

/// The same for an event of a task.
pub(crate) fn hide_worker_of(event: &mut v1::Event) {
    let failure = match &mut event.body {
        Some(Body::Assigned(assigned)) => {
            assigned.worker.clear();
            assigned.worker_name.clear();
            return;
        }
        Some(Body::Lost(lost)) => &mut lost.failure,
        Some(Body::Ended(ended)) => &mut ended.failure,
        Some(Body::Tolerated(tolerated)) => &mut tolerated.failure,
        _ => return,
    };
    failure.iter_mut().for_each(hide_worker);
}

/// The breaker's clock does not tell the time of day, so it is reckoned from now.
fn health(breaker: &Breaker, instant: Instant, now: Millis) -> v1::Health {
    let circuit = breaker.circuit(instant);
    let last = breaker.last_failure().map(|at| instant.saturating_duration_since(at));
    let (word, left) = match circuit {
        Circuit::Closed => (v1::health::Circuit::Closed, None),
        Circuit::Open(left) => (v1::health::Circuit::Open, Some(left)),
        Circuit::HalfOpen => (v1::health::Circuit::HalfOpen, None),
    };
    v1::Health {
        healthy: circuit == Circuit::Closed,
        consecutive_failures: breaker.failures(),
        last_failure: last.map(|ago| timestamp(now - ago.as_millis() as Millis)),
        circuit: word as i32,
        open_until: left.map(|left| timestamp(now + left.as_millis() as Millis)),
    }
}

#[cfg(test)]
mod tests;
