//! What workers say, and what becomes of it: reports of one task that arrive together are one
//! step, and what comes too late is acknowledged, counted and dropped.

use faultline_proto::{
    Failure,
    a2a::{Message, TaskState, part::Content},
    id::{TaskId, WorkerId},
    reason,
    v1::{self, Ack, Cancel, Event, Report, ToWorker, report, to_worker},
};
use prost::Message as _;

use crate::{
    engine::{
        active_task::{ActiveTask, message_response, task_response},
        core::State,
        effect::Effect,
    },
    policy::circuit_breaker::HealthSignal,
    store::{KeyRow, Write},
    task::{Millis, Refused, is_waiting, report::ReportOutcome},
};

impl State {
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
        self.serve_bounded(worker, now);
    }

    fn report_run(&mut self, worker: WorkerId, id: TaskId, run: Vec<Report>, now: Millis) {
        let name = worker.to_string();
        let Some(live) = self.live.get_mut(&id).filter(|l| l.task.worker == name) else {
            run.iter().for_each(|report| self.late(worker, id, Brief::of(report)));
            return;
        };
        let (from, was_waiting) = (live.task.version, is_waiting(live.task.state));
        let reported_before = live.task.reported;
        // Only while somebody waits who was told of no task.
        let may_message = live.may_reply_without_task && !live.waiters.is_empty();
        let mut events = Vec::new();
        let mut late = Vec::new();
        let mut vanished = None;
        let mut highest = 0;
        let (mut agent_ended, mut asked) = (false, false);
        for mut report in run {
            let (number, attempt) = (report.number, report.attempt);
            if !may_message {
                report.body = report.body.map(message_to_completed);
            }
            let brief = Brief::of(&report);
            match live.task.decide_report(report) {
                Ok(ReportOutcome::Events(bodies)) => {
                    live.task.reported = number;
                    highest = number;
                    agent_ended |= brief.is_last;
                    asked |= brief.asks;
                    for body in bodies {
                        events.push(live.task.apply_now(body, now));
                    }
                }
                Ok(ReportOutcome::BareMessage(message)) => {
                    vanished = Some(message);
                    highest = number;
                    break;
                }
                Ok(ReportOutcome::Rejected(message)) => {
                    live.task.reported = number;
                    highest = number;
                    agent_ended = true;
                    let failure = rejected(live, &message);
                    let body = live.task.reject(*message, failure);
                    events.push(live.task.apply_now(body, now));
                }
                Ok(ReportOutcome::Failed(failure)) => {
                    live.task.reported = number;
                    highest = number;
                    agent_ended = true;
                    for body in self.registry.after_failure(&live.task, *failure, now) {
                        events.push(live.task.apply_now(body, now));
                    }
                }
                Ok(ReportOutcome::TooLarge) => {
                    live.task.reported = number;
                    highest = number;
                    let failure = Failure::new(&reason::TASK_TOO_LARGE);
                    fail_now(live, failure, now, &mut events);
                }
                Err(Refused::Duplicate) => highest = highest.max(number),
                Err(Refused::Nonsense(what)) => {
                    let trace = live.task.run_trace().trace_id();
                    tracing::warn!(
                        task.id = %id, trace.id = trace, attempt, number, what,
                        "a report makes no sense"
                    );
                    let failure = Failure::new(&reason::INVALID_AGENT_RESPONSE).because(what);
                    fail_now(live, failure, now, &mut events);
                    late.push(brief);
                }
                Err(Refused::Fenced | Refused::Final | Refused::Busy) => late.push(brief),
            }
        }
        events.extend(live.task.shown_again().map(|body| live.task.apply_now(body, now)));
        let attempt = live.task.attempt;
        let ack = Ack { task_id: id.to_string(), attempt, number: highest };
        let mut effects = Vec::new();
        if highest > 0 {
            effects.push(Effect::Ack(worker, ack));
        }
        if let Some(message) = vanished {
            effects.push(Effect::Note(id));
            let key = self.vanish(id, &message, &mut effects, now);
            self.commit_write(Write::Erase { id, from, key }, effects);
            self.end_children(id, now);
            self.finish_on(worker, id);
        } else {
            let reported = reported_before;
            let before = StateBefore { version: from, was_waiting, reported, agent_ended, asked };
            if live.task.is_final() && !agent_ended {
                let cancel = ToWorker { body: Some(to_worker::Body::Cancel(fenced(live))) };
                effects.push(Effect::Tell(worker, Box::new(cancel)));
                self.expect_stop(worker, id, attempt);
            }
            self.settle_run(worker, id, before, events, effects, now);
        }
        late.into_iter().for_each(|brief| self.late(worker, id, brief));
    }

    /// The answer is a message: the task leaves memory now and the store with this step. Its key
    /// stays, with the message.
    fn vanish(
        &mut self,
        id: TaskId,
        message: &Message,
        effects: &mut Vec<Effect>,
        now: Millis,
    ) -> Option<Box<KeyRow>> {
        let mut live = self.live.remove(&id)?;
        let version = self.registry.version(&live.task.agent);
        effects.extend(live.open.vanish(&live.task, version).map(Effect::from));
        self.drop_calls(&live);
        self.forget_time(id);
        self.note(live.task.runner(), id, HealthSignal::Serves, now);
        live.meters.ended(TaskState::Completed, live.task.created, now);
        let mut key = live.key.take();
        if let Some(key) = &mut key {
            key.reply = Some(message.encode_to_vec().into());
        }
        for waiter in live.waiters {
            let answer = Box::new(message_response(message.clone()));
            effects.push(Effect::Reply(Box::new(waiter), answer));
        }
        key
    }

    /// Queues the step that a run of reports made, and moves slots and queues accordingly.
    fn settle_run(
        &mut self,
        worker: WorkerId,
        id: TaskId,
        before: StateBefore,
        events: Vec<Event>,
        mut effects: Vec<Effect>,
        now: Millis,
    ) {
        let Some(live) = self.live.get_mut(&id) else { return };
        if live.task.reported == before.reported && events.is_empty() {
            effects.into_iter().for_each(|effect| self.after_writes_of(id, effect));
            return;
        }
        live.task.version += 1;
        let (over, unassigned) = (live.task.is_final(), live.task.worker.is_empty());
        let needs_worker = live.task.needs_worker();
        let (waiting, agent) = (is_waiting(live.task.state), live.task.agent.clone());
        let runner = live.task.runner().to_owned();
        live.may_reply_without_task = false;
        live.key = None;
        // As it is in this very step, which is durable when they hear of it.
        let first = if over { Vec::new() } else { live.take_first_waiters() };
        for waiter in first {
            waiter.call.map(|call| self.calls.remove(&call));
            let task = task_response(live.task.to_a2a(waiter.history, true));
            effects.push(Effect::Reply(Box::new(waiter), Box::new(task)));
        }
        self.commit(id, before.version, events, effects);
        if over {
            self.end_children(id, now);
            self.note_end(id, now);
        } else if waiting && !before.was_waiting {
            // Whoever asks is there.
            self.note(&runner, id, HealthSignal::Serves, now);
        }
        if before.agent_ended {
            // The slot of an agent that was ended by us stays taken until it has stopped.
            self.finish_on(worker, id);
        } else if waiting
            && before.asked
            && let Some(worker) = self.registry.workers.get_mut(&worker)
        {
            worker.pause(id);
        } else if before.was_waiting
            && !waiting
            && let Some(worker) = self.registry.workers.get_mut(&worker)
        {
            // The agent took its question back and goes on, slot or no slot.
            worker.take_back_question(id);
        }
        self.count_waiting(&agent, i32::from(waiting) - i32::from(before.was_waiting));
        if unassigned && needs_worker {
            self.place_in_time(id, now);
        }
    }

    pub(crate) fn finish_on(&mut self, worker: WorkerId, id: TaskId) {
        if let Some(worker) = self.registry.workers.get_mut(&worker) {
            worker.finish(id);
        }
    }

    /// A report of a task or attempt that is over. It is acknowledged, so that the worker forgets
    /// it, and counted, so that somebody can find out.
    fn late(&mut self, worker: WorkerId, id: TaskId, report: Brief) {
        let ack = Ack { task_id: id.to_string(), attempt: report.attempt, number: report.number };
        let found = self.registry.workers.get(&worker).filter(|w| w.runs(id, report.attempt));
        if let Some(found) = found.filter(|_| report.is_last) {
            let told = found.stopping(id);
            told.into_iter().for_each(|at| self.registry.meters.stops.record(at.elapsed()));
            self.finish_on(worker, id);
        }
        match report.acknowledges_stop {
            true => self.after_commit(Effect::Ack(worker, ack)),
            false => {
                tracing::info!(task.id = %id, attempt = ack.attempt, "a late report was dropped");
                self.registry.meters.late.add(1);
                self.commit_write(Write::CountLate { id }, vec![Effect::Ack(worker, ack)]);
            }
        }
    }
}

/// A task as it was before a run of reports.
struct StateBefore {
    version: u64,
    was_waiting: bool,
    reported: u32,
    /// The run holds the last report of its attempt.
    agent_ended: bool,
    /// And a question.
    asked: bool,
}

fn fenced(live: &ActiveTask) -> Cancel {
    let (task_id, attempt) = (live.task.id.to_string(), live.task.attempt);
    Cancel { task_id, attempt, initiator: "fenced".to_owned() }
}

/// As the agent tells it, or in the words of its message alone.
fn rejected(live: &ActiveTask, message: &Message) -> Failure {
    if let Some(told) = message.metadata.as_ref().and_then(Failure::from_metadata) {
        return live.task.complete_failure(told, "worker");
    }
    let text = message.parts.iter().find_map(|part| match &part.content {
        Some(Content::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    let failure = Failure::new(&reason::TASK_REJECTED)
        .because(text.unwrap_or(reason::TASK_REJECTED.title))
        .with_plane(v1::Plane::Execution);
    live.task.complete_failure(failure, "worker")
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
    acknowledges_stop: bool,
    asks: bool,
}

impl Brief {
    fn of(report: &Report) -> Self {
        use report::Body;
        let acknowledges_stop = matches!(report.body, Some(Body::Stopped(_) | Body::Released(_)));
        let is_result = matches!(
            report.body,
            Some(Body::Completed(_) | Body::Failed(_) | Body::Rejected(_) | Body::Message(_))
        );
        let is_last = acknowledges_stop || is_result;
        let asks = matches!(report.body, Some(Body::Ask(_)));
        Self { attempt: report.attempt, number: report.number, is_last, acknowledges_stop, asks }
    }
}

fn fail_now(live: &mut ActiveTask, failure: Failure, now: Millis, events: &mut Vec<Event>) {
    let failure = failure.with_plane(v1::Plane::Execution);
    let failure = live.task.complete_failure(failure, "coordinator");
    if let Ok(body) = live.task.decide_fail(failure) {
        events.push(live.task.apply_now(body, now));
    }
}
