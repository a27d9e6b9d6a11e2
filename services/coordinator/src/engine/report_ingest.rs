//! Ingestion of worker reports: consecutive reports of one task are one step. Reports of ended
//! attempts are fenced off by attempt number: acknowledged, counted and dropped.

use faultline_proto::{
    Failure,
    a2a::{Message, TaskState, part::Content},
    id::{TaskId, WorkerId},
    reason,
    v1::{self, Ack, Cancel, Report, ToWorker, report, to_worker},
};
use prost::Message as _;

use crate::{
    engine::{
        active_task::{Waiter, message_response, transition::Transition},
        core::State,
        effect::Effect,
    },
    policy::circuit_breaker::HealthSignal,
    store::Write,
    task::{Millis, Refused, Task, is_waiting, report::ReportOutcome},
};

impl State {
    /// Ingests reports of a worker. Consecutive reports of one task are one step.
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
        if self.tasks.get(&id).is_none_or(|active| active.pending().worker != name) {
            run.iter().for_each(|report| self.late(worker, id, Brief::of(report)));
            return;
        }
        let ingested = self.transition(id, None, now, |transition| {
            let before = StateBefore::of(transition.task());
            let mut run = transition.ingest(run);
            let task = transition.task();
            let attempt = task.attempt;
            if run.highest > 0 && run.message.is_none() {
                let ack = Ack { task_id: id.to_string(), attempt, number: run.highest };
                transition.effects.push(Effect::Ack(worker, ack));
            }
            let changed = transition.has_changed(before.reported);
            let after = StateAfter::of(transition.task());
            if run.message.is_none() && changed {
                transition.active.may_reply_without_task = false;
                transition.active.key = None;
                if after.over && !run.agent_ended {
                    let cancel = Some(to_worker::Body::Cancel(fenced(transition.task())));
                    let cancel = Box::new(ToWorker { body: cancel });
                    transition.effects.push(Effect::Tell(worker, cancel));
                }
                if !after.over {
                    // The replies show the task after this step, which is durable when they are
                    // sent.
                    run.answered = transition.active.take_first_waiters();
                }
            }
            let answered = std::mem::take(&mut run.answered);
            let calls: Vec<_> = answered.iter().filter_map(|waiter| waiter.call).collect();
            answered.into_iter().for_each(|waiter| transition.reply(waiter));
            (before, after, run, attempt, changed, calls)
        });
        let Some((before, after, run, attempt, changed, calls)) = ingested else { return };
        for call in &calls {
            self.calls.remove(call);
        }
        if let Some(message) = &run.message {
            let ack = Ack { task_id: id.to_string(), attempt, number: run.highest };
            self.erase(worker, id, message, ack, now);
        } else if changed {
            if after.over && !run.agent_ended {
                self.expect_stop(worker, id, attempt);
            }
            self.settle_run(worker, id, &before, &after, &run, now);
        }
        run.late.into_iter().for_each(|brief| self.late(worker, id, brief));
    }

    /// Erases a task whose reply is a bare message: from memory now, from the store with this
    /// write. The idempotency key stays and holds the message.
    fn erase(&mut self, worker: WorkerId, id: TaskId, message: &Message, ack: Ack, now: Millis) {
        let Some(mut active) = self.tasks.remove(&id) else { return };
        let from = active.pending().version;
        let mut effects = vec![Effect::Ack(worker, ack), Effect::Note(id)];
        effects.extend(active.end_spans(&self.registry).map(Effect::from));
        self.drop_calls(&active);
        self.clear_timers(id);
        self.note(active.pending().runner(), id, HealthSignal::Serves, now);
        active.meters.ended(TaskState::Completed, active.pending().created, now);
        let mut key = active.key.take();
        if let Some(key) = &mut key {
            key.reply = Some(message.encode_to_vec().into());
        }
        for waiter in std::mem::take(&mut active.waiters) {
            let answer = Box::new(message_response(message.clone()));
            effects.push(Effect::Reply(Box::new(waiter), answer));
        }
        self.commit_write(Write::Erase { id, from, key }, effects);
        self.end_children(id, now);
        self.finish_on(worker, id);
    }

    /// Updates slots and queues after a run of reports that changed its task.
    fn settle_run(
        &mut self,
        worker: WorkerId,
        id: TaskId,
        before: &StateBefore,
        after: &StateAfter,
        run: &Ingested,
        now: Millis,
    ) {
        if after.over {
            self.end_children(id, now);
            self.note_end(id, now);
        } else if after.waiting && !before.waiting {
            // A question proves that the agent works.
            self.note(&after.runner, id, HealthSignal::Serves, now);
        }
        if run.agent_ended {
            // The slot of a cancelled attempt stays taken until the agent has stopped.
            self.finish_on(worker, id);
        } else if after.waiting
            && run.asked
            && let Some(worker) = self.registry.workers.get_mut(&worker)
        {
            worker.pause(id);
        } else if before.waiting
            && !after.waiting
            && let Some(worker) = self.registry.workers.get_mut(&worker)
        {
            // The agent withdrew its question and continues, with or without a slot.
            worker.take_back_question(id);
        }
        let by = i32::from(after.waiting) - i32::from(before.waiting);
        self.count_waiting(&after.agent, by);
        if after.unassigned && after.needs_worker {
            self.place_after_pause(id, now);
        }
    }

    pub(crate) fn finish_on(&mut self, worker: WorkerId, id: TaskId) {
        if let Some(worker) = self.registry.workers.get_mut(&worker) {
            worker.finish(id);
        }
    }

    /// Handles a report of an ended task or attempt: acknowledged, so that the worker forgets the
    /// report, and counted in a metric.
    fn late(&mut self, worker: WorkerId, id: TaskId, report: Brief) {
        let ack = Ack { task_id: id.to_string(), attempt: report.attempt, number: report.number };
        let found = self.registry.workers.get(&worker).filter(|w| w.runs(id, report.attempt));
        if let Some(found) = found.filter(|_| report.is_last) {
            let told = found.stopping(id);
            told.into_iter().for_each(|at| self.registry.meters.stops.record(at.elapsed()));
            self.finish_on(worker, id);
        }
        if !report.acknowledges_stop {
            tracing::info!(task.id = %id, attempt = ack.attempt, "late report dropped");
            self.registry.meters.late.add(1);
            self.commit_write(Write::CountLate { id }, Vec::new());
        }
        // The step that made the report late may not be durable yet. If the store refuses that
        // step, the worker has to send the report again, so the acknowledgement depends on it.
        self.after_writes_of(id, Effect::Ack(worker, ack));
    }
}

/// The state of a task before a run of reports.
struct StateBefore {
    waiting: bool,
    reported: u32,
}

impl StateBefore {
    fn of(task: &Task) -> Self {
        Self { waiting: is_waiting(task.state), reported: task.reported }
    }
}

/// The state of a task after a run of reports. Made within the transition, under the state lock,
/// and consumed by `settle_run` right after it.
struct StateAfter {
    over: bool,
    unassigned: bool,
    needs_worker: bool,
    waiting: bool,
    agent: String,
    runner: String,
}

impl StateAfter {
    fn of(task: &Task) -> Self {
        Self {
            over: task.is_final(),
            unassigned: task.worker.is_empty(),
            needs_worker: task.needs_worker(),
            waiting: is_waiting(task.state),
            agent: task.agent.clone(),
            runner: task.runner().to_owned(),
        }
    }
}

/// The outcome of one run of reports. Filled within the transition by `ingest` and consumed right
/// after it.
#[derive(Default)]
struct Ingested {
    /// The highest report number to acknowledge; 0: none.
    highest: u32,
    /// Reports that came too late or are invalid.
    late: Vec<Brief>,
    /// The reply is this bare message.
    message: Option<Box<Message>>,
    /// The run holds the last report of its attempt.
    agent_ended: bool,
    /// The run holds a question.
    asked: bool,
    /// Waiters that are answered by the first report.
    answered: Vec<Waiter>,
}

impl Transition<'_> {
    /// Applies the reports of a run, in order, up to one that makes the reply a bare message.
    fn ingest(&mut self, run: Vec<Report>) -> Ingested {
        let id = self.id;
        // A bare message needs a waiting caller that has not seen a task.
        let may_message = self.active.may_reply_without_task && !self.active.waiters.is_empty();
        let mut out = Ingested::default();
        for mut report in run {
            let number = report.number;
            let attempt = report.attempt;
            if !may_message {
                report.body = report.body.map(message_to_completed);
            }
            let brief = Brief::of(&report);
            match self.task().decide_report(report) {
                Ok(ReportOutcome::Events(bodies)) => {
                    self.accept_report(number);
                    out.highest = number;
                    out.agent_ended |= brief.is_last;
                    out.asked |= brief.asks;
                    self.apply_all(bodies);
                }
                Ok(ReportOutcome::BareMessage(message)) => {
                    out.message = Some(message);
                    out.highest = number;
                    return out;
                }
                Ok(ReportOutcome::Rejected(message)) => {
                    self.accept_report(number);
                    out.highest = number;
                    out.agent_ended = true;
                    let failure = rejected(self.task(), &message);
                    let body = self.task().reject(*message, failure);
                    self.apply(body);
                }
                Ok(ReportOutcome::Failed(failure)) => {
                    self.accept_report(number);
                    out.highest = number;
                    out.agent_ended = true;
                    let task = self.active.pending();
                    let bodies = self.registry.after_failure(task, *failure, self.now);
                    self.apply_all(bodies);
                }
                Ok(ReportOutcome::TooLarge) => {
                    self.accept_report(number);
                    out.highest = number;
                    self.fail(Failure::new(&reason::TASK_TOO_LARGE));
                }
                Err(Refused::Duplicate) => out.highest = out.highest.max(number),
                Err(Refused::Nonsense(what)) => {
                    let trace = self.task().run_trace().trace_id();
                    tracing::warn!(
                        task.id = %id, trace.id = trace, attempt, number, what,
                        "invalid report dropped"
                    );
                    self.fail(Failure::new(&reason::INVALID_AGENT_RESPONSE).because(what));
                    out.late.push(brief);
                }
                Err(Refused::Fenced | Refused::Final | Refused::Busy) => out.late.push(brief),
            }
        }
        self.show_open_question();
        out
    }

    fn fail(&mut self, failure: Failure) {
        let failure = failure.with_plane(v1::Plane::Execution);
        let failure = self.task().complete_failure(failure, "coordinator");
        if let Ok(body) = self.task().decide_fail(failure) {
            self.apply(body);
        }
    }
}

fn fenced(task: &Task) -> Cancel {
    Cancel { task_id: task.id.to_string(), attempt: task.attempt, initiator: "fenced".to_owned() }
}

/// The failure of a rejected task: as the agent reported it, or made from its message.
fn rejected(task: &Task, message: &Message) -> Failure {
    if let Some(reported) = message.metadata.as_ref().and_then(Failure::from_metadata) {
        return task.complete_failure(reported, "worker");
    }
    let text = message.parts.iter().find_map(|part| match &part.content {
        Some(Content::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    let failure = Failure::new(&reason::TASK_REJECTED)
        .because(text.unwrap_or(reason::TASK_REJECTED.title))
        .with_plane(v1::Plane::Execution);
    task.complete_failure(failure, "worker")
}

/// Turns a bare message into a completed task for an agent that did not declare bare messages.
fn message_to_completed(body: report::Body) -> report::Body {
    match body {
        report::Body::Message(message) => {
            report::Body::Completed(v1::Completed { message: Some(message) })
        }
        other => other,
    }
}

/// The part of a dropped report that `late` needs.
struct Brief {
    attempt: u32,
    number: u32,
    /// The report is the last of its attempt.
    is_last: bool,
    /// The report confirms a stop, so it is not counted as late.
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
