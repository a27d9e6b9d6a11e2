//! W3C trace context. A trace id always exists, exporter or not: the edge makes one when the
//! caller brought none, and every hop hands on a child of what it got.

use std::{fmt, str::FromStr};

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry::{Context, trace::TraceContextExt};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The header and metadata key.
pub const TRACEPARENT: &str = "traceparent";

/// One `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl TraceContext {
    /// The start of a new trace.
    pub fn root() -> Self {
        Self { trace_id: rand::random::<u128>() | 1, span_id: random_span(), flags: 1 }
    }

    /// What the caller sent, or a new trace when that is absent or malformed.
    pub fn from_header(header: Option<&str>) -> Self {
        header.and_then(|h| h.parse().ok()).unwrap_or_else(Self::root)
    }

    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }

    /// Makes `span` a child of this context and gives the context to hand on: the span's own when
    /// an exporter listens, else a fresh child that only carries the ids.
    pub fn enter(self, span: &Span) -> Self {
        if span.is_disabled() {
            return Self { span_id: random_span(), ..self };
        }
        let _ = span.set_parent(Context::new().with_remote_span_context(self.into()));
        let own = span.context().span().span_context().clone();
        match own.is_valid() && own.trace_id() == TraceId::from(self.trace_id) {
            true if !own.is_remote() => own.into(),
            _ => Self { span_id: random_span(), ..self },
        }
    }
}

fn random_span() -> u64 {
    rand::random::<u64>() | 1
}

impl From<TraceContext> for SpanContext {
    fn from(c: TraceContext) -> SpanContext {
        SpanContext::new(
            TraceId::from(c.trace_id),
            SpanId::from(c.span_id),
            TraceFlags::new(c.flags),
            true,
            TraceState::default(),
        )
    }
}

impl From<SpanContext> for TraceContext {
    fn from(c: SpanContext) -> Self {
        Self {
            trace_id: u128::from_be_bytes(c.trace_id().to_bytes()),
            span_id: u64::from_be_bytes(c.span_id().to_bytes()),
            flags: c.trace_flags().to_u8(),
        }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// The text is not a `traceparent` that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATraceparent;

impl FromStr for TraceContext {
    type Err = NotATraceparent;

    fn from_str(text: &str) -> Result<Self, NotATraceparent> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        let [version, trace, span, flags, rest @ ..] = parts.as_slice() else {
            return Err(NotATraceparent);
        };
        let hex = |s: &str, len| {
            let legal = s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            if s.len() == len && legal { u128::from_str_radix(s, 16).ok() } else { None }
        };
        let version = hex(version, 2).ok_or(NotATraceparent)?;
        // A later version may add fields; this one may not, and ff is forbidden.
        if version == 0xff || (version == 0 && !rest.is_empty()) {
            return Err(NotATraceparent);
        }
        let trace_id = hex(trace, 32).filter(|n| *n != 0).ok_or(NotATraceparent)?;
        let span_id = hex(span, 16).filter(|n| *n != 0).ok_or(NotATraceparent)?;
        let flags = hex(flags, 2).ok_or(NotATraceparent)?;
        Ok(Self { trace_id, span_id: span_id as u64, flags: flags as u8 & 0x03 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_reads_back() {
        let context: TraceContext = GOOD.parse().unwrap();
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn a_malformed_one_starts_a_new_trace() {
        for bad in [
            "",
            "garbage",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(bad.parse::<TraceContext>(), Err(NotATraceparent), "{bad}");
        }
        assert_ne!(TraceContext::from_header(Some("x")), TraceContext::from_header(None));
    }

    #[test]
    fn a_hop_keeps_the_trace_and_changes_the_span() {
        let parent: TraceContext = GOOD.parse().unwrap();
        let child = parent.enter(&Span::none());
        assert_eq!(child.trace_id(), parent.trace_id());
        assert_ne!(child.span_id(), parent.span_id());
    }
}
