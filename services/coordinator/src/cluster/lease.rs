//! Ownership by lease: keeps this coordinator's lease, takes over tasks of coordinators whose lease
//! has expired, and claims queued tasks for workers that are attached here. Coordinators meet only
//! in the store, which decides every race.

use crate::telemetry::metrics::Acquired;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    id::{TaskId, WorkerId},
    v1::{AgentsRequest, Load, Presence},
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    clock::now,
    engine::{
        core::{Closed, Core, State},
        peer_load::PeerLoad,
        store_outage,
        workers::registry::Presence as Link,
    },
    error::Error,
    store::{Cluster, Notice, ReadError, Scope, WriteError},
    task::{Millis, Task, a2a_view::cancelled},
};

/// Tasks taken over in one step, so that peers can take their share meanwhile.
const TAKEN_AT_ONCE: usize = 256;
/// Tasks claimed for one agent in one step.
const CLAIMED_AT_ONCE: usize = 64;
/// Number of looks between two comparisons of everything with the store, independent of
/// notifications.
const LOOKS_TO_COMPARE: u32 = 4;

impl Core {
    /// Runs the lease loop and the notification loop. Does nothing on a store that is not shared.
    pub(crate) async fn run_cluster(self: Arc<Self>) {
        let Some(cluster) = self.store.cluster() else { return };
        // Concurrent: handling notifications must not delay the lease.
        tokio::join!(self.keep_lease(cluster), self.handle_notifications(cluster));
    }

    async fn keep_lease(self: &Arc<Self>, cluster: &dyn Cluster) {
        let mut beats = interval(self.beat_interval());
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut good_until = Instant::now() + self.lease();
        let mut clock = store_outage::clock();
        loop {
            beats.tick().await;
            match self.await_store(&mut clock, self.beat(cluster), &mut []).await {
                Ok(began) => good_until = began + self.lease(),
                Err(error) => {
                    let renewed = good_until - self.lease();
                    if renewed.elapsed() >= limits::STORE_RESPONSE_TIMEOUT {
                        self.answer_without_store(&mut []);
                    }
                    self.beat_failed(&error, good_until);
                }
            }
        }
    }

    /// Handles notifications, and looks at the store periodically.
    async fn handle_notifications(self: &Arc<Self>, cluster: &dyn Cluster) {
        let mut notices = cluster.notices();
        let mut looks = interval(self.beat_interval());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0u32;
        loop {
            tokio::select! {
                _ = looks.tick() => {
                    count = count.wrapping_add(1);
                    self.look(cluster, count.is_multiple_of(LOOKS_TO_COMPARE)).await;
                }
                notice = next_notice(&mut notices) => self.on_notification(cluster, notice).await,
                () = self.remote_dirty.notified() => {}
            }
            self.refresh_remote_watches().await;
            self.claim_work(cluster).await;
            self.cancel_unwatched_remote_tasks();
        }
    }

    /// Looks at the store without a notification.
    pub(crate) async fn look(self: &Arc<Self>, cluster: &dyn Cluster, everything: bool) {
        if self.lock().closed.is_some() {
            return;
        }
        if let Err(error) = self.take_over(cluster).await {
            tracing::debug!(%error, "take-over of tasks failed");
        }
        if everything {
            self.compare(cluster).await;
            self.touch(State::spread_workers);
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.config.lease_ms)
    }

    fn beat_interval(&self) -> Duration {
        (self.lease() / 6).min(Duration::from_secs(1))
    }

    /// Renews the lease and reads the peers. The lease counts from the start of the request.
    async fn beat(self: &Arc<Self>, cluster: &dyn Cluster) -> Result<Instant, ReadError> {
        let began = Instant::now();
        if self.lock().closed == Some(Closed::StoreFailed) {
            return Ok(began);
        }
        let presences = cluster.beat(self.presence()).await?;
        self.change(|state| {
            state.is_away = false;
            // A leaving coordinator only reports that it leaves.
            if state.closed.is_none() {
                state.apply_peer_load(PeerLoad::new(presences), now());
            }
        });
        Ok(began)
    }

    /// The renewal failed: peers may take over once the lease has expired.
    fn beat_failed(self: &Arc<Self>, error: &ReadError, good_until: Instant) {
        let lapsed = matches!(error, ReadError::Lapsed);
        if !lapsed && Instant::now() < good_until {
            tracing::warn!(%error, "lease was not renewed");
            return;
        }
        // In one change: the commit loop accepts calls again when it has handled the lapse.
        self.change(|state| {
            if state.closed.is_some() {
                return;
            }
            tracing::error!(%error, "lease has lapsed: state is discarded and read again");
            self.meters.lapsed.add(1);
            self.lapsed.store(true, Ordering::Relaxed);
            // A batch may be under way without an answer. Workers must not wait for it: peers
            // continue their tasks, unless the workers bring the tasks along.
            state.close(Closed::StoreFailed);
            state.cut_workers();
        });
    }

    /// For the commit loop, which recovers between two batches: the state may be discarded then.
    pub(crate) fn take_lapse(&self) -> Option<WriteError> {
        let lapsed = self.lapsed.swap(false, Ordering::Relaxed);
        lapsed.then(|| WriteError::Unavailable("the lease has lapsed".to_owned()))
    }

    async fn take_over(self: &Arc<Self>, cluster: &dyn Cluster) -> Result<(), ReadError> {
        loop {
            let tasks = cluster.take_over(TAKEN_AT_ONCE).await?;
            let all = tasks.len() < TAKEN_AT_ONCE;
            if !tasks.is_empty() {
                tracing::info!(
                    tasks = tasks.len(),
                    "tasks taken over from a coordinator with an expired lease"
                );
            }
            self.activate_tasks(tasks, Acquired::TakenOver);
            if all {
                break;
            }
        }
        let pushes = cluster.take_over_pushes().await?;
        self.change(|state| self.deliver_unfinished(state, pushes));
        Ok(())
    }

    /// Activates tasks that this coordinator has just acquired.
    pub(crate) fn activate_tasks(&self, tasks: Vec<Task>, how: Acquired) {
        if tasks.is_empty() {
            return;
        }
        self.meters.taken(how, tasks.len());
        self.change(|state| {
            // The recovery reads these tasks from the store.
            if state.closed.is_some() {
                return;
            }
            let now = now();
            let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
            for task in tasks {
                state.drop_stale_copy(&task);
                if let Some(active) = state.tasks.get_mut(&task.id) {
                    active.owned_since = Instant::now();
                }
                if !matches!(how, Acquired::Adopted) && !state.tasks.contains(&task.id) {
                    // A worker that is attached here learns of the task when it reattaches.
                    let worker = task.worker.parse::<WorkerId>();
                    worker.into_iter().for_each(|worker| state.registry.detach(worker));
                }
                state.load(task, now);
            }
            ids.iter().for_each(|id| state.join_task_tree(*id, now));
            state.serve_queues(now);
            ids.into_iter().for_each(|id| state.announce_if_queued(id));
        });
    }

    /// Takes ownership of every task that this worker runs.
    pub(crate) async fn adopt(&self, worker: WorkerId) -> Result<(), Error> {
        let Some(cluster) = self.store.cluster() else { return Ok(()) };
        self.lock().check_open()?;
        let tasks = cluster.adopt(worker).await?;
        self.activate_tasks(tasks, Acquired::Adopted);
        Ok(())
    }

    /// Claims tasks that are queued at peers for workers here with free slots.
    async fn claim_work(self: &Arc<Self>, cluster: &dyn Cluster) {
        let wanted = self.lock().room_for_others();
        for (agent, room) in wanted {
            let limit = room.min(CLAIMED_AT_ONCE);
            match cluster.claim(agent.clone(), limit).await {
                Ok(tasks) => {
                    let all = tasks.len() < limit;
                    if all {
                        self.lock().registry.peer_load.clear_backlog(&agent);
                    }
                    self.activate_tasks(tasks, Acquired::Claimed);
                }
                Err(error) => tracing::debug!(%error, agent, "claim of queued tasks failed"),
            }
        }
    }

    /// Cancels tasks of peers whose last watcher here has left, as their callers requested.
    fn cancel_unwatched_remote_tasks(self: &Arc<Self>) {
        let remote_to_cancel = std::mem::take(&mut self.lock().remote_to_cancel);
        for id in remote_to_cancel {
            let core = Arc::clone(self);
            tokio::spawn(async move {
                let text = "cancelled because its caller went away";
                let failure: Failure = cancelled("disconnect", text, None);
                if let Ok(Some(stored)) = core.store.task(id, Scope::default()).await {
                    // A task that has ended meanwhile needs no cancel.
                    let _ = core.stop(stored.task, failure, "disconnect").await;
                }
            });
        }
    }

    /// The heartbeat of this coordinator for its peers.
    fn presence(&self) -> Presence {
        let agents = self.agents_here(&AgentsRequest::default());
        let state = self.lock();
        let agents = agents.into_iter().map(|mut agent| {
            agent.card = None;
            // Agents without an offer are unknown here.
            let demand = state.registry.demand_here(&agent.name);
            Load { agent: Some(agent), demand }
        });
        let agents = agents.collect();
        let leaving = self.farewell.is_cancelled();
        drop(state);
        Presence { workers: self.workers_here(), agents, leaving }
    }
}

async fn next_notice(notices: &mut mpsc::Receiver<Notice>) -> Notice {
    match notices.recv().await {
        Some(notice) => notice,
        // The heartbeats find every change.
        None => std::future::pending().await,
    }
}

impl State {
    fn apply_peer_load(&mut self, elsewhere: PeerLoad, now: Millis) {
        let was_alone = self.registry.peer_load.is_empty();
        self.registry.peer_load.followed_by(elsewhere);
        if was_alone && !self.registry.peer_load.is_empty() {
            self.announce_queued();
        }
        // Tasks that only memory assigns to a worker are not at that worker if it is attached
        // elsewhere.
        let gone = self.registry.workers.iter().filter(|(id, worker)| {
            matches!(worker.link, Link::Gone { .. }) && self.registry.peer_load.has(id)
        });
        let gone: Vec<_> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            let Some(worker) = self.registry.workers.remove(&id) else { continue };
            for (task, _) in worker.running() {
                self.release_attempt(task, id, now);
            }
        }
    }

    /// Announces the queued tasks to peers that have just appeared.
    fn announce_queued(&mut self) {
        let agents = self.registry.agents.iter();
        let queued: Vec<_> = agents
            .flat_map(|(name, agent)| agent.queue.iter().map(|(id, _)| (id, name.clone())))
            .collect();
        queued.into_iter().for_each(|(id, agent)| self.announce(id, &agent));
    }

    /// Drops the older in-memory copy of a task that was lost and acquired again.
    fn drop_stale_copy(&mut self, task: &Task) {
        let known = self.tasks.get(&task.id);
        if known
            .is_some_and(|active| active.is_confirmed() && active.pending().version < task.version)
        {
            self.release_ownership(task.id);
        }
    }

    /// Announces a task that is queued here without a worker.
    pub(crate) fn announce_if_queued(&mut self, id: TaskId) {
        let active = self.tasks.get(&id).filter(|active| active.queued.is_some());
        let agent = active.map(|active| self.target(active.pending()));
        agent.into_iter().for_each(|agent| self.announce(id, &agent));
    }

    /// Agents with queued tasks at peers and free slots here, and the number of tasks that fit.
    fn room_for_others(&mut self) -> Vec<(String, usize)> {
        self.has_spare_capacity = false;
        if self.closed.is_some() || self.registry.peer_load.is_empty() {
            return Vec::new();
        }
        let names: Vec<_> = self.registry.agents.keys().cloned().collect();
        let wanted = names.into_iter().filter(|name| self.registry.peer_load.has_backlog(name));
        let wanted: Vec<_> = wanted.collect();
        let room = wanted.into_iter().map(|name| {
            let room = self.registry.room_for(&name);
            (name, room)
        });
        room.filter(|(_, room)| *room > 0).collect()
    }
}
