//! The context of a request, and the state that all requests of a gateway share.

use std::{sync::Arc, time::Duration};

use axum::Router;
use faultline_chassis::{
    Drain, Metrics, TraceContext,
    server::Hosts,
    telemetry::{ClientSpan, SharedSpan},
};
use faultline_proto::{Failure, reason, v1::Caller};
use http::request::Parts;

use crate::{
    cards::{cache::CardCache, card::CardSettings},
    coordinators::pool::Pool,
    http::{
        auth::{Authenticator, Principal, Scope},
        failure::{ErrorTable, Reporter},
        metrics::{HttpMetrics, RequestRecord},
        trace_link::TraceLink,
    },
    protocol::{binding::Binding, operation::Operation},
};

/// The state that all requests of a gateway share. Made once by `Service::run`; its parts are
/// immutable or synchronize themselves, so requests read it without a lock.
pub(crate) struct Gateway {
    pub(crate) pool: Pool,
    /// Signalled when the gateway shall leave; health answers accordingly.
    pub(crate) drain: Drain,
    /// The tonic services, called by `bindings::grpc`.
    pub(crate) grpc: Router,
    pub(crate) cards: CardSettings,
    pub(crate) card_cache: CardCache,
    pub(crate) authenticator: Authenticator,
    pub(crate) hosts: Hosts,
    /// Whether operators may change tasks.
    pub(crate) operators_act: bool,
    pub(crate) trace_link: Option<TraceLink>,
    pub(crate) error_table: ErrorTable,
    pub(crate) metrics: Metrics,
    pub(crate) http_metrics: Arc<HttpMetrics>,
    /// Host and port of the coordinators, for spans.
    pub(crate) peer: (String, Option<u16>),
    /// Whether the port has TLS; then answers carry HSTS.
    pub(crate) is_tls: bool,
    /// Whether the console is served.
    pub(crate) console: bool,
}

impl Gateway {
    /// Begins the client span of a call to a coordinator.
    pub(crate) fn calling(&self, method: &str, parent: &TraceContext) -> ClientSpan {
        let (host, port) = &self.peer;
        ClientSpan::begin("gateway", method, parent).to(host, *port)
    }
}

/// One request, as all handlers need it. Made by the router after authentication; immutable but for
/// its span and its record. gRPC streams keep it until they end.
#[derive(Clone)]
pub(crate) struct RequestContext {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) head: Parts,
    /// Open until the answer, or the stream that it is, has ended.
    pub(crate) span: SharedSpan,
    /// The trace context for calls: a child of the one that the client sent.
    pub(crate) trace: TraceContext,
    /// The authenticated caller; `None` on public routes.
    pub(crate) principal: Option<Principal>,
    pub(crate) record: Arc<RequestRecord>,
}

impl RequestContext {
    /// The caller for a coordinator, without a trace: the span of the call adds it.
    pub(crate) fn caller(&self, wait: Duration) -> Caller {
        let timeout_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let caller = self.principal.as_ref().map(Principal::caller).unwrap_or_default();
        Caller { timeout_ms, ..caller }
    }

    /// Names the operation of an HTTP request on its span and in the metrics.
    pub(crate) fn set_operation(&self, operation: Operation) {
        self.span.with(|span| {
            span.set("a2a.method.name", operation.name());
        });
        self.record.set_operation(operation);
    }

    /// Ends the span of a gRPC call that was answered.
    pub(crate) fn record_success(&self) {
        self.span.with(|span| {
            span.rpc_ended(Ok(()));
        });
    }

    /// The text of a header. A value that is not text becomes `?`, which no header means.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap_or("?"))
    }

    /// Fails unless the token of the caller has this scope.
    pub(crate) fn require_scope(&self, scope: Scope) -> Result<(), Failure> {
        match &self.principal {
            Some(principal) => principal.require_scope(scope),
            None => Err(Failure::new(&reason::UNAUTHENTICATED_CALLER)),
        }
    }

    /// Whether clients of A2A 0.3 are served.
    pub(crate) fn serves_v03(&self) -> bool {
        self.gateway.cards.v03
    }

    pub(crate) fn serves(&self, binding: Binding) -> bool {
        self.gateway.cards.bindings.contains(&binding)
    }

    pub(crate) fn reporter(&self) -> Reporter {
        let span = self.span.clone();
        let trace = self.trace.clone();
        let record = Arc::clone(&self.record);
        Reporter { span, trace, table: self.gateway.error_table, record }
    }
}
