//! From a task to a worker and back: submitting, assigning, taking reports, losing workers. All of
//! it under the lock, all of it quick; what must be durable first is queued as an effect.

use faultline_chassis::{TraceContext, limits, telemetry::HOP};
use faultline_proto::{
    Failure,
    a2a::Message,
    id::{TaskId, WorkerId},
    reason,
    v1::{
        self, Ack, AgentOffer, Answer, Answered, Assign, Cancel, Event, Report, ToWorker,
        agent_offer::OnWorkerLost, event, report, to_worker,
    },
};
use tracing::{Span, info_span};

use crate::{
    Config,
    core::{Effect, State},
    error::Error,
    live::Live,
    registry::{Presence, Worker},
    store::Write,
    task::{Millis, Refused, Task, Verdict, is_waiting},
};

/// A new task on its way in.
pub(crate) struct NewTask {
    pub(crate) agent: String,
    pub(crate) context_id: String,
    pub(crate) message: Message,
    pub(crate) traceparent: String,
}

impl State {
    /// Takes a task in, with a worker at once if one is free: one commit for both. The effects
    /// follow that commit.
    pub(crate) fn submit(
        &mut self,
        new: NewTask,
        now: Millis,
        then: impl FnOnce(&mut Live, &mut Vec<Effect>),
    ) -> Result<TaskId, Error> {
        self.check_open()?;
        let Some(agent) = self.registry.agents.get(&new.agent) else {
            return Err(Error::AgentNotFound(new.agent));
        };
        if agent.queue.len() >= limits::AGENT_QUEUE_MAX {
            return Err(Error::QueueFull { agent: new.agent, waiting: agent.queue.len() });
        }
        let id = TaskId::new();
        let NewTask { agent, context_id, message, traceparent } = new;
        let (task, first) = Task::submit(id, &agent, context_id, message, traceparent, now);
        let mut live = Live::new(task);
        live.published = 0;
        let mut effects = Vec::new();
        then(&mut live, &mut effects);
        let mut events = vec![first];
        self.live.insert(id, live);
        match self.registry.choose(&agent) {
            Some(worker) => events.extend(self.hand_over(id, worker, now, &mut effects)),
            None => self.enqueue(id, &agent, now),
        }
        self.commit(id, 0, events, effects);
        Ok(id)
    }

    fn enqueue(&mut self, id: TaskId, agent: &str, now: Millis) {
        if let Some(agent) = self.registry.agents.get_mut(agent) {
            agent.queue.push_back((id, now));
        }
    }

    /// The event and effect of giving a task to a worker; `None`: the task is not to be given.
    fn hand_over(
        &mut self,
        id: TaskId,
        worker_id: WorkerId,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) -> Option<Event> {
        let live = self.live.get_mut(&id)?;
        let body = live.task.decide_assign(&worker_id.to_string()).ok()?;
        let event = live.task.apply_now(body, now);
        live.acked = 0;
        live.assigned = false;
        live.span = attempt_span(&live.task);
        effects.push(Effect::Assign(worker_id, Box::new(assign_message(live))));
        if let Some(worker) = self.registry.workers.get_mut(&worker_id) {
            worker.start(id, live.task.attempt, true);
        }
        Some(event)
    }

    /// Gives a worker as much as it has slots for: what goes on first, then what is new.
    pub(crate) fn fill(&mut self, worker_id: WorkerId, now: Millis) {
        loop {
            let Some(worker) = self.registry.workers.get_mut(&worker_id) else { return };
            if worker.is_attached() && worker.used() < worker.slots
                && let Some(id) = worker.resuming.pop_front()
            {
                worker.go_on(id);
                self.send_answer(id, worker_id);
                continue;
            }
            let Some(id) = self.registry.next_for(worker_id) else { return };
            self.assign(id, worker_id, now);
        }
    }

    fn assign(&mut self, id: TaskId, worker_id: WorkerId, now: Millis) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let from = live.task.version;
        live.task.version += 1;
        let mut effects = Vec::new();
        match self.hand_over(id, worker_id, now, &mut effects) {
            Some(event) => self.commit(id, from, vec![event], effects),
            None => {
                if let Some(live) = self.live.get_mut(&id) {
                    live.task.version = from;
                }
            }
        }
    }

    /// Finds a place for a task that needs one, or queues it, at the front if it had one before.
    fn place(&mut self, id: TaskId, now: Millis) {
        let Some(agent) = self.live.get(&id).map(|l| l.task.agent.clone()) else { return };
        match self.registry.choose(&agent) {
            Some(worker) => self.assign(id, worker, now),
            None => {
                if let Some(agent) = self.registry.agents.get_mut(&agent) {
                    agent.queue.push_front((id, now));
                }
            }
        }
    }

    /// Tells the worker of an answered task the answer, after whatever is queued is durable.
    fn send_answer(&mut self, id: TaskId, worker: WorkerId) {
        let Some(answer) = self.live.get(&id).and_then(last_answer) else { return };
        let body = Some(to_worker::Body::Answer(answer));
        self.after_commit(Effect::Tell(worker, ToWorker { body }));
    }

    /// Somebody answered. The task goes on where it waits, or somewhere else if that is gone.
    pub(crate) fn answer(
        &mut self,
        id: TaskId,
        message: Message,
        now: Millis,
        effects: Vec<Effect>,
    ) -> Result<(), Error> {
        self.check_open()?;
        let Some(live) = self.live.get_mut(&id) else {
            return Err(Error::TaskNotFound(id.to_string()));
        };
        let body = live.task.decide_answer(message).map_err(|refused| match refused {
            Refused::Final => Error::Ended { id, state: live.task.state },
            _ => Error::Busy(id),
        })?;
        let from = live.task.version;
        live.task.version += 1;
        let event = live.task.apply_now(body, now);
        let (agent, worker) = (live.task.agent.clone(), live.task.worker.parse::<WorkerId>().ok());
        self.commit(id, from, vec![event], effects);
        self.count_waiting(&agent, -1);
        match worker {
            Some(worker_id) => {
                if let Some(worker) = self.registry.workers.get_mut(&worker_id) {
                    worker.resuming.push_back(id);
                }
                self.fill(worker_id, now);
            }
            None => self.place(id, now),
        }
        Ok(())
    }

    fn count_waiting(&mut self, agent: &str, by: i32) {
        if let Some(agent) = self.registry.agents.get_mut(agent) {
            agent.waiting = agent.waiting.saturating_add_signed(by);
        }
    }

    /// Ends a task from outside: cancelled or failed.
    pub(crate) fn end(
        &mut self,
        id: TaskId,
        body: event::Body,
        initiator: &str,
        now: Millis,
        mut effects: Vec<Effect>,
    ) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let (agent, waited) = (live.task.agent.clone(), is_waiting(live.task.state));
        if let Ok(worker) = live.task.worker.parse::<WorkerId>() {
            // The slot stays taken until the worker says that the agent has stopped.
            let (task_id, attempt) = (id.to_string(), live.task.attempt);
            let cancel = Cancel { task_id, attempt, initiator: initiator.to_owned() };
            let body = Some(to_worker::Body::Cancel(cancel));
            effects.push(Effect::Tell(worker, ToWorker { body }));
        }
        let from = live.task.version;
        live.task.version += 1;
        let event = live.task.apply_now(body, now);
        close_span(live);
        self.commit(id, from, vec![event], effects);
        if waited {
            self.count_waiting(&agent, -1);
        }
        if let Some(agent) = self.registry.agents.get_mut(&agent) {
            agent.queue.retain(|(queued, _)| *queued != id);
        }
    }

    /// Takes what a worker reports. Reports of one task that follow each other are one step.
    pub(crate) fn reports(&mut self, worker: WorkerId, reports: Vec<Report>, now: Millis) {
        let mut rest = reports.into_iter().peekable();
        while let Some(first) = rest.next() {
            let Ok(id) = first.task_id.parse::<TaskId>() else { continue };
            let mut run = vec![first];
            while let Some(next) = rest.next_if(|r| r.task_id == run[0].task_id) {
                run.push(next);
            }
            self.report_run(worker, id, run, now);
        }
        self.fill(worker, now);
    }

    fn report_run(&mut self, worker: WorkerId, id: TaskId, run: Vec<Report>, now: Millis) {
        let name = worker.to_string();
        let agents = &self.registry.agents;
        let Some(live) = self.live.get_mut(&id).filter(|l| l.task.worker == name) else {
            run.iter().for_each(|report| self.late(worker, id, Brief::of(report)));
            return;
        };
        let (from, was_waiting) = (live.task.version, is_waiting(live.task.state));
        let reported_before = live.task.reported;
        let may_message =
            agents.get(&live.task.agent).is_some_and(|a| a.offer.may_answer_with_message);
        let mut events = Vec::new();
        let mut late = Vec::new();
        let mut vanished = None;
        let mut highest = 0;
        for mut report in run {
            let (number, attempt) = (report.number, report.attempt);
            if !may_message {
                report.body = report.body.map(message_to_completed);
            }
            let brief = Brief::of(&report);
            match live.task.decide_report(report) {
                Ok(Verdict::Events(bodies)) => {
                    live.task.reported = number;
                    highest = number;
                    for body in bodies {
                        events.push(live.task.apply_now(body, now));
                    }
                }
                Ok(Verdict::BareMessage(message)) => {
                    vanished = Some(message);
                    highest = number;
                    break;
                }
                Ok(Verdict::TooLarge) => {
                    live.task.reported = number;
                    highest = number;
                    let failure = Failure::new(&reason::TASK_TOO_LARGE);
                    fail_now(live, failure, now, &mut events);
                }
                Err(Refused::Duplicate) => highest = highest.max(number),
                Err(Refused::Nonsense(what)) => {
                    tracing::warn!(task = %id, attempt, number, what, "a report makes no sense");
                    let failure = Failure::new(&reason::INVALID_AGENT_RESPONSE).because(what);
                    fail_now(live, failure, now, &mut events);
                    late.push(brief);
                }
                Err(Refused::Fenced | Refused::Final | Refused::Busy) => late.push(brief),
            }
        }
        let attempt = live.task.attempt;
        let ack = Ack { task_id: id.to_string(), attempt, number: highest };
        let mut effects = Vec::new();
        if highest > 0 {
            effects.push(Effect::Ack(worker, ack));
        }
        if let Some(message) = vanished {
            effects.push(Effect::Vanish(id, message));
            self.commit_write(Write::Erase { id, from }, effects);
            self.finish_on(worker, id);
        } else {
            let before = Before { version: from, was_waiting, reported: reported_before };
            self.settle_run(worker, id, before, events, effects, now);
        }
        late.into_iter().for_each(|brief| self.late(worker, id, brief));
    }

    /// Queues the step that a run of reports made, and moves slots and queues accordingly.
    fn settle_run(
        &mut self,
        worker: WorkerId,
        id: TaskId,
        before: Before,
        events: Vec<Event>,
        mut effects: Vec<Effect>,
        now: Millis,
    ) {
        let Some(live) = self.live.get_mut(&id) else { return };
        if live.task.reported == before.reported && events.is_empty() {
            effects.into_iter().for_each(|effect| self.after_commit(effect));
            return;
        }
        live.task.version += 1;
        let (over, homeless) = (live.task.is_final(), live.task.worker.is_empty());
        let (waiting, agent) = (is_waiting(live.task.state), live.task.agent.clone());
        if over {
            close_span(live);
        }
        if before.reported == 0 && !over {
            effects.push(Effect::FirstReport(id));
        }
        self.commit(id, before.version, events, effects);
        if over || homeless {
            self.finish_on(worker, id);
        } else if waiting
            && !before.was_waiting
            && let Some(worker) = self.registry.workers.get_mut(&worker)
        {
            worker.pause(id);
        }
        self.count_waiting(&agent, i32::from(waiting) - i32::from(before.was_waiting));
        if homeless && !over && !waiting {
            self.place(id, now);
        }
    }

    fn finish_on(&mut self, worker: WorkerId, id: TaskId) {
        if let Some(worker) = self.registry.workers.get_mut(&worker) {
            worker.finish(id);
        }
    }

    /// A report of a task or attempt that is over. It is acknowledged, so that the worker forgets
    /// it, and counted, so that somebody can find out.
    fn late(&mut self, worker: WorkerId, id: TaskId, report: Brief) {
        let ack = Ack { task_id: id.to_string(), attempt: report.attempt, number: report.number };
        let runs = self.registry.workers.get(&worker).is_some_and(|w| w.runs(id, report.attempt));
        if report.is_last && runs {
            self.finish_on(worker, id);
        }
        match report.is_obedient {
            true => self.after_commit(Effect::Ack(worker, ack)),
            false => {
                tracing::info!(task = %id, attempt = ack.attempt, "a late report was dropped");
                self.commit_write(Write::CountLate { id }, vec![Effect::Ack(worker, ack)]);
            }
        }
    }

    /// A worker did not come back in time: its tasks are tried elsewhere or fail.
    pub(crate) fn lose(&mut self, worker_id: WorkerId, config: &Config, now: Millis) {
        let Some(worker) = self.registry.workers.remove(&worker_id) else { return };
        for (id, _) in worker.running() {
            self.lose_attempt(id, worker_id, config, now);
        }
    }

    fn lose_attempt(&mut self, id: TaskId, worker_id: WorkerId, config: &Config, now: Millis) {
        let name = worker_id.to_string();
        let Some(live) = self.live.get_mut(&id).filter(|l| l.task.worker == name) else { return };
        let offer = self.registry.agents.get(&live.task.agent).map(|a| &a.offer);
        let losses_max = losses_max(config, &live.task.agent, offer);
        let waited = is_waiting(live.task.state);
        let Ok(bodies) = live.task.decide_lose(losses_max, |task| worker_lost(task, losses_max))
        else {
            return;
        };
        let from = live.task.version;
        live.task.version += 1;
        let events = bodies.into_iter().map(|body| live.task.apply_now(body, now)).collect();
        close_span(live);
        let over = live.task.is_final();
        let (attempt, losses) = (live.task.attempt, live.task.losses);
        tracing::warn!(task = %id, attempt, losses, over, "a worker was lost with this task");
        self.commit(id, from, events, Vec::new());
        if !over && !waited {
            self.place(id, now);
        }
    }

    /// The worker lives but does not know the attempt any more. That is nobody's death.
    pub(crate) fn take_back(&mut self, id: TaskId, worker: WorkerId, now: Millis) {
        self.finish_on(worker, id);
        let Some(live) = self.live.get_mut(&id) else { return };
        let from = live.task.version;
        live.task.version += 1;
        let bodies = live.task.decide_release();
        let events = bodies.into_iter().map(|body| live.task.apply_now(body, now)).collect();
        close_span(live);
        let waiting = is_waiting(live.task.state);
        self.commit(id, from, events, Vec::new());
        if !waiting {
            self.place(id, now);
        }
    }

    /// A task read from the store: it waits for its worker, for a slot or for an answer.
    pub(crate) fn remember(&mut self, task: Task, now: Millis) {
        let (id, agent) = (task.id, task.agent.clone());
        let (waiting, attempt) = (is_waiting(task.state), task.attempt);
        let worker = task.worker.parse::<WorkerId>().ok();
        self.live.insert(id, Live::new(task));
        if waiting {
            self.count_waiting(&agent, 1);
        }
        match worker {
            Some(worker) => {
                let worker =
                    self.registry.workers.entry(worker).or_insert_with(|| Worker::remembered(now));
                worker.start(id, attempt, !waiting);
            }
            None if !waiting => self.enqueue(id, &agent, now),
            None => {}
        }
    }

    /// Streams that broke longer ago than the grace period.
    pub(crate) fn overdue(&self, before: Millis) -> Vec<WorkerId> {
        let gone = self.registry.workers.iter().filter(|(_, worker)| match worker.link {
            Presence::Gone { since } => since <= before,
            Presence::Attached { .. } => false,
        });
        gone.map(|(id, _)| *id).collect()
    }

    /// Fails what has waited since before `before` for an agent that nobody offers any more.
    pub(crate) fn give_up_waiting(&mut self, before: Millis, now: Millis) {
        let mut stale = Vec::new();
        for agent in self.registry.agents.values().filter(|a| a.workers.is_empty()) {
            stale.extend(agent.queue.iter().filter(|(_, since)| *since <= before).map(|q| q.0));
        }
        for id in stale {
            let Some(live) = self.live.get(&id) else { continue };
            let failure = Failure::new(&reason::AGENT_UNAVAILABLE)
                .because(format!("no worker offers agent '{}'", live.task.agent))
                .with_plane(v1::Plane::Execution);
            let failure = live.task.complete_failure(failure, "coordinator");
            if let Ok(body) = live.task.decide_fail(failure) {
                self.end(id, body, "operator", now, Vec::new());
            }
        }
    }
}

/// A task as it was before a run of reports.
struct Before {
    version: u64,
    was_waiting: bool,
    reported: u32,
}

/// Only an agent that said so may answer with a bare message: for others a task was promised.
fn message_to_completed(body: report::Body) -> report::Body {
    match body {
        report::Body::Message(message) => {
            report::Body::Completed(v1::Completed { message: Some(message) })
        }
        other => other,
    }
}

/// What must be known of a report that is not taken.
struct Brief {
    attempt: u32,
    number: u32,
    /// Nothing of the attempt follows.
    is_last: bool,
    /// The worker did what it was told, so there is nothing to count.
    is_obedient: bool,
}

impl Brief {
    fn of(report: &Report) -> Self {
        use report::Body;
        let is_obedient = matches!(report.body, Some(Body::Stopped(_) | Body::Released(_)));
        let is_result = matches!(
            report.body,
            Some(Body::Completed(_) | Body::Failed(_) | Body::Rejected(_) | Body::Message(_))
        );
        let is_last = is_obedient || is_result;
        Self { attempt: report.attempt, number: report.number, is_last, is_obedient }
    }
}

fn fail_now(live: &mut Live, failure: Failure, now: Millis, events: &mut Vec<Event>) {
    let failure = failure.with_plane(v1::Plane::Execution);
    let failure = live.task.complete_failure(failure, "coordinator");
    if let Ok(body) = live.task.decide_fail(failure) {
        events.push(live.task.apply_now(body, now));
    }
}

/// How many losses end a task of this agent: the operator's word, the agent's, the default.
fn losses_max(config: &Config, agent: &str, offer: Option<&AgentOffer>) -> u32 {
    let policy = config.agents.get(agent);
    let fail = match policy.and_then(|p| p.on_worker_lost) {
        Some(word) => word == crate::OnWorkerLost::Fail,
        None => offer.is_some_and(|o| o.on_worker_lost() == OnWorkerLost::Fail),
    };
    let offered = offer.map(|o| o.max_attempts).filter(|n| *n > 0);
    let own = policy.and_then(|p| p.max_attempts).or(offered);
    if fail { 1 } else { own.unwrap_or(config.max_attempts).max(1) }
}

fn worker_lost(task: &Task, losses_max: u32) -> Failure {
    let text = match losses_max {
        1 => "the worker was lost, and tasks of this agent are not tried again".to_owned(),
        n => format!("the worker was lost in each of {n} attempts"),
    };
    let failure = Failure::new(&reason::WORKER_LOST)
        .because(text)
        .with_plane(v1::Plane::Execution)
        .with_retries_spent(task.losses);
    task.complete_failure(failure, "coordinator")
}

fn attempt_span(task: &Task) -> Span {
    info_span!(
        target: HOP,
        "attempt",
        otel.name = format!("attempt {}", task.agent),
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
        error.r#type = tracing::field::Empty,
        a2a.task.id = %task.id,
        faultline.attempt = task.attempt,
    )
}

/// The attempt is over; what the span says is what the task says.
fn close_span(live: &mut Live) {
    if let Some(failure) = live.task.failure.as_ref().filter(|_| !live.span.is_disabled()) {
        live.span.record("otel.status_code", "ERROR");
        live.span.record("otel.status_description", failure.public_message.as_str());
        live.span.record("error.type", failure.reason.as_str());
    }
    live.span = Span::none();
}

pub(crate) fn assign_message(live: &Live) -> Assign {
    let task = &live.task;
    let trace = TraceContext::from_header(Some(&task.traceparent)).enter(&live.span);
    Assign {
        task_id: task.id.to_string(),
        context_id: task.context_id.clone(),
        agent: task.agent.clone(),
        attempt: task.attempt,
        message: task.message().cloned(),
        checkpoint: task.checkpoint.clone(),
        answers: task
            .answers
            .iter()
            .map(|a| Answered { key: a.key.clone(), message: a.message.clone() })
            .collect(),
        traceparent: trace.to_string(),
        deadline: None,
    }
}

/// The answer that the current attempt waits for, or waited for last.
pub(crate) fn last_answer(live: &Live) -> Option<Answer> {
    let given = live.task.answers.last()?;
    Some(Answer {
        task_id: live.task.id.to_string(),
        attempt: live.task.attempt,
        key: given.key.clone(),
        message: given.message.clone(),
    })
}

