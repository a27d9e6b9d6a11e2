//! Table of the attempts that the worker holds, and of the agents that it offers. It dispatches the
//! messages of the coordinator to the attempts and outlives every connection.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use faultline_chassis::{Metrics, telemetry};
use faultline_proto::{
    id::WorkerId,
    reason,
    v1::{self, to_worker::Body},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Agent, Context, Error,
    attempt::{
        coordinator_channel::CoordinatorChannel,
        metrics::{AgentMetrics, WorkerMetrics},
        outbox::Outbox,
        state::{Attempt, DropReason, Key},
    },
    runtime::run,
    sdk::agent::{Offer, OfferedAgent},
};

/// One per worker, for its whole life. The connection changes it ([`on_welcome`](Self::on_welcome),
/// [`on_message`](Self::on_message)), the service drains it.
pub(crate) struct AttemptTable {
    id: WorkerId,
    name: String,
    slots: u32,
    offers: Vec<v1::AgentOffer>,
    offered: HashMap<String, (Arc<OfferedAgent>, Arc<AgentMetrics>)>,
    pub(crate) outbox: Arc<Outbox>,
    /// For the delegations of agents.
    pub(crate) channel: Arc<CoordinatorChannel>,
    state: Mutex<State>,
    changed: Notify,
    metrics: Arc<WorkerMetrics>,
    /// Copy of `state.attached` that is read without the lock.
    attached: Arc<AtomicBool>,
}

/// The mutable part of the [`AttemptTable`], under its lock. An attempt leaves `held` once its
/// final report is acknowledged or the coordinator does not resume it.
#[derive(Default)]
struct State {
    held: HashMap<Key, Arc<Attempt>>,
    /// A connection is open and the coordinator has accepted the worker.
    attached: bool,
    /// The drain is over: new assignments are handed back at once.
    closed: bool,
    /// Number of answered heartbeats.
    heartbeats_answered: u64,
}

impl AttemptTable {
    pub(crate) fn new(
        name: String,
        slots: u32,
        offers: Vec<Offer>,
        channel: CoordinatorChannel,
        metrics: &Metrics,
    ) -> Self {
        let attached = Arc::default();
        let metrics = WorkerMetrics::new(metrics, &attached, slots);
        let split = offers.into_iter().map(|offer| offer.split(&name));
        let (offers, offered): (Vec<_>, Vec<_>) = split.unzip();
        Self {
            id: WorkerId::new(),
            slots,
            offers,
            offered: offered
                .into_iter()
                .map(|h| (h.names.agent.clone(), with_metrics(&metrics, h)))
                .collect(),
            name,
            outbox: Arc::default(),
            channel: Arc::new(channel),
            state: Mutex::default(),
            changed: Notify::new(),
            metrics,
            attached,
        }
    }

    /// Whether a coordinator has accepted the worker; readable at any time.
    pub(crate) fn attached(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.attached)
    }

    pub(crate) fn hello(&self) -> v1::Hello {
        let state = self.state.lock();
        let held = state.held.values().map(|attempt| attempt.held_entry()).collect();
        v1::Hello {
            worker_id: self.id.to_string(),
            name: self.name.clone(),
            agents: self.offers.clone(),
            slots: self.slots,
            held,
        }
    }

    /// Resumes the attempts that the coordinator names and drops all others: their reports would
    /// never be acknowledged.
    pub(crate) fn on_welcome(&self, epoch: u64, welcome: &v1::Welcome) {
        let resumed = welcome.resume.iter();
        let resumed = resumed.filter_map(|a| Some((Key::read(&a.task_id, a.attempt)?, a.number)));
        let resumed: HashMap<Key, u32> = resumed.collect();
        let mut state = self.state.lock();
        state.attached = true;
        self.attached.store(true, Ordering::Relaxed);
        state.held.retain(|key, attempt| match resumed.get(key) {
            Some(acked) => !attempt.resume(epoch, *acked),
            None => {
                tracing::info!(
                    task.id = %key.task_id, key.attempt,
                    "coordinator does not resume the attempt: dropped"
                );
                attempt.drop_agent(DropReason::Forgotten);
                false
            }
        });
        drop(state);
        self.changed.notify_waiters();
    }

    /// Called when the connection has ended.
    pub(crate) fn on_disconnect(&self) {
        self.outbox.close();
        self.attached.store(false, Ordering::Relaxed);
        self.state.lock().attached = false;
        self.changed.notify_waiters();
    }

    /// Dispatches a message that follows the welcome.
    pub(crate) fn on_message(&self, message: v1::ToWorker) {
        match message.body {
            Some(Body::Assign(assign)) => self.assign(assign),
            Some(Body::Acks(acks)) => self.acks(&acks),
            Some(Body::Cancel(cancel)) => {
                if let Some(attempt) = self.find(&cancel.task_id, cancel.attempt) {
                    tracing::debug!(
                        task.id = %cancel.task_id,
                        initiator = %cancel.initiator,
                        "attempt cancelled"
                    );
                    attempt.cancel();
                }
            }
            Some(Body::Answer(answer)) => {
                if let Some(attempt) = self.find(&answer.task_id, answer.attempt) {
                    attempt.on_answer(answer);
                }
            }
            Some(Body::Heartbeat(_)) => {
                self.state.lock().heartbeats_answered += 1;
                self.changed.notify_waiters();
            }
            Some(Body::GoOn(go_on)) => {
                if let Some(attempt) = self.find(&go_on.task_id, go_on.attempt) {
                    attempt.slot_granted();
                }
            }
            // The connection handles a drain. A second welcome, or a message of a newer
            // coordinator, is ignored.
            Some(Body::Drain(_) | Body::Welcome(_)) | None => {}
        }
    }

    fn assign(&self, assign: v1::Assign) {
        let Some(key) = Key::read(&assign.task_id, assign.attempt) else {
            tracing::error!(
                task.id = %assign.task_id,
                "assignment with a malformed task id: ignored"
            );
            return;
        };
        let offered = self.offered.get(&assign.agent).cloned();
        let (offered, metrics) = offered
            .unwrap_or_else(|| with_metrics(&self.metrics, unknown(&assign.agent, &self.name)));
        let outbox = Arc::clone(&self.outbox);
        let channel = Arc::clone(&self.channel);
        let names = Arc::clone(&offered.names);
        let attempt = Attempt::new(key, assign, names, outbox, channel, metrics);
        let attempt = Arc::new(attempt);
        {
            let mut state = self.state.lock();
            if state.held.contains_key(&key) {
                return;
            }
            if state.closed {
                attempt.drop_agent(DropReason::Released);
            }
            state.held.insert(key, Arc::clone(&attempt));
        }
        attempt.begin_span();
        let work: Arc<dyn telemetry::LogContext> = Arc::clone(&attempt) as _;
        tokio::spawn(telemetry::with_log_context(work, run::run(attempt, offered)));
    }

    fn acks(&self, acks: &v1::Acks) {
        let mut state = self.state.lock();
        for ack in &acks.acks {
            let key = Key::read(&ack.task_id, ack.attempt);
            let over = key.filter(|k| state.held.get(k).is_some_and(|a| a.ack(ack.number)));
            if let Some(key) = over {
                state.held.remove(&key);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn find(&self, task_id: &str, attempt: u32) -> Option<Arc<Attempt>> {
        let key = Key::read(task_id, attempt)?;
        self.state.lock().held.get(&key).map(Arc::clone)
    }

    // Drain.

    /// Flush barrier: waits until the coordinator has read every earlier message, or the connection
    /// is gone. The coordinator answers heartbeats in order; the first answer may belong to an
    /// earlier heartbeat, the second cannot.
    pub(crate) async fn flush_barrier(&self) {
        for _ in 0..2 {
            let heartbeats_answered = self.state.lock().heartbeats_answered;
            self.outbox.heartbeat();
            self.until(|state| state.heartbeats_answered > heartbeats_answered || !state.attached)
                .await;
        }
    }

    /// Waits until no attempt is held.
    pub(crate) async fn idle(&self) {
        self.until(|state| state.held.is_empty()).await;
    }

    /// Hands back every attempt with an open question: the answer may come to another worker.
    pub(crate) fn release_waiting_for_people(&self) {
        for attempt in self.state.lock().held.values().filter(|a| a.has_open_question()) {
            attempt.drop_agent(DropReason::Released);
        }
    }

    /// Drops every running agent and hands its task back.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for attempt in state.held.values() {
            attempt.drop_agent(DropReason::Released);
        }
    }

    async fn until(&self, mut ready: impl FnMut(&State) -> bool) {
        loop {
            // Registered before the check, so that no change between check and wait is lost.
            let changed = self.changed.notified();
            if ready(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }
}

fn with_metrics(
    metrics: &Arc<WorkerMetrics>,
    offered: OfferedAgent,
) -> (Arc<OfferedAgent>, Arc<AgentMetrics>) {
    let metrics = AgentMetrics::new(metrics, &offered.names.agent);
    (Arc::new(offered), Arc::new(metrics))
}

/// An agent that fails each task: the coordinator assigned a name that was never offered.
fn unknown(name: &str, worker: &str) -> OfferedAgent {
    struct Unknown;

    impl Agent for Unknown {
        async fn run(&self, _: &Context) -> Result<(), Error> {
            Err(Error::new(&reason::AGENT_NOT_FOUND).because("this worker has no such agent"))
        }
    }

    Offer::new(name, Unknown).split(worker).1
}
