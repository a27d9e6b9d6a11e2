//! Guards around a span: one shared by several owners, and one for a call that may be dropped
//! before its answer.

use std::sync::Arc;

use faultline_proto::{Failure, a2a, v1};
use parking_lot::Mutex;

use super::TraceContext;
use super::{Span, SpanKind, child_context, link};

/// A span with several owners, behind a mutex. It ends when the last owner is dropped. Empty if the
/// span is not recorded.
#[derive(Clone, Debug, Default)]
pub struct SharedSpan(Option<Arc<Mutex<Span>>>);

impl From<Span> for SharedSpan {
    fn from(span: Span) -> Self {
        Self(span.is_recorded().then(|| Arc::new(Mutex::new(span))))
    }
}

impl SharedSpan {
    /// Accesses the span if it is recorded.
    pub fn with(&self, say: impl FnOnce(&mut Span)) {
        if let Some(span) = &self.0 {
            say(&mut span.lock());
        }
    }
}

/// The span of an outgoing call. Dropped before `ended`, it is recorded as abandoned.
#[derive(Debug)]
pub struct ClientSpan {
    span: Span,
    is_open: bool,
    is_rpc: bool,
}

impl ClientSpan {
    /// A call of A2A's service by gRPC: `lf.a2a.v1.A2AService/{method}`.
    pub fn begin(role: &str, method: &str, parent: &TraceContext) -> Self {
        let name = format_args!("lf.a2a.v1.A2AService/{method}");
        let mut span = Span::named(SpanKind::Client, child_context(parent), parent, None, name);
        span.rpc(role, method);
        Self { span, is_open: true, is_rpc: true }
    }

    /// A call of A2A's service by HTTP, with the A2A method in place of the path.
    pub fn http(role: &str, verb: &str, method: &str, parent: &TraceContext) -> Self {
        let name = format_args!("{verb} {method}");
        let mut span = Span::named(SpanKind::Client, child_context(parent), parent, None, name);
        span.role(role).set("http.request.method", verb).set("a2a.method.name", method);
        span.mark_chain();
        Self { span, is_open: true, is_rpc: false }
    }

    /// Sets the address of the server.
    pub fn to(mut self, host: &str, port: Option<u16>) -> Self {
        self.span.set_non_empty("server.address", host);
        if let Some(port) = port {
            self.span.set("server.port", port);
        }
        self
    }

    /// Links a retry to the failed call before it.
    pub fn retry_of(mut self, before: Option<&TraceContext>) -> Self {
        if let Some(before) = before {
            self.span.link(before, link::RETRY_OF);
        }
        self
    }

    pub fn context(&self) -> &TraceContext {
        self.span.context()
    }

    /// Records a frame of the response stream.
    pub fn frame(&mut self, frame: &v1::Frame) {
        self.span.frame(frame);
    }

    /// Records the result of the call.
    pub fn ended(&mut self, outcome: Result<Option<&a2a::Task>, &Failure>) {
        if std::mem::replace(&mut self.is_open, false) {
            if let Ok(Some(task)) = outcome {
                self.span.task(task);
            }
            match outcome {
                _ if self.is_rpc => self.span.rpc_ended(outcome.map(drop)),
                Err(failure) => self.span.failed(failure),
                Ok(_) => &mut self.span,
            };
        }
    }
}

impl Drop for ClientSpan {
    fn drop(&mut self) {
        if self.is_open {
            self.span.abandoned(self.is_rpc);
        }
    }
}
