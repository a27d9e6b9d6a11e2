//! The hub service for workers: one bidirectional stream each. It authenticates the worker,
//! reads its messages and tracks its presence; `engine::report_ingest` interprets the reports.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use faultline_chassis::{credential::Identity, limits, server::ReservedBytes};
use faultline_proto::{
    Failure,
    id::{TaskId, WorkerId, check_agent_name},
    reason,
    status::undecodable,
    v1::{
        Ack, AgentOffer, Drain, FromWorker, Heartbeat, Held, Hello, ToWorker, Welcome, from_worker,
        hub_server::Hub, to_worker,
    },
};
use futures::{Stream, StreamExt, stream};
use prost::Message;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    calls::roles,
    clock::now,
    engine::{
        core::{Core, State},
        dispatch::assign_message,
        effect::Effect,
        workers::registry::{Presence, Worker},
    },
    error::refuse,
    store::Write,
    task::{Millis, is_waiting},
};

pub(crate) struct HubService {
    pub(crate) core: Arc<Core>,
}

type ToWorkerStream = Pin<Box<dyn Stream<Item = Result<ToWorker, Status>> + Send>>;

#[tonic::async_trait]
impl Hub for HubService {
    type AttachStream = ToWorkerStream;

    async fn attach(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<ToWorkerStream>, Status> {
        let identity = roles::identity(request.extensions())?;
        // Until it is attached.
        let _waiting = ReservedBytes::new(limits::WAITING_REQUEST_BYTES)?;
        let mut incoming = request.into_inner();
        let hello = match first_message(&mut incoming).await?.and_then(|m| m.body) {
            Some(from_worker::Body::Hello(hello)) => hello,
            _ => return Err(refuse("hello", "the first message of a worker is its hello").into()),
        };
        let id = check(&hello)?;
        roles::check_offers(&identity, &hello)?;
        let (outbox, messages) = mpsc::channel(limits::OUTBOX_MAX);
        let name = hello.name.clone();
        let core = Arc::clone(&self.core);
        // Before anything of the worker is stored.
        core.lock().check_hello(id, &hello, &identity)?;
        core.introduce(id, &identity).await?;
        core.adopt(id).await.map_err(Failure::from)?;
        let session = core.change(|state| {
            state.check_hello(id, &hello, &identity)?;
            let session = state.attach(id, hello, outbox, core.welcome(), now());
            state.bind(id, identity.binding());
            Ok::<_, Failure>(session)
        })?;
        tracing::info!(worker = %id, name, credential = identity.name(), "a worker attached");
        let (refuse, refused) = oneshot::channel();
        tokio::spawn(async move {
            let (why, refusal) = listen(&core, id, session, &mut incoming).await;
            tracing::info!(worker = %id, name, why, "a worker's stream ended");
            if let Some(failure) = refusal {
                let _ = refuse.send(failure);
            }
            core.change(|state| state.detach(id, session));
        });
        let answers = ReceiverStream::new(messages).map(Ok);
        Ok(Response::new(Box::pin(answers.chain(refusal(refused)))))
    }
}

/// The last item of a stream to a peer that sent something that is not protobuf.
pub(crate) fn refusal<T>(
    refused: oneshot::Receiver<Failure>,
) -> impl Stream<Item = Result<T, Status>> {
    let refused = stream::once(refused).filter_map(async |refused| refused.ok());
    refused.map(|failure| Err(failure.into()))
}

async fn first_message(
    incoming: &mut Streaming<FromWorker>,
) -> Result<Option<FromWorker>, Failure> {
    let first = timeout(limits::BODY_READ_TIMEOUT, incoming.message()).await;
    let late = "no hello came in time: it is the first message of a worker";
    let first = first.map_err(|_| Failure::new(&reason::DEADLINE_EXCEEDED).because(late))?;
    first.map_err(|status| undecodable(&status).unwrap_or_else(|| Failure::from(status)))
}

/// The refusal of a message of a peer, where the stream ended because of one: it is not protobuf,
/// it is too large, or the budget had no room for it. `None`: the connection broke.
pub(crate) fn refused_message(status: Status) -> Option<Failure> {
    let is_refusal = status.code() == Code::OutOfRange || !status.details().is_empty();
    undecodable(&status).or_else(|| is_refusal.then(|| Failure::from(status)))
}

/// Reads until the stream breaks or falls silent. Returns why, and what the worker is told if one
/// of its messages was refused.
async fn listen(
    core: &Core,
    id: WorkerId,
    session: u64,
    incoming: &mut Streaming<FromWorker>,
) -> (&'static str, Option<Failure>) {
    let patience = Duration::from_millis(core.config.heartbeat_ms.saturating_mul(3));
    loop {
        core.room().await;
        let message = match timeout(patience, incoming.message()).await {
            Err(_) => return ("silence", None),
            Ok(Err(status)) => match refused_message(status) {
                None => return ("broken", None),
                refusal => return ("refused", refusal),
            },
            Ok(Ok(None)) => return ("closed", None),
            Ok(Ok(Some(message))) => message,
        };
        let mut reports = match message.body {
            Some(from_worker::Body::Reports(reports)) => reports.reports.into_iter(),
            other => {
                let is_current = core.change(|state| state.hear(id, session, other));
                if !is_current {
                    return ("replaced", None);
                }
                continue;
            }
        };
        // The lock is held for a bounded number of them at a time.
        while reports.len() > 0 {
            let some = reports.by_ref().take(limits::REPORTS_PER_MESSAGE_MAX).collect();
            let is_current = core.change(|state| {
                let is_current = state.is_session(id, session);
                if is_current {
                    state.reports(id, some, now());
                }
                is_current
            });
            if !is_current {
                return ("replaced", None);
            }
            core.room().await;
        }
    }
}

fn check(hello: &Hello) -> Result<WorkerId, Failure> {
    let id = hello.worker_id.parse::<WorkerId>();
    let id = id.map_err(|_| refuse("hello.workerId", "a UUID in lower case"))?;
    if hello.slots == 0 {
        return Err(refuse("hello.slots", "at least 1"));
    }
    if hello.agents.is_empty() {
        return Err(refuse("hello.agents", "offer at least one agent"));
    }
    if hello.agents.len() > limits::WORKER_AGENTS_MAX {
        let (count, most) = (hello.agents.len(), limits::WORKER_AGENTS_MAX);
        let what = format!("{count} agents, at most {most}: offer the others by another worker");
        return Err(refuse("hello.agents", what));
    }
    if hello.name.len() > limits::WORKER_NAME_BYTES_MAX {
        let (bytes, most) = (hello.name.len(), limits::WORKER_NAME_BYTES_MAX);
        let what = format!("{bytes} bytes, at most {most}: choose a shorter name");
        return Err(refuse("hello.name", what));
    }
    if hello.held.len() > limits::HELD_MAX {
        let (count, most) = (hello.held.len(), limits::HELD_MAX);
        let what = format!("{count} attempts, at most {most}: a worker is given no more than that");
        return Err(refuse("hello.held", what));
    }
    let mut names = HashSet::with_capacity(hello.agents.len());
    for offer in &hello.agents {
        if !names.insert(&offer.name) {
            let what = format!("agent '{}' is offered twice: offer each agent once", offer.name);
            return Err(refuse("hello.agents.name", what));
        }
        let named = check_agent_name(&offer.name);
        named.map_err(|bad| refuse("hello.agents.name", bad.to_string()))?;
        let cards = [("card", &offer.card), ("extendedCard", &offer.extended_card)];
        for (card, bytes) in
            cards.map(|(name, card)| (name, card.as_ref().map(Message::encoded_len)))
        {
            if let Some(bytes) = bytes.filter(|bytes| *bytes > limits::CARD_BYTES_MAX) {
                let (agent, most) = (&offer.name, limits::CARD_BYTES_MAX);
                let what = format!(
                    "the card of agent '{agent}' has {bytes} bytes, at most {most}: shorten its \
                     descriptions and examples"
                );
                return Err(refuse(&format!("hello.agents.{card}"), what));
            }
        }
    }
    Ok(id)
}

impl Core {
    pub(crate) fn welcome(&self) -> Welcome {
        Welcome {
            heartbeat_ms: u32::try_from(self.config.heartbeat_ms).unwrap_or(u32::MAX),
            grace_ms: u32::try_from(self.config.reattach_grace_ms).unwrap_or(u32::MAX),
            resume: Vec::new(),
            forget: Vec::new(),
        }
    }
}

impl State {
    /// Whether a worker may attach with this hello.
    fn check_hello(&self, id: WorkerId, hello: &Hello, identity: &Identity) -> Result<(), Failure> {
        self.check_open()?;
        self.check_bound(id, identity)?;
        Ok(self.check_agents(&hello.agents)?)
    }

    /// Handles a message that is not a report. False: the stream is not the worker's any more.
    fn hear(&mut self, id: WorkerId, session: u64, message: Option<from_worker::Body>) -> bool {
        if !self.is_session(id, session) {
            return false;
        }
        match message {
            Some(from_worker::Body::Heartbeat(_)) => self.answer_heartbeat(id),
            Some(from_worker::Body::Drain(_)) => self.drain(id),
            Some(from_worker::Body::Slot(slot)) => self.slot(id, &slot, now()),
            Some(from_worker::Body::Hello(_) | from_worker::Body::Reports(_)) | None => {}
        }
        true
    }

    /// A worker says hello, for the first time or again.
    pub(crate) fn attach(
        &mut self,
        id: WorkerId,
        hello: Hello,
        outbox: mpsc::Sender<ToWorker>,
        welcome: Welcome,
        now: Millis,
    ) -> u64 {
        let session = self.session();
        self.registry.detach(id);
        self.take_offers(&hello.agents, now);
        let worker = self.registry.workers.entry(id).or_insert_with(|| Worker::from_store(now));
        worker.name = hello.name;
        worker.slots = hello.slots;
        worker.draining = false;
        worker.evicted = false;
        worker.agents = hello.agents.iter().map(|a| a.name.clone()).collect();
        worker.link = Presence::Attached { session, outbox };
        for offer in &hello.agents {
            if let Some(agent) = self.registry.agents.get_mut(&offer.name) {
                if agent.workers.is_empty() {
                    agent.breaker.see_now(Instant::now());
                }
                agent.workers.push_back(id);
            }
        }
        for task in self.compare_held(id, &hello.held, welcome) {
            self.release_attempt(task, id, now);
        }
        self.fill(id, now);
        session
    }

    fn take_offers(&mut self, offers: &[AgentOffer], now: Millis) {
        for offer in offers {
            let is_new = self.registry.offer(offer.clone(), now);
            if let Some(agent) = self.registry.agents.get_mut(&offer.name) {
                agent.offered = now;
            }
            if is_new {
                let write = Write::Offer { offer: Box::new(offer.clone()), at: now };
                self.commit_write(write, Vec::new());
            }
        }
    }

    /// Compares what the worker holds with what we think it holds. What both hold goes on; what
    /// only it holds it must forget; what only we think it holds never reached it and is sent
    /// again, or is returned when it did reach it once.
    fn compare_held(&mut self, id: WorkerId, held: &[Held], mut welcome: Welcome) -> Vec<TaskId> {
        let name = id.to_string();
        let (mut again, mut forgotten, mut told_again) = (Vec::new(), Vec::new(), Vec::new());
        let mut waiting = HashMap::with_capacity(held.len());
        for held in held {
            let task = held.task_id.parse::<TaskId>().ok();
            if let Some(task) = task {
                waiting.entry((task, held.attempt)).or_insert(held.waits);
            }
            let active = task.and_then(|t| self.tasks.get(&t));
            let active = active
                .filter(|l| l.pending().worker == name && l.pending().attempt == held.attempt);
            match active {
                Some(active) => {
                    let (task_id, attempt) = (held.task_id.clone(), held.attempt);
                    welcome.resume.push(Ack { task_id, attempt, number: active.acked });
                }
                None => welcome.forget.push(held.clone()),
            }
        }
        let believed = self.registry.workers.get(&id).into_iter().flat_map(Worker::running);
        let believed: Vec<_> = believed.map(|(task, running)| (task, running.attempt)).collect();
        for (task, attempt) in believed {
            let waits = waiting.get(&(task, attempt)).copied();
            let held = waits.is_some();
            let waits = waits.unwrap_or(false);
            match self.tasks.get_mut(&task) {
                Some(active)
                    if active.pending().worker == name && active.pending().attempt == attempt =>
                {
                    let computing = !is_waiting(active.pending().state);
                    match active.pending().reported {
                        _ if held || !active.assigned => {}
                        0 => {
                            active.answers_sent = active.pending().answers.len();
                            again
                                .push(to_worker::Body::Assign(assign_message(active, &self.tokens)))
                        }
                        _ => forgotten.push(task),
                    }
                    // Answers may be on their way to it, or lost with the stream: they are given
                    // again, when there is a slot, if it needs one, and once they are durable.
                    let told =
                        held && active.pending().answers.len() > active.pending().answers_known;
                    let answered = told && computing;
                    if told {
                        active.answers_sent = active.pending().answers_known;
                    }
                    if let Some(worker) = self.registry.workers.get_mut(&id) {
                        worker.start(
                            task,
                            active.pending().runner(),
                            attempt,
                            computing && !answered,
                        );
                        if waits {
                            worker.release(task);
                        } else if answered {
                            worker.resume(task);
                        }
                    }
                    if told && (waits || !computing) {
                        told_again.push(task);
                    }
                }
                // It ended meanwhile; the worker was told, or is told now, to forget it.
                _ => {
                    if let Some(worker) = self.registry.workers.get_mut(&id) {
                        worker.finish(task);
                    }
                }
            }
        }
        let messages = std::iter::once(to_worker::Body::Welcome(welcome)).chain(again);
        for body in messages {
            self.tell(id, ToWorker { body: Some(body) });
        }
        for task in told_again {
            self.send_answers(task, id);
        }
        forgotten
    }

    fn is_session(&self, id: WorkerId, session: u64) -> bool {
        self.registry.workers.get(&id).is_some_and(|worker| match &worker.link {
            Presence::Attached { session: current, .. } => *current == session,
            Presence::Gone { .. } => false,
        })
    }

    fn detach(&mut self, id: WorkerId, session: u64) {
        if self.is_session(id, session) {
            self.registry.detach(id);
            let idle = self.registry.workers.get(&id).is_some_and(|w| w.running().next().is_none());
            if idle {
                self.registry.workers.remove(&id);
            }
        }
    }

    /// We leave: every worker should look for our successor and keep its work.
    pub(crate) fn announce_leaving(&mut self) {
        let ids: Vec<_> = self.registry.workers.keys().copied().collect();
        for id in ids {
            self.tell(id, ToWorker { body: Some(to_worker::Body::Drain(Drain {})) });
        }
    }

    /// Ends every stream; running attempts go on.
    pub(crate) fn cut_workers(&mut self) {
        let ids: Vec<_> = self.registry.workers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.registry.detach(id));
    }

    /// A worker that is about to leave goes when it is answered, so what it was given before must
    /// have been sent by then, which it is once it is durable.
    fn answer_heartbeat(&mut self, id: WorkerId) {
        let body = Some(to_worker::Body::Heartbeat(Heartbeat {}));
        match self.registry.workers.get(&id).is_some_and(|worker| worker.draining) {
            true => self.after_commit(Effect::Tell(id, Box::new(ToWorker { body }))),
            false => self.tell(id, ToWorker { body }),
        }
    }

    fn drain(&mut self, id: WorkerId) {
        if let Some(worker) = self.registry.workers.get_mut(&id) {
            worker.draining = true;
        }
    }
}

#[cfg(test)]
mod tests;
