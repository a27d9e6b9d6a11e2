//! One span, recorded as its OTLP bytes. Without an exporter it consists of its ids only and costs
//! next to nothing. Dropping a span sends it, unless it was finished to be sent later.

use std::fmt;

use super::TraceContext;
use super::{
    export_queue::{self, ExportQueue},
    wire::{self, Value},
};

/// The kind of a span: its side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
    Producer = 4,
    Consumer = 5,
}

/// Field numbers of OTLP's Span.
pub(super) mod field {
    pub(super) const TRACE_ID: u32 = 1;
    pub(super) const SPAN_ID: u32 = 2;
    pub(super) const TRACE_STATE: u32 = 3;
    pub(super) const PARENT: u32 = 4;
    pub(super) const NAME: u32 = 5;
    pub(super) const KIND: u32 = 6;
    pub(super) const START: u32 = 7;
    pub(super) const END: u32 = 8;
    pub(super) const ATTRIBUTES: u32 = 9;
    pub(super) const EVENTS: u32 = 11;
    pub(super) const LINKS: u32 = 13;
    pub(super) const STATUS: u32 = 15;
    pub(super) const FLAGS: u32 = 16;
    /// Of an event of a span.
    pub(in crate::telemetry) const EVENT_ATTRIBUTES: u32 = 3;
}

/// The size of an ordinary span, so that its buffer grows at most once.
const USUAL_BYTES: usize = 640;
/// The flags state whether the parent is in another process, and it is.
const PARENT_IS_REMOTE: u32 = 0x300;
const STATUS_ERROR: u64 = 2;

/// Reasons of links between spans that are not parent and child.
pub mod link {
    /// The next attempt after a failed one.
    pub const RETRY_OF: &str = "retry_of";
    /// The attempt that continues after an answer.
    pub const RESUMED_FROM: &str = "resumed_from";
    /// The task that this call cancels.
    pub const CANCELS: &str = "cancels";
    /// The stream that this call resumes.
    pub const RECONNECT_OF: &str = "reconnect_of";
}

/// A span in progress. Its context is propagated, whether or not the span is recorded. Owned by the
/// code that does the work; dropping it ends it.
#[derive(Debug)]
pub struct Span {
    context: TraceContext,
    recorded: Option<Recorded>,
}

#[derive(Debug)]
struct Recorded {
    queue: &'static ExportQueue,
    kind: SpanKind,
    is_sampled: bool,
    /// The encoded fields so far.
    bytes: Vec<u8>,
    is_error: bool,
}

impl Span {
    /// A child of `parent` that begins now.
    pub fn begin(kind: SpanKind, parent: &TraceContext, name: fmt::Arguments<'_>) -> Self {
        Self::named(kind, parent.child(), parent, None, name)
    }

    /// The span of `context`, a child of `parent` that began at that time.
    pub fn named(
        kind: SpanKind,
        context: TraceContext,
        parent: &TraceContext,
        began_ns: Option<u64>,
        name: fmt::Arguments<'_>,
    ) -> Self {
        let Some(queue) = export_queue::spans(context.is_sampled()) else {
            return Self { context, recorded: None };
        };
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        let out = &mut bytes;
        wire::bytes(out, field::TRACE_ID, &context.trace_bytes());
        wire::bytes(out, field::SPAN_ID, &context.span_bytes());
        if parent.has_span() {
            wire::bytes(out, field::PARENT, &parent.span_bytes());
        }
        if !context.state().is_empty() {
            wire::bytes(out, field::TRACE_STATE, context.state().as_bytes());
        }
        wire::text(out, field::NAME, name);
        wire::number(out, field::KIND, kind as u64);
        wire::fixed64(out, field::START, began_ns.unwrap_or_else(wire::now));
        let remote =
            if kind == SpanKind::Server && parent.has_span() { PARENT_IS_REMOTE } else { 0 };
        wire::fixed32(out, field::FLAGS, u32::from(context.flags()) | remote);
        let is_sampled = context.is_sampled();
        let recorded = Recorded { queue, kind, is_sampled, bytes, is_error: false };
        Self { context, recorded: Some(recorded) }
    }

    /// A span that is not recorded and has no parent.
    pub fn none() -> Self {
        Self { context: TraceContext::begin().child(), recorded: None }
    }

    pub fn context(&self) -> &TraceContext {
        &self.context
    }

    /// Whether the span is recorded. If not, attributes need not be computed.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    pub(super) fn kind(&self) -> Option<SpanKind> {
        self.recorded.as_ref().map(|recorded| recorded.kind)
    }

    /// Sets an attribute. Each key may be set once.
    pub fn set<'a>(&mut self, key: &str, value: impl Into<Value<'a>>) -> &mut Self {
        if let Some(recorded) = &mut self.recorded {
            wire::attribute(&mut recorded.bytes, field::ATTRIBUTES, key, value.into());
        }
        self
    }

    /// Sets an attribute to a formatted text.
    pub fn set_text(&mut self, key: &str, text: fmt::Arguments<'_>) -> &mut Self {
        if let Some(recorded) = &mut self.recorded {
            wire::attribute_text(&mut recorded.bytes, field::ATTRIBUTES, key, text);
        }
        self
    }

    /// Sets an attribute unless the text is empty.
    pub fn set_non_empty(&mut self, key: &str, text: &str) -> &mut Self {
        if text.is_empty() { self } else { self.set(key, text) }
    }

    /// Adds an event at the current time.
    pub fn event(&mut self, name: &str, attributes: &[(&str, Value<'_>)]) -> &mut Self {
        self.event_at(wire::now(), name, |out| {
            for (key, value) in attributes {
                wire::attribute(out, field::EVENT_ATTRIBUTES, key, *value);
            }
        })
    }

    pub(super) fn event_at(
        &mut self,
        at_ns: u64,
        name: &str,
        say: impl FnOnce(&mut Vec<u8>),
    ) -> &mut Self {
        if let Some(recorded) = &mut self.recorded {
            wire::nested(&mut recorded.bytes, field::EVENTS, |out| {
                wire::fixed64(out, 1, at_ns);
                wire::bytes(out, 2, name.as_bytes());
                say(out);
            });
        }
        self
    }

    /// Links to `other`, which is not its parent.
    pub fn link(&mut self, other: &TraceContext, why: &str) -> &mut Self {
        if let Some(recorded) = &mut self.recorded {
            wire::nested(&mut recorded.bytes, field::LINKS, |out| {
                wire::bytes(out, 1, &other.trace_bytes());
                wire::bytes(out, 2, &other.span_bytes());
                wire::attribute(out, 4, "faultline.link.type", why.into());
                wire::fixed32(out, 6, other.flags().into());
            });
        }
        self
    }

    /// Sets the error status. Only the first call counts.
    pub fn error(&mut self, error_type: &str, description: &str) -> &mut Self {
        if self.mark_failed(description) { self.set("error.type", error_type) } else { self }
    }

    /// Sets the error status without an error type. False: the status was set before.
    pub(super) fn mark_failed(&mut self, description: &str) -> bool {
        let Some(recorded) = self.recorded.as_mut().filter(|recorded| !recorded.is_error) else {
            return false;
        };
        recorded.is_error = true;
        wire::nested(&mut recorded.bytes, field::STATUS, |out| {
            wire::bytes(out, 2, description.as_bytes());
            wire::number(out, 3, STATUS_ERROR);
        });
        true
    }

    /// Ends the span now, to be sent later or dropped.
    pub fn finish(self) -> Finished {
        self.finish_at(None)
    }

    /// Ends the span at that time.
    pub fn finish_at(mut self, ended_ns: Option<u64>) -> Finished {
        Finished(self.recorded.take().and_then(|recorded| recorded.end(ended_ns)))
    }
}

impl Recorded {
    /// `None`: its trace is not sampled, and it is no error that is exported all the same.
    fn end(mut self, ended_ns: Option<u64>) -> Option<(&'static ExportQueue, Vec<u8>)> {
        let out = &mut self.bytes;
        wire::fixed64(out, field::END, ended_ns.unwrap_or_else(wire::now));
        if !self.is_sampled && !self.is_error {
            return None;
        }
        if !self.is_sampled {
            // Marks a span that is exported without the rest of its trace.
            let key = "faultline.trace.partial";
            wire::attribute(&mut self.bytes, field::ATTRIBUTES, key, true.into());
        }
        Some((self.queue, self.bytes))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((queue, bytes)) = self.recorded.take().and_then(|recorded| recorded.end(None)) {
            queue.push(&bytes);
        }
    }
}

/// An ended span that waits to be sent. Dropping it discards the span.
#[derive(Debug)]
#[must_use = "a finished span is exported only by `send`"]
pub struct Finished(Option<(&'static ExportQueue, Vec<u8>)>);

impl Finished {
    pub fn send(self) {
        if let Some((queue, bytes)) = self.0 {
            queue.push(&bytes);
        }
    }
}
