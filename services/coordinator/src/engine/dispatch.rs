//! Dispatch of tasks to workers: admission, placement, assignment, answers and ends. All of it runs
//! under the state lock and must not block; messages to workers are effects that follow the commit.

use crate::engine::active_task::transition::Transition;
use std::time::Duration;

use bytes::Bytes;
use faultline_chassis::TraceContext;
use faultline_proto::{
    a2a::Message,
    id::{TaskId, WorkerId},
    v1::{
        Answer, AnswerGiven, Answered, Assign, Cancel, Checkpointed, Parent, Submitted, ToWorker,
        event, to_worker,
    },
};
use tokio::time::Instant;

use crate::{
    calls::{attempt_token::Tokens, idempotency::KeyClaim},
    clock::now,
    engine::{
        active_task::ActiveTask, core::State, effect::Effect, failover::worker_to_avoid,
        workers::registry::Agent,
    },
    error::Error,
    policy::circuit_breaker::{Circuit, HealthSignal},
    store::{Extras, PushKey, Write},
    task::{Millis, Task, is_waiting},
};

/// A new task before its first event. Made by the api for one call; consumed by `submit`.
pub(crate) struct NewTask {
    pub(crate) id: TaskId,
    pub(crate) principal: String,
    pub(crate) agent: String,
    pub(crate) context_id: String,
    pub(crate) message: Message,
    /// The trace context of the call.
    pub(crate) trace: TraceContext,
    /// The parent, for a delegated task.
    pub(crate) parent: Option<Parent>,
    /// Limit of active time; `None`: no limit.
    pub(crate) limit: Option<Duration>,
    /// The agent may answer with a bare message, so the reply waits for its first report.
    pub(crate) may_message: bool,
    /// The checkpoint of another task that this task continues.
    pub(crate) checkpoint: Option<Bytes>,
}

/// The decision about a send, before it changes anything.
pub(crate) struct Decided {
    pub(crate) step: Step,
    /// Rows that are stored in the same transaction.
    pub(crate) with: Option<Box<Extras>>,
    /// Released when the write is durable.
    pub(crate) claim: Option<KeyClaim>,
}

impl Decided {
    /// The webhooks to notify when the write is durable.
    pub(crate) fn push_keys(&self) -> Vec<PushKey> {
        let pushes = self.with.iter().flat_map(|with| &with.pushes);
        pushes.map(|row| row.key.clone()).collect()
    }
}

pub(crate) enum Step {
    Start(Box<NewTask>),
    /// The answer to an open question of a task.
    Answer(TaskId, Box<event::Body>),
}

impl Step {
    pub(crate) fn task_id(&self) -> TaskId {
        match self {
            Step::Start(new) => new.id,
            Step::Answer(id, _) => *id,
        }
    }

    /// Whether the reply may be a bare message.
    pub(crate) fn may_message(&self) -> bool {
        matches!(self, Step::Start(new) if new.may_message)
    }
}

impl State {
    /// Carries out a decided send under the same lock. `then` adds to the same transition.
    pub(crate) fn take(
        &mut self,
        decided: Decided,
        now: Millis,
        then: impl FnOnce(&mut Transition<'_>),
    ) {
        let Decided { step, with, claim } = decided;
        let then = |transition: &mut Transition<'_>| {
            let release = claim.map(|claim| Effect::Run(Box::new(move || drop(claim))));
            transition.effects.extend(release);
            then(transition);
        };
        match step {
            Step::Start(new) => self.submit(*new, with, now, then),
            Step::Answer(id, body) => self.answer(id, *body, with, now, then),
        }
    }

    /// Admission of a task for an agent: its circuit breaker and the bound of its queue.
    pub(crate) fn admit(&self, agent: &str) -> Result<&Agent, Error> {
        let Some(found) = self.registry.agents.get(agent) else {
            return Err(Error::AgentNotFound(agent.to_owned()));
        };
        let (policy, now, agent) = (&found.policy, Instant::now(), agent.to_owned());
        let lets_through = found.breaker.lets_through(None, &policy.breaker, now);
        if !lets_through && self.registry.stand_in(&agent, |_| false).is_none() {
            let left = match found.breaker.circuit(now) {
                Circuit::Open(left) => left,
                // The duration of the half-open probe is unknown.
                Circuit::HalfOpen | Circuit::Closed => Duration::from_secs(1),
            };
            return Err(Error::CircuitOpen { agent, left });
        }
        match found.queue.len() {
            waiting if waiting >= policy.queue_max => Err(Error::QueueFull { agent, waiting }),
            _ => Ok(found),
        }
    }

    /// Creates an admitted task and assigns it if a slot is free: one commit for both.
    pub(crate) fn submit(
        &mut self,
        new: NewTask,
        with: Option<Box<Extras>>,
        now: Millis,
        then: impl FnOnce(&mut Transition<'_>),
    ) {
        let NewTask { id, agent, context_id, may_message, .. } = new;
        let submitted = Submitted {
            message: Some(new.message),
            traceparent: new.trace.to_string(),
            tracestate: new.trace.state().to_owned(),
            principal: new.principal,
            parent: new.parent,
            timeout_ms: new.limit.map_or(0, |limit| limit.as_millis() as u64),
            idempotent: false,
        };
        let (mut task, first) = Task::submit(id, &agent, context_id, submitted, now);
        let taken_over = new
            .checkpoint
            .map(|state| task.apply_now(event::Body::Checkpointed(Checkpointed { state }), now));
        let is_bound = taken_over.is_some();
        let key = with.as_ref().filter(|_| may_message).and_then(|with| with.key.clone());
        let mut active = ActiveTask::unconfirmed(task, self.meters_of(&agent));
        active.may_reply_without_task = may_message;
        active.key = key.map(Box::new);
        self.tasks.insert(id, active);
        self.join_task_tree(id, now);
        let target = self.tasks.get(&id).map_or(agent, |active| self.target(active.pending()));
        // Queued tasks come first (fairness).
        let queues = self.registry.agents.get(&target).is_some_and(|a| !a.queue.is_empty());
        let worker = if queues { None } else { self.registry.choose(&target, Some(id), None) };
        if worker.is_none() {
            self.enqueue(id, &target);
        }
        let events = [first].into_iter().chain(taken_over).collect();
        self.insert_step(id, events, with, now, |transition| {
            then(transition);
            if let Some(worker) = worker {
                transition.assign(worker, &target);
            }
        });
        if is_bound {
            self.queue.bind_last();
        }
        if worker.is_none() {
            self.announce(id, &target);
        }
        if queues {
            self.serve_queue(&target, now);
        }
    }

    /// Offers a queued task to the workers of other coordinators, if there are any.
    pub(crate) fn announce(&mut self, id: TaskId, agent: &str) {
        if self.is_shared && !self.registry.peer_load.is_empty() {
            self.commit_write(Write::Queue { id, agent: agent.to_owned() }, Vec::new());
        }
    }

    pub(crate) fn enqueue(&mut self, id: TaskId, agent: &str) {
        let (active, now) = (self.tasks.get_mut(&id), Instant::now());
        let principal = active.map_or("", |active| {
            active.queued.get_or_insert(now);
            active.pending().principal.as_str()
        });
        if let Some(agent) = self.registry.agents.get_mut(agent) {
            agent.queue.push_back(id, principal, now);
        }
    }

    /// Fills the free slots of a worker: tasks that resume first, then queued tasks.
    pub(crate) fn fill(&mut self, worker_id: WorkerId, now: Millis) {
        loop {
            let Some(worker) = self.registry.workers.get_mut(&worker_id) else { return };
            if let Some(id) = worker.next_to_resume() {
                if worker.go_on(id) {
                    self.send_go_on(id, worker_id)
                } else {
                    self.send_answers(id, worker_id)
                }
                continue;
            }
            let Some((id, agent)) = self.registry.next_for(worker_id) else {
                self.has_spare_capacity |= self.is_shared && self.registry.could_help(worker_id);
                return;
            };
            self.assign(id, worker_id, &agent, now);
        }
    }

    pub(crate) fn assign(&mut self, id: TaskId, worker: WorkerId, agent: &str, now: Millis) {
        self.transition(id, None, now, |transition| transition.assign(worker, agent));
    }

    /// Assigns a task that needs a worker. Without a free slot it is queued, ahead of other tasks
    /// of its principal.
    pub(crate) fn place(&mut self, id: TaskId, now: Millis) {
        let Some(active) = self.tasks.get(&id) else { return };
        let (agent, avoid) = (self.target(active.pending()), worker_to_avoid(active.pending()));
        match self.registry.choose(&agent, Some(id), avoid) {
            Some(worker) => self.assign(id, worker, &agent, now),
            None => {
                let Some(active) = self.tasks.get_mut(&id) else { return };
                active.queued.get_or_insert_with(Instant::now);
                if let Some(agent) = self.registry.agents.get_mut(&agent) {
                    agent.queue.push_front(id, &active.pending().principal, Instant::now());
                    // If this task was the half-open probe, the next task becomes the probe.
                    let rules = &agent.policy.breaker;
                    agent.breaker.record(id, HealthSignal::Nothing, rules, Instant::now());
                }
                self.announce(id, &agent);
            }
        }
    }

    /// Sends the answers that the worker of a task has not received, after the queued writes are
    /// durable.
    pub(crate) fn send_answers(&mut self, id: TaskId, worker: WorkerId) {
        let Some(active) = self.tasks.get_mut(&id) else { return };
        let new = active.pending().answers.iter().skip(active.answers_sent);
        let new: Vec<_> = new.map(|given| answer_message(active.pending(), given)).collect();
        active.answers_sent = active.pending().answers.len();
        for answer in new {
            let body = Some(to_worker::Body::Answer(answer));
            self.after_writes_of(id, Effect::Tell(worker, Box::new(ToWorker { body })));
        }
    }

    /// Applies an answer to an open question. The task continues on its worker, or is placed again
    /// if that worker is gone.
    pub(crate) fn answer(
        &mut self,
        id: TaskId,
        body: event::Body,
        with: Option<Box<Extras>>,
        now: Millis,
        then: impl FnOnce(&mut Transition<'_>),
    ) {
        let answered = self.transition(id, with, now, |transition| {
            if let event::Body::Answered(answer) = &body {
                transition.active.meters.answered(transition.task(), answer, now);
            }
            transition.apply(body);
            transition.show_open_question();
            then(transition);
            (is_waiting(transition.task().state), transition.task().agent.clone())
        });
        let Some((asks, agent)) = answered else { return };
        if !asks {
            self.count_waiting(&agent, -1);
        }
        self.answered(id, asks, &agent, now);
    }

    /// Continues an answered task on its worker, or places it. Other questions may still be open.
    pub(crate) fn answered(&mut self, id: TaskId, asks: bool, agent: &str, now: Millis) {
        let worker =
            self.tasks.get(&id).and_then(|active| active.pending().worker.parse::<WorkerId>().ok());
        match worker {
            Some(worker_id) => {
                match self.registry.workers.get_mut(&worker_id) {
                    Some(worker) if !asks && worker.waits_for_slot(id) => worker.resume(id),
                    // The attempt computes beside its question, or waits for a child and needs no
                    // slot yet.
                    _ => self.send_answers(id, worker_id),
                }
                self.fill(worker_id, now);
            }
            None => {
                // An earlier answer may have queued the task.
                self.leave_queues(id, agent);
                self.place(id, now);
            }
        }
    }

    /// Removes a task from the queue of its agent or of the stand-in.
    pub(crate) fn leave_queues(&mut self, id: TaskId, agent: &str) {
        let Some(own) = self.registry.agents.get_mut(agent) else { return };
        own.queue.remove(id);
        for name in own.policy.failover.clone() {
            if let Some(other) = self.registry.agents.get_mut(&name) {
                other.queue.remove(id);
            }
        }
    }

    pub(crate) fn count_waiting(&mut self, agent: &str, by: i32) {
        if let Some(agent) = self.registry.agents.get_mut(agent) {
            agent.waiting = agent.waiting.saturating_add_signed(by);
        }
    }

    /// Ends a task from outside (cancelled or failed), and the children that it delegated.
    pub(crate) fn end(&mut self, id: TaskId, body: event::Body, initiator: &str, now: Millis) {
        self.end_alone(id, body, initiator, now);
        self.end_children(id, now);
        self.note_end(id, now);
    }

    pub(crate) fn end_alone(
        &mut self,
        id: TaskId,
        body: event::Body,
        initiator: &str,
        now: Millis,
    ) {
        self.note_undelivered_cancel(id);
        let ended = self.transition(id, None, now, |transition| {
            let task = transition.task();
            let agent = task.agent.clone();
            let waited = is_waiting(task.state);
            let attempt = task.attempt;
            let worker = task.worker.parse::<WorkerId>().ok();
            if let Some(worker) = worker {
                // The slot stays taken until the worker reports that the agent has stopped.
                let task_id = id.to_string();
                let cancel = Cancel { task_id, attempt, initiator: initiator.to_owned() };
                let body = Some(to_worker::Body::Cancel(cancel));
                transition.effects.push(Effect::Tell(worker, Box::new(ToWorker { body })));
                if let Some(worker) = transition.registry.workers.get_mut(&worker) {
                    worker.stop_resuming(id);
                }
            }
            transition.apply(body);
            (agent, waited, worker.map(|worker| (worker, attempt)))
        });
        let Some((agent, waited, stopping)) = ended else { return };
        if let Some((worker, attempt)) = stopping {
            self.expect_stop(worker, id, attempt);
        }
        if waited {
            self.count_waiting(&agent, -1);
        }
        self.leave_queues(id, &agent);
    }
}

impl Transition<'_> {
    /// Assigns the task to a worker, if the task may be assigned now.
    fn assign(&mut self, worker_id: WorkerId, agent: &str) {
        let name = self.registry.workers.get(&worker_id).map_or("", |w| w.name.as_str());
        let Ok(body) = self.task().decide_assign(&worker_id.to_string(), name, agent) else {
            return;
        };
        self.apply(body);
        self.show_open_question();
        self.active.acked = 0;
        self.active.answers_sent = self.active.pending().answers.len();
        self.active.assigned = false;
        let queued = self.active.queued.take();
        let assign = assign_message(self.active, self.tokens);
        self.effects.push(Effect::Assign(worker_id, Box::new(assign)));
        if let Some(worker) = self.registry.workers.get_mut(&worker_id) {
            worker.start(self.id, agent, self.active.pending().attempt, true);
        }
        if let Some(agent) = self.registry.agents.get_mut(agent) {
            agent.breaker.started(self.id, Instant::now());
            agent.meters.assigned(queued);
        }
    }
}

pub(crate) fn assign_message(active: &ActiveTask, tokens: &Tokens) -> Assign {
    let task = active.pending();
    let trace = task.attempt_trace();
    Assign {
        token: tokens.of(task),
        task_id: task.id.to_string(),
        context_id: task.context_id.clone(),
        agent: task.runner().to_owned(),
        attempt: task.attempt,
        message: task.message().cloned(),
        checkpoint: task.checkpoint.clone(),
        answers: task
            .answers
            .iter()
            .map(|a| Answered { key: a.key.clone(), message: a.message.clone(), action: a.action })
            .collect(),
        traceparent: trace.to_string(),
        tracestate: trace.state().to_owned(),
        remaining_ms: task.remaining_ms(now()),
    }
}

fn answer_message(task: &Task, given: &AnswerGiven) -> Answer {
    // While another question is open the next run has not begun.
    let trace = (!is_waiting(task.state)).then(|| task.attempt_trace());
    Answer {
        traceparent: trace.as_ref().map(TraceContext::to_string).unwrap_or_default(),
        tracestate: trace.as_ref().map_or("", TraceContext::state).to_owned(),
        task_id: task.id.to_string(),
        attempt: task.attempt,
        key: given.key.clone(),
        message: given.message.clone(),
        action: given.action,
        remaining_ms: task.remaining_ms(now()),
    }
}
