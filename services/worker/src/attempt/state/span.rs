//! Span of an attempt: open while the agent works, closed while it waits for a human. The work
//! after an answer is a span of its own in the trace of the answer, linked to the span before.

use faultline_chassis::{
    TraceContext,
    telemetry::{self, LogContext, Span, SpanKind, link},
};
use faultline_proto::{Failure, a2a::TaskState};

use super::Attempt;

/// The spans of an attempt, under the `tracing` lock of the attempt.
pub(super) struct Tracing {
    /// The trace context of the assignment or of the last answer.
    parent: TraceContext,
    /// The trace context of the open span, or of the last one.
    own: TraceContext,
    open: Option<Span>,
}

impl Tracing {
    /// Creates the context of the first span; [`Attempt::begin_span`] opens it.
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

    /// Closes the span: a question is open.
    pub(super) fn pause_span(&self) {
        if let Some(mut span) = self.tracing.lock().open.take() {
            span.state(TaskState::InputRequired);
        }
    }

    /// Opens the next span, below the trace of an answer or below the same parent.
    pub(super) fn resume_span(&self, parent: Option<TraceContext>) {
        let mut tracing = self.tracing.lock();
        match parent {
            // The answer was repeated after a reconnect.
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

    /// Opens a span for a failure that happens while a question is open.
    pub(crate) fn resume_span_after_failure(&self) {
        self.resume_span(None);
    }

    pub(crate) fn span_failed(&self, failure: &Failure) {
        if let Some(span) = &mut self.tracing.lock().open {
            span.failed(failure);
        }
    }

    /// Records a tolerated failure: the span itself is no error.
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
