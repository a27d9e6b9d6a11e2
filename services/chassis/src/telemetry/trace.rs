//! W3C trace context. A trace id always exists, exporter or not: the edge makes one for a caller
//! without one, and every hop propagates a child of the received context. Between processes and in
//! the store a context is text; no live span crosses a boundary.

use std::{fmt, str::FromStr, sync::Arc};

use http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

use super::sampler;
use crate::limits;

/// The header and metadata key.
pub const TRACEPARENT: &str = "traceparent";
/// Data of other vendors: propagated whole, never parsed.
pub const TRACESTATE: &str = "tracestate";

const SAMPLED: u8 = 0x01;
/// The known flags: sampled, and a random id.
const KNOWN: u8 = 0x03;

/// One `traceparent`, and the `tracestate` that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    /// 0: no span.
    span_id: u64,
    flags: u8,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// The root of a new trace, with a span id that no recorded span has.
    pub fn root() -> Self {
        Self { span_id: random_span(), ..Self::begin() }
    }

    /// A new trace without a span. The sampling decision is made here.
    pub fn begin() -> Self {
        let trace_id = rand::random::<u128>() | 1;
        let flags = u8::from(sampler::decides(trace_id, None));
        Self { trace_id, span_id: 0, flags, state: None }
    }

    /// The context sent by a peer of this mesh, or a new trace if that is absent or malformed.
    pub fn from_header(header: Option<&str>) -> Self {
        header.and_then(|h| h.parse().ok()).unwrap_or_else(Self::begin)
    }

    /// The context with its `tracestate`.
    pub fn read(traceparent: &str, tracestate: &str) -> Self {
        match traceparent.parse::<Self>() {
            Ok(context) => context.with_state(tracestate),
            Err(NotATraceparent) => Self::begin(),
        }
    }

    /// The context of a caller at the edge, whose trace is always continued. The sampler decides on
    /// its export, and regards the caller's sampling flag only if the caller is `known`.
    pub fn at_edge(headers: &HeaderMap, known: bool) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let Some(Ok(mut context)) = text(TRACEPARENT).map(str::parse::<Self>) else {
            return Self::begin();
        };
        let asked = known.then(|| context.is_sampled());
        context.set_sampled(sampler::decides(context.trace_id, asked));
        let mut states = headers.get_all(TRACESTATE).iter();
        match (states.next(), states.next()) {
            (None, _) => context,
            (Some(one), None) => context.with_state(one.to_str().unwrap_or_default()),
            (Some(_), Some(_)) => {
                let all = headers.get_all(TRACESTATE).iter().filter_map(|v| v.to_str().ok());
                context.with_state(&all.collect::<Vec<_>>().join(","))
            }
        }
    }

    /// Keeps a state above the size limit not at all: a truncated one would be wrong.
    fn with_state(self, state: &str) -> Self {
        let state = state.trim();
        let fits = !state.is_empty() && state.len() <= limits::TRACESTATE_BYTES_MAX;
        Self { state: fits.then(|| state.into()), ..self }
    }

    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }

    /// Empty: there is none.
    pub fn state(&self) -> &str {
        self.state.as_deref().unwrap_or_default()
    }

    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    fn set_sampled(&mut self, yes: bool) {
        self.flags = if yes { self.flags | SAMPLED } else { self.flags & !SAMPLED };
    }

    /// A new trace with the same sampling decision, for work that continues much later.
    pub fn anew(&self) -> Self {
        let mut root = Self::root();
        root.set_sampled(self.is_sampled());
        root
    }

    /// The same trace with another span.
    pub fn with_span(&self, span_id: u64) -> Self {
        Self { span_id: span_id.max(1), ..self.clone() }
    }

    /// The same trace with a new span id.
    pub fn child(&self) -> Self {
        self.with_span(random_span())
    }

    pub(crate) fn trace_bytes(&self) -> [u8; 16] {
        self.trace_id.to_be_bytes()
    }

    pub(crate) fn span_bytes(&self) -> [u8; 8] {
        self.span_id.to_be_bytes()
    }

    pub(crate) fn has_span(&self) -> bool {
        self.span_id != 0
    }

    /// The context of a span's parent: the span of that id, or none.
    pub(crate) fn above(&self, parent: u64) -> Self {
        Self { span_id: parent, ..self.clone() }
    }

    pub(crate) fn without_span(self) -> Self {
        Self { span_id: 0, ..self }
    }

    pub(crate) fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether this is the span with that id.
    pub(crate) fn is_span(&self, trace_id: &str, span_id: &str) -> bool {
        u64::from_str_radix(span_id, 16) == Ok(self.span_id)
            && u128::from_str_radix(trace_id, 16) == Ok(self.trace_id)
    }

    /// Writes the context into the headers of a request.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Ok(value) = self.to_string().try_into() {
            headers.insert(TRACEPARENT, value);
        }
        if let Some(value) = self.state.as_ref().and_then(|state| state.parse().ok()) {
            headers.insert(TRACESTATE, value);
        }
    }
}

impl From<&TraceContext> for SpanContext {
    fn from(context: &TraceContext) -> Self {
        let state = TraceState::from_str(context.state()).unwrap_or_default();
        let trace = TraceId::from(context.trace_id);
        let span = SpanId::from(context.span_id);
        Self::new(trace, span, TraceFlags::new(context.flags), true, state)
    }
}

impl From<&SpanContext> for TraceContext {
    fn from(context: &SpanContext) -> Self {
        let plain = Self {
            trace_id: u128::from_be_bytes(context.trace_id().to_bytes()),
            span_id: u64::from_be_bytes(context.span_id().to_bytes()),
            flags: context.trace_flags().to_u8() & KNOWN,
            state: None,
        };
        plain.with_state(&context.trace_state().header())
    }
}

/// A deterministic span id for a thing with a name of its own. The end of the span can be recorded
/// after a crash without a stored id.
pub fn span_id_of(name: &[u8; 16], part: u64) -> u64 {
    let name = u128::from_be_bytes(*name);
    let mut mixed = (name >> 64) as u64 ^ (name as u64).rotate_left(32);
    for more in [name as u64, part] {
        // The finalizer of splitmix64: each bit of what goes in changes half of what comes out.
        mixed = (mixed ^ more).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed.max(1)
}

fn random_span() -> u64 {
    rand::random::<u64>() | 1
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// The text is not a usable `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATraceparent;

impl FromStr for TraceContext {
    type Err = NotATraceparent;

    fn from_str(text: &str) -> Result<Self, NotATraceparent> {
        let mut parts = text.trim().split('-');
        let mut hex = |len: usize| {
            let part = parts.next().filter(|part| part.len() == len).ok_or(NotATraceparent)?;
            let legal = part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            if !legal {
                return Err(NotATraceparent);
            }
            u128::from_str_radix(part, 16).map_err(|_| NotATraceparent)
        };
        let version = hex(2)?;
        let trace_id = hex(32)?;
        let span_id = hex(16)?;
        let flags = hex(2)?;
        // A later version may add fields; this one may not, and ff is forbidden.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return Err(NotATraceparent);
        }
        if trace_id == 0 || span_id == 0 {
            return Err(NotATraceparent);
        }
        Ok(Self { trace_id, span_id: span_id as u64, flags: flags as u8 & KNOWN, state: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_round_trips() {
        let context: TraceContext = GOOD.parse().unwrap();
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(context.is_span("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"));
    }

    #[test]
    fn malformed_traceparent_starts_a_new_trace() {
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
        assert!(!TraceContext::from_header(None).has_span(), "a new trace has no parent");
    }

    #[test]
    fn child_has_the_same_trace_and_another_span() {
        let parent = TraceContext::read(GOOD, "vendor=x");
        let child = parent.child();
        assert_eq!(child.trace_id(), parent.trace_id());
        assert_ne!(child.span_id(), parent.span_id());
        assert_eq!(child.state(), "vendor=x");
    }

    #[test]
    fn tracestate_is_propagated_whole_or_not_at_all() {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, GOOD.parse().unwrap());
        headers.append(TRACESTATE, "rojo=00f067aa0ba902b7".parse().unwrap());
        headers.append(TRACESTATE, "congo=t61rcWkgMzE".parse().unwrap());
        let context = TraceContext::at_edge(&headers, true);
        assert_eq!(context.state(), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
        let mut sent = HeaderMap::new();
        context.inject(&mut sent);
        assert_eq!(sent[TRACEPARENT], GOOD);
        assert_eq!(sent[TRACESTATE], context.state());
        let long = "x".repeat(limits::TRACESTATE_BYTES_MAX + 1);
        assert_eq!(TraceContext::read(GOOD, &long).state(), "");
    }

    #[test]
    fn sampling_flag_of_an_unknown_caller_is_ignored() {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, GOOD.replace("-01", "-00").parse().unwrap());
        assert!(!TraceContext::at_edge(&headers, true).is_sampled());
        assert!(TraceContext::at_edge(&headers, false).is_sampled(), "all are, unless set");
    }

    #[test]
    fn span_id_is_derived_from_the_name() {
        let ids: std::collections::HashSet<_> = (0..1000_u64)
            .flat_map(|n| {
                let mut name = [7; 16];
                name[8..].copy_from_slice(&n.to_be_bytes());
                [span_id_of(&name, 0), span_id_of(&name, 1)]
            })
            .collect();
        assert_eq!(ids.len(), 2000);
        assert_eq!(span_id_of(&[1; 16], 5), span_id_of(&[1; 16], 5));
    }
}
