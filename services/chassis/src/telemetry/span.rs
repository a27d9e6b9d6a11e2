//! One span: a hop of a trace that lasts some time. Made where somebody listens and else nothing
//! but its ids, so that without an exporter it costs next to nothing. It is sent when it is
//! dropped, unless it was finished to be sent later.

use std::fmt;

use super::TraceContext;
use super::{
    export_queue::{self, ExportQueue},
    wire::{self, Value},
};

/// Which side of a call it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
    Producer = 4,
    Consumer = 5,
}

/// Numbers of the fields of OTLP's Span.
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
    /// Of an event in it.
    pub(in crate::telemetry) const EVENT_ATTRIBUTES: u32 = 3;
}

/// Room for an ordinary span, so that it grows once at the most.
const USUAL_BYTES: usize = 640;
/// Says that the flags tell whether the parent is in another process, and that it is.
const PARENT_IS_REMOTE: u32 = 0x300;
const STATUS_ERROR: u64 = 2;

/// Why two spans belong together that are not parent and child.
pub mod link {
    /// The next attempt after one that failed.
    pub const RETRY_OF: &str = "retry_of";
    /// What goes on after somebody answered.
    pub const RESUMED_FROM: &str = "resumed_from";
    /// What this call stops.
    pub const CANCELS: &str = "cancels";
    /// What this call follows again.
    pub const RECONNECT_OF: &str = "reconnect_of";
}

/// A span on its way. Its context is what is handed on, whether or not it is recorded.
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
    /// The fields so far.
    bytes: Vec<u8>,
    is_error: bool,
}

impl Span {
    /// A child of `parent` that begins now.
    pub fn begin(kind: SpanKind, parent: &TraceContext, name: fmt::Arguments<'_>) -> Self {
        Self::named(kind, parent.child(), parent, None, name)
    }

    /// The span that `context` names, a child of `parent`, begun at that time.
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

    /// Nobody listens, and nothing above it is known.
    pub fn none() -> Self {
        Self { context: TraceContext::begin().child(), recorded: None }
    }

    pub fn context(&self) -> &TraceContext {
        &self.context
    }

    /// Whether anything that is said to it is kept. What takes work to say need not be, else.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    pub(super) fn kind(&self) -> Option<SpanKind> {
        self.recorded.as_ref().map(|recorded| recorded.kind)
    }

    /// Says something of it. Each key once.
    pub fn set<'a>(&mut self, key: &str, value: impl Into<Value<'a>>) -> &mut Self {
        if let Some(recorded) = &mut self.recorded {
            wire::attribute(&mut recorded.bytes, field::ATTRIBUTES, key, value.into());
        }
        self
    }

    /// The same of what is not text yet.
    pub fn set_text(&mut self, key: &str, text: fmt::Arguments<'_>) -> &mut Self {
        if let Some(recorded) = &mut self.recorded {
            wire::attribute_text(&mut recorded.bytes, field::ATTRIBUTES, key, text);
        }
        self
    }

    /// The same, unless there is nothing to say.
    pub fn set_non_empty(&mut self, key: &str, text: &str) -> &mut Self {
        if text.is_empty() { self } else { self.set(key, text) }
    }

    /// Something that happened in it just now.
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

    /// Belongs together with `other`, which is no parent of it.
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

    /// It ended in an error. Only the first counts.
    pub fn error(&mut self, error_type: &str, description: &str) -> &mut Self {
        match self.mark_failed(description) {
            true => self.set("error.type", error_type),
            false => self,
        }
    }

    /// The same without a word on what kind of error. False: it was marked before.
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

    /// Ends it now, to be sent later or never.
    pub fn finish(self) -> Finished {
        self.finish_at(None)
    }

    /// Ends it at that time.
    pub fn finish_at(mut self, ended_ns: Option<u64>) -> Finished {
        Finished(self.recorded.take().and_then(|recorded| recorded.end(ended_ns)))
    }
}

impl Recorded {
    /// `None`: its trace is not sampled, and it is no error that is kept all the same.
    fn end(mut self, ended_ns: Option<u64>) -> Option<(&'static ExportQueue, Vec<u8>)> {
        let out = &mut self.bytes;
        wire::fixed64(out, field::END, ended_ns.unwrap_or_else(wire::now));
        if !self.is_sampled && !self.is_error {
            return None;
        }
        if !self.is_sampled {
            // Whoever finds it alone should know why.
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

/// A span that is over and waits to be sent. Dropped, it never was.
#[derive(Debug)]
#[must_use = "what is not sent never was"]
pub struct Finished(Option<(&'static ExportQueue, Vec<u8>)>);

impl Finished {
    pub fn send(self) {
        if let Some((queue, bytes)) = self.0 {
            queue.push(&bytes);
        }
    }
}
