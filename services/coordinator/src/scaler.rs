//! How much there is to do for an agent, as KEDA asks in order to start and stop workers. It reads
//! the questions and words the answers; it starts and stops nothing, and knows no cluster.
//!
//! No token is asked for, as KEDA has none to show: whoever reaches the port learns numbers that
//! `/metrics` shows as well, of agents that he has to name.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{Arc, Weak},
};

use faultline_chassis::{
    limits,
    server::{self, Kind, Taken},
};
use faultline_proto::{
    Failure,
    id::check_agent_name,
    keda::{
        GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
        MetricValue, ScaledObjectRef, external_scaler_server::ExternalScaler,
    },
    reason, v1,
};
use futures::{Stream, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Interval, MissedTickBehavior, interval},
};
use tonic::{Request, Response, Status};

use crate::{
    core::Core,
    error::Error,
    grpc::unseen,
    registry::{Registry, Worker},
};

/// Beginning of the paths of its calls.
pub(crate) const PATH: &str = "/externalscaler.ExternalScaler/";

/// What is measured: tasks that compute or could.
const METRIC: &str = "faultline-demand";
const AGENTS: &str = "scalerMetadata.agents";
const SLOTS: &str = "scalerMetadata.slots";

/// What there is to do for some agents, and who is there to do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tasks that compute, or would if there were a slot. Those that wait for people, for other
    /// agents or for their next attempt are none: a worker more would not help them.
    pub(crate) tasks: u64,
    /// Attached workers that offer one of the agents…
    pub(crate) workers: u64,
    /// …and what slots they have together.
    pub(crate) slots: u64,
}

impl Core {
    /// Everything that is to be done in the whole mesh: here as it is, elsewhere as the others said
    /// at their last beat.
    pub(crate) fn demand(&self, agents: &BTreeSet<String>) -> Result<Demand, Error> {
        let state = self.lock();
        state.check_served()?;
        Ok(state.registry.demand(agents))
    }
}

impl Registry {
    /// The tasks of one agent for which workers are needed.
    pub(crate) fn demand_for(&self, name: &str) -> u64 {
        // Nobody ever offered it, so nobody can send to it. Were that no demand, a first worker
        // would never come.
        if !self.agents.contains_key(name) {
            return 1;
        }
        self.demand_here(name) + self.elsewhere.demand_for(name)
    }

    /// Those of them that are here.
    pub(crate) fn demand_here(&self, name: &str) -> u64 {
        let Some(agent) = self.agents.get(name) else { return 0 };
        let resuming: usize = self.workers.values().map(|w| w.resuming_of(name)).sum();
        u64::from(self.computing(name)) + (agent.queue.len() + resuming) as u64
    }

    fn demand(&self, agents: &BTreeSet<String>) -> Demand {
        let tasks = agents.iter().map(|name| self.demand_for(name)).sum();
        let mut demand = Demand { tasks, ..Demand::default() };
        let offers = |worker: &&Worker| worker.agents.iter().any(|name| agents.contains(name));
        for worker in self.workers.values().filter(|w| w.is_attached()).filter(offers) {
            demand.workers += 1;
            demand.slots += u64::from(worker.slots);
        }
        let offers = |worker: &&v1::Worker| worker.agents.iter().any(|a| agents.contains(a));
        for worker in self.elsewhere.workers().filter(|w| w.attached).filter(offers) {
            demand.workers += 1;
            demand.slots += u64::from(worker.slots);
        }
        demand
    }
}

impl Demand {
    fn is_active(&self) -> bool {
        self.tasks > 0
    }

    /// Of one worker.
    fn slots_each(&self) -> u64 {
        let known = self.slots.checked_div(self.workers).filter(|slots| *slots > 0);
        known.unwrap_or(limits::WORKER_SLOTS.into())
    }
}

/// What the trigger of a scaled object says.
#[derive(Debug, PartialEq, Eq)]
struct Trigger {
    agents: BTreeSet<String>,
    /// Of one worker; `None`: as those have that are attached.
    slots: Option<u32>,
}

impl Trigger {
    fn read(asked: &ScaledObjectRef) -> Result<Self, Error> {
        let text = |key| asked.scaler_metadata.get(key).map_or("", |text| text.trim());
        let invalid = |field, what| Error::Invalid { field, what };
        let names = text("agents").split(',').map(str::trim).filter(|name| !name.is_empty());
        let agents: BTreeSet<String> = names.map(str::to_owned).collect();
        if agents.is_empty() {
            let what = "name the agents that the workers offer, with commas between them";
            return Err(invalid(AGENTS, what.to_owned()));
        }
        for name in &agents {
            let each = "name each agent, for there are no patterns";
            check_agent_name(name).map_err(|e| invalid(AGENTS, format!("{e}; {each}")))?;
        }
        let slots = match text("slots") {
            "" => None,
            text => Some(text.parse().ok().filter(|slots| *slots > 0).ok_or_else(|| {
                invalid(SLOTS, "say how many tasks one worker computes at once, 1 or more".into())
            })?),
        };
        Ok(Self { agents, slots })
    }
}

#[derive(Clone)]
pub(crate) struct Scaler {
    core: Arc<Core>,
    streams: Arc<Semaphore>,
}

impl Scaler {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, streams: Arc::new(Semaphore::new(limits::SCALER_STREAMS_MAX)) }
    }

    async fn ask(&self, asked: &ScaledObjectRef) -> Result<(Trigger, Demand), Status> {
        let trigger = Trigger::read(asked).map_err(unseen)?;
        let demand = self.core.demand(&trigger.agents).map_err(unseen)?;
        Ok((trigger, demand))
    }

    fn watch(&self, asked: &ScaledObjectRef) -> Result<Watch, Error> {
        let trigger = Trigger::read(asked)?;
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let told = limits::SCALER_STREAMS_MAX;
            let text = format!("{told} scaled objects are told already: ask with IsActive");
            Failure::new(&reason::RESOURCE_EXHAUSTED).because(text)
        })?;
        let taken = server::take(Kind::ScalerStream)?;
        let mut looks = interval(limits::SCALER_LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Watch {
            core: Arc::downgrade(&self.core),
            agents: trigger.agents,
            looks,
            told: None,
            _permit: permit,
            _taken: taken,
        })
    }
}

/// Somebody who is told when there is something to do, and when there is not. However often that
/// changes, he hears of it once a look.
struct Watch {
    core: Weak<Core>,
    agents: BTreeSet<String>,
    looks: Interval,
    told: Option<bool>,
    _permit: OwnedSemaphorePermit,
    /// Of what its address may have.
    _taken: Option<Taken>,
}

impl Watch {
    async fn next(&mut self) -> Result<bool, Error> {
        loop {
            self.looks.tick().await;
            let core = self.core.upgrade().ok_or(Error::Leaving)?;
            let active = core.demand(&self.agents)?.is_active();
            if self.told.replace(active) != Some(active) {
                return Ok(active);
            }
        }
    }

    fn answers(self) -> impl Stream<Item = Result<IsActiveResponse, Status>> {
        stream::unfold(Some(self), async |watch| {
            let mut watch = watch?;
            match watch.next().await {
                Ok(result) => Some((Ok(IsActiveResponse { result }), Some(watch))),
                // It comes back, and asks anew.
                Err(error) => Some((Err(unseen(error)), None)),
            }
        })
    }
}

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream =
        Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        let (_, demand) = self.ask(request.get_ref()).await?;
        Ok(Response::new(IsActiveResponse { result: demand.is_active() }))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let watch = self.watch(request.get_ref()).map_err(unseen)?;
        Ok(Response::new(Box::pin(watch.answers())))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let (trigger, demand) = self.ask(request.get_ref()).await?;
        let slots = trigger.slots.map_or(demand.slots_each(), u64::from);
        let metric_name = METRIC.to_owned();
        let spec = MetricSpec { metric_name, target_size: whole(slots), ..MetricSpec::default() };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let GetMetricsRequest { scaled_object_ref, metric_name } = request.into_inner();
        if metric_name != METRIC {
            let what = format!("there is {METRIC} and no other");
            return Err(unseen(Error::Invalid { field: "metricName", what }));
        }
        let (_, demand) = self.ask(&scaled_object_ref.unwrap_or_default()).await?;
        let metric_value = whole(demand.tasks);
        let value = MetricValue { metric_name, metric_value, ..MetricValue::default() };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "scaler_tests.rs"]
mod tests;
