//! Trace segments: the work of a task from a call to the next question or to its end is one
//! span, and waiting for people is none. This is the part that is stored with the task. Pure.

use faultline_chassis::{TraceContext, trace::span_id_of};
use faultline_proto::v1::event;

use crate::task::{Millis, Task};

/// The current trace segment of a task and the trace context that it began with. Changed by `apply`
/// only; stored with the task, so it lives as long as the task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TraceSegment {
    /// From 0.
    pub(crate) number: u32,
    pub(crate) began: Millis,
    /// Of the call that set it off.
    pub(crate) traceparent: String,
    pub(crate) tracestate: String,
    /// The attempt that it began with.
    pub(crate) first: u32,
    /// The one that it continues.
    pub(crate) before: Option<Box<PreviousSegment>>,
}

/// The previous segment, for span links.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PreviousSegment {
    pub(crate) traceparent: String,
    /// The last attempt that worked in it.
    pub(crate) attempt: u32,
}

impl TraceSegment {
    /// The trace that it belongs to; its span there is a child of this.
    pub(crate) fn parent(&self) -> TraceContext {
        TraceContext::read(&self.traceparent, &self.tracestate)
    }
}

impl Task {
    /// Nothing is asked any more, so the next run begins.
    pub(crate) fn begin_run(&mut self, traceparent: &str, tracestate: &str, at: Millis) {
        let first = self.attempt + u32::from(self.worker.is_empty());
        let old = std::mem::take(&mut self.run);
        let (traceparent, tracestate) = match traceparent {
            "" => (old.traceparent.clone(), old.tracestate),
            _ => (traceparent.to_owned(), tracestate.to_owned()),
        };
        let before = PreviousSegment { traceparent: old.traceparent, attempt: self.attempt };
        let before = Some(Box::new(before));
        let number = old.number + 1;
        self.run = TraceSegment { number, began: at, traceparent, tracestate, first, before };
    }

    /// The span of its current run, or the last.
    pub(crate) fn run_trace(&self) -> TraceContext {
        self.run.parent().with_span(self.span_id(self.run.number, 0))
    }

    /// The span of its current attempt in this run, or the last.
    pub(crate) fn attempt_trace(&self) -> TraceContext {
        self.run.parent().with_span(self.span_id(self.run.number, self.attempt))
    }

    /// The span id, derived from its name, so that any process can end the span. Attempt 0 is the
    /// run.
    pub(crate) fn span_id(&self, run: u32, attempt: u32) -> u64 {
        span_id_of(self.id.as_bytes(), u64::from(run) << 32 | u64::from(attempt))
    }
}

/// An answer, with the trace of the segment that it starts.
pub(crate) fn traced(mut body: event::Body, trace: &TraceContext) -> event::Body {
    if let event::Body::Answered(given) = &mut body {
        given.traceparent = trace.to_string();
        trace.state().clone_into(&mut given.tracestate);
    }
    body
}
