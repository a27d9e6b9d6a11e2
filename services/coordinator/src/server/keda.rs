//! KEDA's external scaler: the demand for an agent, from which KEDA scales workers. KEDA cannot
//! send a credential, so the service has none and returns numbers only.

use std::{
    collections::{BTreeSet, HashMap},
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use faultline_chassis::{
    limits,
    server::{self, QuotaPermit, Resource},
};
use faultline_proto::{
    Failure,
    id::check_agent_name,
    keda::{
        GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
        MetricValue, ScaledObjectRef, external_scaler_server::ExternalScaler,
    },
    reason,
};
use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Interval, MissedTickBehavior, interval},
};
use tonic::{Request, Response, Status};

use crate::{
    engine::{
        core::Core,
        workers::registry::{Agent, Registry, Worker},
    },
    error::Error,
    server::grpc::unseen,
};

/// Beginning of the paths of its calls.
pub(crate) const PATH: &str = "/externalscaler.ExternalScaler/";

/// The metric: tasks that compute, or would if there were a slot.
const METRIC: &str = "faultline-demand";
const AGENTS: &str = "scalerMetadata.agents";
const SLOTS: &str = "scalerMetadata.slots";

/// The demand for some agents, and the workers that serve it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tasks that compute, or would if there were a slot. Those that wait for people, for other
    /// agents or for their next attempt are none: a worker more would not help them.
    pub(crate) tasks: u64,
    /// Attached workers that offer one of the agents…
    pub(crate) workers: u64,
    /// The slots of these workers together.
    pub(crate) slots: u64,
}

/// The demand of the whole mesh at one moment: here as it is, at other coordinators as of their
/// last heartbeat. Anonymous calls read a shared snapshot, so that no number of them holds the
/// state lock for long.
pub(crate) struct DemandSnapshot {
    taken: Instant,
    /// Of every agent that is known.
    tasks: HashMap<String, u64>,
    /// Attached workers: their agents and slots.
    workers: Vec<(Vec<String>, u32)>,
}

impl Core {
    pub(crate) fn demand_snapshot(&self) -> DemandSnapshot {
        self.lock().registry.demand_snapshot()
    }
}

impl Registry {
    /// The tasks of one agent at this coordinator for which workers are needed.
    pub(crate) fn demand_here(&self, name: &str) -> u64 {
        let Some(agent) = self.agents.get(name) else { return 0 };
        let resuming: usize = self.workers.values().map(|w| w.resuming_of(name)).sum();
        u64::from(self.computing(name)) + (agent.queue.len() + resuming) as u64
    }

    /// One pass over agents and workers.
    fn demand_snapshot(&self) -> DemandSnapshot {
        let queued = |(name, agent): (&String, &Agent)| {
            (name.clone(), agent.queue.len() as u64 + self.peer_load.demand_for(name))
        };
        let mut tasks: HashMap<_, _> = self.agents.iter().map(queued).collect();
        for (agent, busy) in self.workers.values().flat_map(Worker::demand) {
            if let Some(tasks) = tasks.get_mut(agent) {
                *tasks += busy;
            }
        }
        let here = self.workers.values().filter(|worker| worker.is_attached());
        let here = here.map(|worker| (worker.agents.clone(), worker.slots));
        let others = self.peer_load.workers().filter(|worker| worker.attached);
        let others = others.map(|worker| (worker.agents.clone(), worker.slots));
        DemandSnapshot { taken: Instant::now(), tasks, workers: here.chain(others).collect() }
    }
}

impl DemandSnapshot {
    fn demand(&self, agents: &BTreeSet<String>) -> Demand {
        // No worker ever offered an unknown agent, so no task can be sent to it. It counts as one
        // task: without demand its first worker would never start.
        let tasks = agents.iter().map(|name| self.tasks.get(name).copied().unwrap_or(1)).sum();
        let mut demand = Demand { tasks, ..Demand::default() };
        for (offered, slots) in &self.workers {
            if offered.iter().any(|name| agents.contains(name)) {
                demand.workers += 1;
                demand.slots += u64::from(*slots);
            }
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

/// The trigger of a scaled object.
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
        if agents.len() > limits::SCALER_AGENTS_MAX {
            let (named, most) = (agents.len(), limits::SCALER_AGENTS_MAX);
            let what = format!("{named} agents are named, {most} are possible; use more triggers");
            return Err(invalid(AGENTS, what));
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
    recent: Arc<RecentDemand>,
}

/// The last snapshot, which all calls share for a moment.
struct RecentDemand {
    age_max: Duration,
    snapshot: Mutex<Option<Arc<DemandSnapshot>>>,
}

impl RecentDemand {
    fn get(&self, core: &Core) -> Result<Arc<DemandSnapshot>, Error> {
        core.lock().check_served()?;
        // Held while a new snapshot is taken: concurrent calls wait for that one.
        let mut kept = self.snapshot.lock();
        if let Some(recent) = kept.as_ref().filter(|s| s.taken.elapsed() < self.age_max) {
            return Ok(Arc::clone(recent));
        }
        let taken = Arc::new(core.demand_snapshot());
        *kept = Some(Arc::clone(&taken));
        Ok(taken)
    }
}

impl Scaler {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self::with_age(core, limits::SCALER_POLL_INTERVAL / 4)
    }

    fn with_age(core: Arc<Core>, age_max: Duration) -> Self {
        let recent = Arc::new(RecentDemand { age_max, snapshot: Mutex::default() });
        Self { core, streams: Arc::new(Semaphore::new(limits::SCALER_STREAMS_MAX)), recent }
    }

    async fn ask(&self, asked: &ScaledObjectRef) -> Result<(Trigger, Demand), Status> {
        let trigger = Trigger::read(asked).map_err(unseen)?;
        let demand = self.recent.get(&self.core).map_err(unseen)?.demand(&trigger.agents);
        Ok((trigger, demand))
    }

    fn watch(&self, asked: &ScaledObjectRef) -> Result<Watch, Error> {
        let trigger = Trigger::read(asked)?;
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let told = limits::SCALER_STREAMS_MAX;
            let text = format!("{told} scaled objects are told already: ask with IsActive");
            Failure::new(&reason::RESOURCE_EXHAUSTED).because(text)
        })?;
        let taken = server::acquire(Resource::ScalerStream)?;
        let mut looks = interval(limits::SCALER_POLL_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Watch {
            core: Arc::downgrade(&self.core),
            recent: Arc::clone(&self.recent),
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
    recent: Arc<RecentDemand>,
    agents: BTreeSet<String>,
    looks: Interval,
    told: Option<bool>,
    _permit: OwnedSemaphorePermit,
    /// The permit from the limit of its address.
    _taken: Option<QuotaPermit>,
}

impl Watch {
    async fn next(&mut self) -> Result<bool, Error> {
        loop {
            self.looks.tick().await;
            let core = self.core.upgrade().ok_or(Error::Leaving)?;
            let active = self.recent.get(&core)?.demand(&self.agents).is_active();
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
mod tests;
