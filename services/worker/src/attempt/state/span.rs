//! The span of an attempt: open while the agent has something to do, closed while it waits for
//! people. What comes after an answer is a span of its own in the trace of whoever answered,
//! linked to the one before.

use faultline_chassis::{
    TraceContext,
    telemetry::{self, LogContext, Span, SpanKind, link},
};
use faultline_proto::{Failure, a2a::TaskState};

use super::Attempt;

pub(super) struct Tracing {
    /// What the coordinator said.
    parent: TraceContext,
    /// Of the span that is open, or was last.
    own: TraceContext,
    open: Option<Span>,
}

impl Tracing {
    /// Begins when the attempt does.
    pub(super) fn new(traceparent: &str, tracestate: &str) -> Self {
        let parent = TraceContext::read(traceparent, tracestate);
        Self { own: telemetry::child_context(&parent), parent, open: None }
    }
}

impl Attempt {
    pub(crate) fn trace(&self) -> TraceContext {
        self.tracing.lock().own.clone()
    }

    pub(crate) fn begin_span(&self) {
        let mut tracing = self.tracing.lock();
        let span = self.span(&tracing);
        tracing.open = Some(span);
    }

    fn span(&self, tracing: &Tracing) -> Span {
        let name = format_args!("attempt {}", self.names.agent);
        let mut span =
            Span::named(SpanKind::Server, tracing.own.clone(), &tracing.parent, None, name);
        span.role("worker").agent(&self.names.agent, &self.task_id, &self.context_id);
        span.set("faultline.attempt", self.key.attempt);
        span.set_non_empty("faultline.worker", &self.names.worker);
        span
    }

    /// Somebody is asked.
    pub(super) fn pause_span(&self) {
        if let Some(mut span) = self.tracing.lock().open.take() {
            span.state(TaskState::InputRequired);
        }
    }

    /// It goes on: as the coordinator says, or by itself after all.
    pub(super) fn resume_span(&self, parent: Option<TraceContext>) {
        let mut tracing = self.tracing.lock();
        match parent {
            // Told again after a broken connection.
            Some(parent) if parent == tracing.parent => return,
            Some(parent) => tracing.parent = parent,
            None if tracing.open.is_some() => return,
            None => {}
        }
        let own = telemetry::child_context(&tracing.parent);
        let before = std::mem::replace(&mut tracing.own, own);
        let mut span = self.span(&tracing);
        span.link(&before, link::RESUMED_FROM);
        tracing.open = Some(span);
    }

    /// The agent failed, perhaps beside a question.
    pub(crate) fn resume_span_after_failure(&self) {
        self.resume_span(None);
    }

    pub(crate) fn span_failed(&self, failure: &Failure) {
        if let Some(span) = &mut self.tracing.lock().open {
            span.failed(failure);
        }
    }

    /// Something failed, and the agent goes on.
    pub(crate) fn span_saw(&self, failure: &Failure) {
        if let Some(span) = &mut self.tracing.lock().open {
            span.failure_event(failure);
        }
    }

    pub(crate) fn end_span(&self) {
        self.tracing.lock().open = None;
    }
}

impl LogContext for Attempt {
    fn trace(&self) -> TraceContext {
        Attempt::trace(self)
    }

    fn task(&self) -> &str {
        &self.task_id
    }
}
