//! Semantic conventions of spans: the attributes of calls, tasks and failures, and the rules that
//! decide which spans are errors. OpenTelemetry's names where they exist, `faultline.*` for the
//! rest.

use std::fmt;

use faultline_proto::{
    Failure,
    a2a::{self, TaskState, stream_response::Payload},
    failure::state_word,
    reason::code_name,
    v1,
};
use tonic::Code;

use super::{
    export_queue,
    span::{Span, SpanKind},
};

/// Renamed in versions after 1.44 of the conventions, so it is defined only here.
pub const RPC_STATUS: &str = "rpc.response.status_code";

/// The result of a call.
pub type Outcome<'a> = Result<(), &'a Failure>;

impl Span {
    /// Attributes of a call of A2A's service, on either side: `lf.a2a.v1.A2AService/{method}`.
    pub fn rpc(&mut self, role: &str, method: &str) -> &mut Self {
        self.role(role).set("rpc.system.name", "grpc");
        self.set_text("rpc.method", format_args!("lf.a2a.v1.A2AService/{method}"));
        self.set("a2a.method.name", method).mark_chain()
    }

    /// Attributes of an HTTP request that is served here.
    pub fn http(&mut self, role: &str, verb: &str, route: &str) -> &mut Self {
        self.role(role).set("http.request.method", verb).set("http.route", route).mark_chain()
    }

    /// Marks a span that leads to an agent, for OpenInference.
    pub(super) fn mark_chain(&mut self) -> &mut Self {
        if self.is_recorded() && export_queue::openinference() {
            self.set("openinference.span.kind", "CHAIN")
        } else {
            self
        }
    }

    /// The service of the mesh that records the span. Some backends drop the resource, which has it
    /// too.
    pub fn role(&mut self, role: &str) -> &mut Self {
        self.set("faultline.role", role)
    }

    /// Attributes of an agent's work on a task.
    pub fn agent(
        &mut self,
        agent: &str,
        task_id: impl fmt::Display,
        context_id: &str,
    ) -> &mut Self {
        self.set("gen_ai.operation.name", "invoke_agent");
        self.set("gen_ai.provider.name", "faultline");
        self.set("gen_ai.agent.name", agent);
        self.set("gen_ai.conversation.id", context_id);
        self.set_text("a2a.task.id", format_args!("{task_id}"));
        if self.is_recorded() && export_queue::openinference() {
            self.set("openinference.span.kind", "AGENT");
            self.set("agent.name", agent);
            self.set("session.id", context_id);
        }
        self
    }

    /// Attributes at the end of a call.
    pub fn rpc_ended(&mut self, outcome: Outcome<'_>) -> &mut Self {
        match outcome {
            Ok(()) => self.set(RPC_STATUS, "OK"),
            Err(failure) => {
                let name = code_name(failure.code());
                self.set(RPC_STATUS, name);
                self.failed_as(failure, name)
            }
        }
    }

    /// Attributes of an abandoned call.
    pub(super) fn abandoned(&mut self, is_rpc: bool) -> &mut Self {
        if is_rpc {
            self.set(RPC_STATUS, "CANCELLED");
        }
        match self.kind() {
            Some(SpanKind::Client) => {
                self.error("CANCELLED", "the caller did not wait for the answer")
            }
            _ => self,
        }
    }

    /// Attributes and status of failed work.
    pub fn failed(&mut self, failure: &v1::Failure) -> &mut Self {
        self.failed_as(failure, &failure.reason)
    }

    fn failed_as(&mut self, failure: &v1::Failure, error_type: &str) -> &mut Self {
        if !self.is_recorded() {
            return self;
        }
        self.failure_event(failure);
        let of = Failure::from_record(failure.clone());
        let root = failure.causes.last().map_or(&failure.reason, |root| &root.reason);
        self.set("faultline.failure.id", &failure.id);
        self.set("faultline.failure.reason", &failure.reason);
        self.set("faultline.failure.plane", enum_label(failure.plane().as_str_name()));
        self.set("faultline.failure.severity", enum_label(failure.severity().as_str_name()));
        self.set("faultline.failure.disposition", enum_label(of.disposition().as_str_name()));
        self.set("faultline.failure.retryable", of.may_retry());
        self.set("faultline.failure.hop", failure.hop);
        self.set("faultline.failure.root.reason", root);
        self.set_non_empty("faultline.failure.origin.agent", of.origin_agent());
        self.set_non_empty("faultline.failure.business_code", &failure.business_code);
        if self.is_error(of.code()) {
            self.error(error_type, &failure.public_message)
        } else {
            self
        }
    }

    /// Only some codes are errors on a server span (they blame the server); every failure is one on
    /// a client span.
    fn is_error(&self, code: Code) -> bool {
        self.kind() != Some(SpanKind::Server) || is_server_error(code)
    }

    /// Adds an event for a failure that passed through this span. In the span where the failure
    /// originated it is an exception event, too.
    pub fn failure_event(&mut self, failure: &v1::Failure) -> &mut Self {
        if !self.is_recorded() {
            return self;
        }
        let cancelled = failure.code == Code::Cancelled as i32;
        if !cancelled && self.context().is_span(&failure.trace_id, &failure.span_id) {
            let about = [
                ("exception.type", failure.reason.as_str().into()),
                ("exception.message", failure.public_message.as_str().into()),
            ];
            self.event("exception", &about);
        }
        let code = code_name(Code::from_i32(failure.code));
        let mut about = vec![
            ("faultline.failure.id", failure.id.as_str().into()),
            ("faultline.failure.hop", failure.hop.into()),
            ("faultline.failure.reason", failure.reason.as_str().into()),
            ("faultline.failure.code", code.into()),
        ];
        if !failure.business_code.is_empty() {
            let code = failure.business_code.as_str().into();
            about.push(("faultline.failure.business_code", code));
        }
        // The cause below, for a failure that this hop only wrapped.
        if let Some(below) = failure.causes.get(1).filter(|_| failure.hop > 0) {
            about.push(("faultline.failure.wrapped_reason", below.reason.as_str().into()));
            about.push(("faultline.failure.downstream.agent", below.agent.as_str().into()));
        }
        self.event("faultline.failure", &about)
    }

    /// Attributes of the task in the response of a call.
    pub fn task(&mut self, task: &a2a::Task) -> &mut Self {
        if !self.is_recorded() || task.id.is_empty() {
            return self;
        }
        self.set("a2a.task.id", &task.id);
        self.set("gen_ai.conversation.id", &task.context_id);
        let Some(status) = &task.status else { return self };
        self.state(status.state());
        match Failure::of_task(status, task.metadata.as_ref()) {
            Some(failure) => self.failure_event(&failure),
            None => self,
        }
    }

    /// Attributes of one frame of a stream: the first names the task, the last has its final state.
    pub fn frame(&mut self, frame: &v1::Frame) -> &mut Self {
        let payload = frame.response.as_ref().and_then(|response| response.payload.as_ref());
        match payload.filter(|_| self.is_recorded()) {
            Some(Payload::Task(task)) => {
                self.set("a2a.task.id", &task.id);
                self.set("gen_ai.conversation.id", &task.context_id)
            }
            Some(Payload::StatusUpdate(update)) => match &update.status {
                Some(status) if is_over(status.state()) => {
                    self.state(status.state());
                    match Failure::of_task(status, update.metadata.as_ref()) {
                        Some(failure) => self.failure_event(&failure),
                        None => self,
                    }
                }
                _ => self,
            },
            _ => self,
        }
    }

    pub fn state(&mut self, state: TaskState) -> &mut Self {
        self.set("a2a.task.state", state_word(state))
    }
}

fn is_over(state: TaskState) -> bool {
    use TaskState::{Canceled, Completed, Failed, Rejected};
    matches!(state, Completed | Failed | Canceled | Rejected)
}

/// The codes that are errors on the server side.
pub fn is_server_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// `PLANE_EXECUTION` as `execution`; an unset value as `unspecified`.
fn enum_label(name: &str) -> &'static str {
    match name {
        "PLANE_TRANSPORT" => "transport",
        "PLANE_PROTOCOL" => "protocol",
        "PLANE_EXECUTION" => "execution",
        "SEVERITY_RECOVERABLE" => "recoverable",
        "SEVERITY_FATAL" | "SEVERITY_UNSPECIFIED" => "fatal",
        "DISPOSITION_RETRY_SAME" => "retry_same",
        "DISPOSITION_MODEL_RETRY" => "model_retry",
        "DISPOSITION_REPORT" => "report",
        "DISPOSITION_ABORT" => "abort",
        _ => "unspecified",
    }
}
