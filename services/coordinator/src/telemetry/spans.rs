//! The spans of a task: one `invoke_agent` per trace segment and one `attempt` per assignment
//! below it. Only start times are kept; a span is built when it ends, by whichever process ends
//! it, and sent after the commit.

use faultline_chassis::{
    TraceContext,
    telemetry::{self, Finished, Span, SpanKind, link},
};
use faultline_proto::{
    a2a::TaskState,
    reason,
    v1::{self, attempt::Outcome},
};

use crate::task::{Millis, Task, is_waiting, millis};

const ROLE: &str = "coordinator";
/// The attempt number of the span of a failure that ends a task while it waits.
const AFTERWORD: u32 = u32::MAX;

/// The open spans of a task and their start times, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Open {
    run: Option<(u32, u64)>,
    /// Number and run.
    attempt: Option<((u32, u32), u64)>,
    /// The final state was told.
    is_over: bool,
}

impl Open {
    /// Of a task that is just coming in.
    pub(crate) fn begun() -> Self {
        if !telemetry::is_enabled() {
            return Self::default();
        }
        Self { run: Some((0, telemetry::now_ns())), ..Self::default() }
    }

    /// Of a task that was read from the store, as precisely as it says.
    pub(crate) fn recalled(task: &Task) -> Self {
        let (run, attempt) = current(task);
        let started = task.attempts.last().and_then(|a| a.started.as_ref()).map_or(0, millis);
        let since = nanos(started.max(task.run.began));
        Self {
            run: run.map(|number| (number, nanos(task.run.began))),
            attempt: attempt.map(|attempt| (attempt, since)),
            is_over: false,
        }
    }

    /// Ends the spans that a step of the task has left; they are sent when it is durable.
    pub(crate) fn follow<'a>(
        &mut self,
        task: &Task,
        version: impl FnOnce() -> &'a str,
    ) -> Option<EndedSpans> {
        if !telemetry::is_enabled() {
            return None;
        }
        let now = telemetry::now_ns();
        let (run, attempt) = current(task);
        let mut ended = Vec::new();
        if self.attempt.map(|(open, _)| open) != attempt {
            let old = std::mem::replace(&mut self.attempt, attempt.map(|new| (new, now)));
            ended.extend(old.and_then(|(at, began)| attempt_span(task, at, began, now)));
        }
        let fell_over = self.run.is_none() && task.state == TaskState::Failed && !self.is_over;
        if self.run.map(|(open, _)| open) != run {
            let old = std::mem::replace(&mut self.run, run.map(|new| (new, now)));
            ended.extend(old.and_then(|(at, began)| run_span(task, at, began, now, version())));
        }
        if fell_over {
            ended.push(afterword(task, now));
        }
        self.is_over = task.is_final();
        (!ended.is_empty()).then_some(EndedSpans(ended))
    }

    /// The answer is a bare message: nothing is left of the task but its spans.
    pub(crate) fn vanish(&mut self, task: &Task, version: &str) -> Option<EndedSpans> {
        if !telemetry::is_enabled() {
            return None;
        }
        let now = telemetry::now_ns();
        let attempt =
            self.attempt.take().and_then(|(at, began)| attempt_span(task, at, began, now));
        let run = self.run.take().and_then(|(at, began)| run_span(task, at, began, now, version));
        let ended: Vec<_> = attempt.into_iter().chain(run).collect();
        (!ended.is_empty()).then_some(EndedSpans(ended))
    }
}

/// Spans that ended with a step of a task: sent when the step is durable.
pub(crate) struct EndedSpans(Vec<Finished>);

impl EndedSpans {
    pub(crate) fn send(self) {
        self.0.into_iter().for_each(Finished::send);
    }
}

/// The run and the attempt in it that are under way. Waiting for people is neither.
fn current(task: &Task) -> (Option<u32>, Option<(u32, u32)>) {
    let run = (!task.is_final() && !is_waiting(task.state)).then_some(task.run.number);
    let attempt = run.filter(|_| !task.worker.is_empty()).map(|run| (task.attempt, run));
    (run, attempt)
}

fn nanos(ms: Millis) -> u64 {
    u64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000)
}

/// The trace of a run: this one or the one before, which may have ended in the same step.
fn trace_of(task: &Task, run: u32) -> Option<TraceContext> {
    if run == task.run.number {
        return Some(task.run.parent());
    }
    let before = task.run.before.as_ref().filter(|_| run + 1 == task.run.number)?;
    Some(TraceContext::from_header(Some(&before.traceparent)))
}

/// The span of an attempt in the run before this.
fn before(task: &Task, attempt: impl FnOnce(u32) -> u32) -> Option<TraceContext> {
    let before = task.run.before.as_ref()?;
    let trace = TraceContext::from_header(Some(&before.traceparent));
    Some(trace.with_span(task.span_id(task.run.number - 1, attempt(before.attempt))))
}

fn run_span(task: &Task, run: u32, began: u64, now: u64, version: &str) -> Option<Finished> {
    let parent = trace_of(task, run)?;
    let own = parent.with_span(task.span_id(run, 0));
    let mut span = invoked(task, own, &parent, began);
    span.set_non_empty("gen_ai.agent.version", version);
    span.state(task.state);
    if run == task.run.number
        && let Some(before) = before(task, |_| 0)
    {
        span.link(&before, link::RESUMED_FROM);
    }
    if let Some(question) = task.pending.first().filter(|_| is_waiting(task.state)) {
        span.event("faultline.interrupt", &[("faultline.interrupt.key", (&question.key).into())]);
    }
    if let Some(failure) = &task.failure {
        span.failed(failure);
    }
    Some(span.finish_at(Some(now)))
}

/// A task failed while it only waited: there is no span that could say so.
fn afterword(task: &Task, now: u64) -> Finished {
    let parent = task.run.parent();
    let own = parent.with_span(task.span_id(task.run.number, AFTERWORD));
    let mut span = invoked(task, own, &parent, now);
    span.state(task.state).link(&task.run_trace(), link::RESUMED_FROM);
    if let Some(failure) = &task.failure {
        span.failed(failure);
    }
    span.finish_at(Some(now))
}

fn invoked(task: &Task, own: TraceContext, parent: &TraceContext, began: u64) -> Span {
    let name = format_args!("invoke_agent {}", task.agent);
    let mut span = Span::named(SpanKind::Client, own, parent, Some(began), name);
    if span.is_recorded() {
        span.role(ROLE).agent(&task.agent, task.id, &task.context_id);
        span.set("faultline.task.attempts", task.attempts.len() as i64);
        if let Some(above) = &task.parent {
            span.set("faultline.task.parent.id", &above.task_id);
            span.set("faultline.task.depth", above.depth);
        }
    }
    span
}

fn attempt_span(task: &Task, (number, run): (u32, u32), began: u64, now: u64) -> Option<Finished> {
    let trace = trace_of(task, run)?;
    let attempt = task.attempts.iter().rfind(|attempt| attempt.number == number)?;
    let agent = if attempt.agent.is_empty() { &task.agent } else { &attempt.agent };
    let own = trace.with_span(task.span_id(run, number));
    let parent = trace.with_span(task.span_id(run, 0));
    let name = format_args!("attempt {agent}");
    let mut span = Span::named(SpanKind::Client, own, &parent, Some(began), name);
    if !span.is_recorded() {
        return None;
    }
    span.role(ROLE).agent(agent, task.id, &task.context_id);
    span.set("faultline.attempt", number).set_non_empty("faultline.worker", &attempt.worker);
    if run == task.run.number {
        link_attempt(&mut span, task, &trace, number);
    }
    end_attempt(&mut span, task, attempt);
    Some(span.finish_at(Some(now)))
}

/// Links an attempt to the failed one that it retries, or to the one that asked.
fn link_attempt(span: &mut Span, task: &Task, trace: &TraceContext, number: u32) {
    let run = &task.run;
    let first = run.first.max(1);
    if number > first {
        span.set("faultline.retry.attempt", number - first);
        span.link(&trace.with_span(task.span_id(run.number, number - 1)), link::RETRY_OF);
    } else if let Some(before) = before(task, |attempt| attempt) {
        span.link(&before, link::RESUMED_FROM);
    }
}

fn end_attempt(span: &mut Span, task: &Task, attempt: &v1::Attempt) {
    let outcome = match attempt.outcome() {
        Outcome::Failed => "failed",
        Outcome::WorkerLost => "worker_lost",
        Outcome::Released => "released",
        Outcome::Running | Outcome::Unspecified if is_waiting(task.state) => "asked",
        Outcome::Running | Outcome::Unspecified => "resumed",
        Outcome::Ended => "ended",
    };
    span.set("faultline.attempt.outcome", outcome);
    let ended = task.failure.as_ref().filter(|_| attempt.outcome() == Outcome::Ended);
    let ended = ended.map(|failure| failure.record());
    // The last of so many ends the task with it.
    let lost = task.failure.as_ref().filter(|_| attempt.outcome() == Outcome::WorkerLost);
    let lost = lost.map(|failure| failure.record());
    if let Some(failure) = attempt.failure.as_ref().or(ended).or(lost) {
        span.failed(failure);
    } else if attempt.outcome() == Outcome::WorkerLost {
        span.error(reason::WORKER_LOST.name, reason::WORKER_LOST.title);
    }
}
