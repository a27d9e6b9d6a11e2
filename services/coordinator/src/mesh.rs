//! The operators' questions: what is offered, who is attached, what became of a task.

use std::collections::HashMap;

use faultline_proto::{
    Failure,
    id::TaskId,
    v1::{self, AgentsRequest, AgentsResponse, InspectRequest, InspectResponse, WorkersResponse},
};

use crate::{
    caller::Caller, core::Core, error::Error, registry::Worker, store::Scope, task::timestamp,
};

impl Core {
    pub(crate) fn agents(&self, request: &AgentsRequest) -> Result<AgentsResponse, Error> {
        let state = self.lock();
        state.check_served()?;
        let default = self.default_agent(&state);
        let wanted = |name: &str| request.name.is_empty() || request.name == name;
        let agents = state.registry.agents.iter().filter(|(name, _)| wanted(name));
        // Every reader of a card comes by here, so what runs is walked once.
        let mut computing: HashMap<&str, u32> = HashMap::new();
        let running = state.registry.workers.values().flat_map(Worker::running);
        for (id, _) in running.filter(|(_, running)| running.computing) {
            if let Some(live) = state.live.get(&id) {
                *computing.entry(&live.task.agent).or_default() += 1;
            }
        }
        let agents = agents.map(|(name, agent)| v1::Agent {
            name: name.clone(),
            card: agent.offer.card.clone(),
            workers: agent.workers.len() as u32,
            queued: agent.queue.len() as u32,
            computing: computing.get(name.as_str()).copied().unwrap_or(0),
            waiting: agent.waiting,
            is_default: default.as_deref() == Some(name),
            card_changed: Some(timestamp(agent.changed)),
            health: None,
        });
        Ok(AgentsResponse { agents: agents.collect() })
    }

    pub(crate) fn workers(&self) -> WorkersResponse {
        let state = self.lock();
        let mut workers: Vec<_> = state
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
                orphans: 0,
            })
            .collect();
        workers.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        WorkersResponse { workers }
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
        let stored = self.store.task(id, scope).await?.ok_or_else(not_found)?;
        let task = stored.task;
        Ok(InspectResponse {
            agent: task.agent.clone(),
            trace_id: task.traceparent.split('-').nth(1).unwrap_or_default().to_owned(),
            created: Some(timestamp(task.created)),
            attempts: task.attempts.clone(),
            failure: task.failure.clone().map(Failure::into_record),
            interrupts: task.pending.clone(),
            late_reports: stored.late,
            principal: task.principal.clone(),
            parent: task.parent.as_deref().cloned(),
            task: Some(task.into_a2a(None)),
            ..InspectResponse::default()
        })
    }
}
