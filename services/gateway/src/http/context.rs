//! The context of a request, and what all requests of a gateway share.

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

/// What every request shares.
pub(crate) struct Gateway {
    pub(crate) pool: Pool,
    /// It is told to leave.
    pub(crate) drain: Drain,
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
    pub(crate) peer: (String, Option<u16>),
    /// Clients are told to keep to it.
    pub(crate) is_tls: bool,
    /// Whether the console is served.
    pub(crate) console: bool,
}

impl Gateway {
    /// The span of a call to the coordinator.
    pub(crate) fn calling(&self, method: &str, parent: &TraceContext) -> ClientSpan {
        let (host, port) = &self.peer;
        ClientSpan::begin("gateway", method, parent).to(host, *port)
    }
}

/// One request, as far as all handlers need it.
#[derive(Clone)]
pub(crate) struct RequestContext {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) head: Parts,
    /// Open for as long as anything of the answer is under way.
    pub(crate) span: SharedSpan,
    /// What is handed on: a child of what the client sent.
    pub(crate) trace: TraceContext,
    /// Who asks; nobody where it does not matter.
    pub(crate) principal: Option<Principal>,
    pub(crate) record: Arc<RequestRecord>,
}

impl RequestContext {
    /// The caller, in no trace yet: that is of the call that is made for him.
    pub(crate) fn caller(&self, wait: Duration) -> Caller {
        let timeout_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let who = self.principal.as_ref().map(Principal::caller).unwrap_or_default();
        Caller { timeout_ms, ..who }
    }

    /// It is known what an HTTP request asks for.
    pub(crate) fn set_operation(&self, operation: Operation) {
        self.span.with(|span| {
            span.set("a2a.method.name", operation.name());
        });
        self.record.set_operation(operation);
    }

    /// A gRPC call is answered.
    pub(crate) fn record_success(&self) {
        self.span.with(|span| {
            span.rpc_ended(Ok(()));
        });
    }

    /// A header that is text. What is not text is as good as absent, except that it is not empty.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap_or("?"))
    }

    /// Refuses what the one who asks may not do.
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
