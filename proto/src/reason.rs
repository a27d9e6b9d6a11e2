//! The reason table: every way to fail, with all its fixed properties. The reason is the key that
//! survives every hop; gRPC code, HTTP status and JSON-RPC number are projections of it, and
//! several reasons share each of them. The table has plain integers; the gateway turns them into
//! bytes.

use std::time::Duration;

use tonic::Code;

/// Domain of the reasons that A2A defines.
pub const A2A: &str = "a2a-protocol.org";
/// Domain of faultline's own reasons.
pub const OURS: &str = "faultline.dev";
/// The delay for a reason of the class [`Retry::Delay`] without an explicit one.
pub const DELAY_DEFAULT: Duration = Duration::from_secs(1);

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    /// `ErrorInfo.reason`.
    pub name: &'static str,
    /// `ErrorInfo.domain`.
    pub domain: &'static str,
    pub code: Code,
    pub http: u16,
    pub jsonrpc: i32,
    pub retry: Retry,
    pub actor: Actor,
    /// The default public message.
    pub title: &'static str,
    /// The meaning of the reason. The next step depends on the whole failure: see `advice`.
    pub help: &'static str,
}

impl Reason {
    /// The gRPC code and HTTP status of A2A 1.0.0, of which 1.0.1 changed six rows.
    pub fn in_1_0_0(&self) -> (Code, u16) {
        match self.name {
            _ if self.domain != A2A => (self.code, self.http),
            "TASK_NOT_CANCELABLE" => (self.code, 409),
            "PUSH_NOTIFICATION_NOT_SUPPORTED"
            | "UNSUPPORTED_OPERATION"
            | "VERSION_NOT_SUPPORTED" => (Code::Unimplemented, self.http),
            "CONTENT_TYPE_NOT_SUPPORTED" => (self.code, 415),
            "INVALID_AGENT_RESPONSE" => (self.code, 502),
            _ => (self.code, self.http),
        }
    }
}

/// The retry class of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A retry would fail again.
    Never,
    /// A retry may succeed after a pause.
    Yes,
    /// A retry may succeed, but the work may have been done: only safe if repeating does no harm.
    Idempotent,
    /// A retry may succeed, but not before the delay of the failure.
    Delay,
    /// Not this call but the surrounding unit may be retried.
    Enclosing,
    /// One retry with fresh credentials may succeed.
    Reauthenticate,
}

impl Retry {
    /// The default for a failure without a flag of its own.
    pub fn may_retry(self) -> bool {
        matches!(self, Retry::Yes | Retry::Delay | Retry::Enclosing)
    }

    pub fn describe(self) -> &'static str {
        match self {
            Retry::Never => "no: it would fail again",
            Retry::Yes => "yes, after a pause",
            Retry::Idempotent => "only if repeating does no harm: the work may have been done",
            Retry::Delay => "yes, after the delay that came with it, or 1s",
            Retry::Enclosing => "not this call, but the whole unit of work around it",
            Retry::Reauthenticate => "once, with fresh credentials",
        }
    }
}

/// The party that has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The program that made the call.
    Caller,
    /// The author of the failed agent.
    Author,
    /// The operator of the mesh.
    Operator,
    /// No party: the condition passes by itself.
    Nobody,
}

impl Actor {
    pub fn describe(self) -> &'static str {
        match self {
            Actor::Caller => "the caller",
            Actor::Author => "the author of the agent",
            Actor::Operator => "the operator of the mesh",
            Actor::Nobody => "nobody, it passes",
        }
    }
}

/// The row of a reason, if this version knows it.
pub fn find(domain: &str, name: &str) -> Option<&'static Reason> {
    TABLE.iter().find(|r| r.name == name && r.domain == domain).copied()
}

/// The row of a reason by its name, in any domain and case, for input of people.
pub fn named(name: &str) -> Option<&'static Reason> {
    TABLE.iter().find(|r| r.name.eq_ignore_ascii_case(name)).copied()
}

/// The generic row of a code, to which an unknown reason degrades. A peer that fails with OK gets
/// UNKNOWN.
pub fn generic(code: Code) -> &'static Reason {
    match code {
        Code::Cancelled => &CANCELLED,
        Code::Ok | Code::Unknown => &UNKNOWN,
        Code::InvalidArgument => &INVALID_ARGUMENT,
        Code::DeadlineExceeded => &DEADLINE_EXCEEDED,
        Code::NotFound => &NOT_FOUND,
        Code::AlreadyExists => &ALREADY_EXISTS,
        Code::PermissionDenied => &PERMISSION_DENIED,
        Code::ResourceExhausted => &RESOURCE_EXHAUSTED,
        Code::FailedPrecondition => &FAILED_PRECONDITION,
        Code::Aborted => &ABORTED,
        Code::OutOfRange => &OUT_OF_RANGE,
        Code::Unimplemented => &UNIMPLEMENTED,
        Code::Internal => &INTERNAL,
        Code::Unavailable => &UNAVAILABLE,
        Code::DataLoss => &DATA_LOSS,
        Code::Unauthenticated => &UNAUTHENTICATED,
    }
}

/// The name of a code as gRPC spells it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        other => generic(other).name,
    }
}

/// HTTP status of a code, by `google.rpc.Code`.
const fn http_of(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::Cancelled => 499,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::DeadlineExceeded => 504,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::PermissionDenied => 403,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::Unauthenticated => 401,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
    }
}

/// The JSON-RPC number of a reason without a number in A2A: outside every reserved range, and
/// unique for its code. Invalid arguments and internal errors keep JSON-RPC's own numbers.
const fn jsonrpc_of(code: Code) -> i32 {
    match code {
        Code::InvalidArgument => -32602,
        Code::Internal => -32603,
        other => -31000 - other as i32,
    }
}

macro_rules! table {
    ($($name:ident $domain:ident $code:ident $retry:ident $actor:ident
        $(http=$http:literal)? $(jsonrpc=$jsonrpc:literal)? : $title:literal, $help:literal;)*) => {
        $(
            #[doc = $title]
            pub static $name: Reason = Reason {
                name: stringify!($name),
                domain: $domain,
                code: Code::$code,
                http: table!(@or http_of(Code::$code) $(, $http)?),
                jsonrpc: table!(@or jsonrpc_of(Code::$code) $(, $jsonrpc)?),
                retry: Retry::$retry,
                actor: Actor::$actor,
                title: $title,
                help: $help,
            };
        )*
        /// Every row, in reading order.
        pub static TABLE: &[&Reason] = &[$(&$name),*];
    };
    (@or $default:expr) => { $default };
    (@or $default:expr, $given:literal) => { $given };
}

table! {
    // The sixteen codes of gRPC, to which unknown reasons degrade.
    CANCELLED OURS Cancelled Never Caller: "cancelled",
        "The work was asked to stop, and it stopped.";
    UNKNOWN OURS Unknown Idempotent Author: "failed for an unknown reason",
        "The agent failed with an error it did not classify. The text is masked; the log of the \
         worker has it whole under the failure id. A typed error says more.";
    INVALID_ARGUMENT OURS InvalidArgument Never Caller: "invalid argument",
        "Something in the request is wrong in every state of the system. The violations name the \
         fields.";
    DEADLINE_EXCEEDED OURS DeadlineExceeded Idempotent Caller: "deadline exceeded",
        "The time given ran out. The work may have been done all the same.";
    NOT_FOUND OURS NotFound Never Caller: "not found",
        "The thing that was named does not exist, or the caller may not see it.";
    ALREADY_EXISTS OURS AlreadyExists Never Caller: "already exists",
        "The thing to be made exists already, or an Idempotency-Key was used with another body.";
    PERMISSION_DENIED OURS PermissionDenied Never Caller: "permission denied",
        "The caller is known but may not do this. The message names what was refused.";
    RESOURCE_EXHAUSTED OURS ResourceExhausted Delay Operator: "resource exhausted",
        "A quota or a queue is full. A delay may come with the failure.";
    FAILED_PRECONDITION OURS FailedPrecondition Never Caller: "failed precondition",
        "The system is not in the state that this needs. The message says what is missing.";
    ABORTED OURS Aborted Enclosing Caller: "aborted",
        "The work lost a race with other work, so that its whole unit has to start from its \
         beginning.";
    OUT_OF_RANGE OURS OutOfRange Never Caller: "out of range",
        "A value lies beyond what exists, such as a page past the last one.";
    UNIMPLEMENTED OURS Unimplemented Never Caller: "not implemented",
        "The peer does not know this operation. Its agent card lists what it offers.";
    INTERNAL OURS Internal Never Operator: "internal error",
        "An invariant of the mesh or the agent was violated. No other request avoids it. The log \
         has the details under the failure id.";
    UNAVAILABLE OURS Unavailable Yes Nobody: "unavailable",
        "The service cannot be reached right now. Most often that passes.";
    DATA_LOSS OURS DataLoss Never Operator: "data lost",
        "Stored data is gone or damaged. No request can avoid that.";
    UNAUTHENTICATED OURS Unauthenticated Reauthenticate Caller: "not authenticated",
        "The call carried no credentials, or none that are valid here.";

    // The nine reasons of A2A.
    TASK_NOT_FOUND A2A NotFound Never Caller jsonrpc=-32001: "task not found",
        "No task has this id, or it belongs to another agent than the one addressed, or it has \
         expired. Task ids are made by the server, and a send returns them.";
    TASK_NOT_CANCELABLE A2A FailedPrecondition Never Caller jsonrpc=-32002: "task not cancelable",
        "The task has already ended, and a final state never changes.";
    PUSH_NOTIFICATION_NOT_SUPPORTED A2A FailedPrecondition Never Caller jsonrpc=-32003:
        "push notifications are not supported",
        "The agent card does not offer push notifications. Streams and polling remain.";
    UNSUPPORTED_OPERATION A2A FailedPrecondition Never Caller jsonrpc=-32004:
        "unsupported operation",
        "The task is in a state that does not allow this: a message goes to a new task or to one \
         that waits for input, and a subscription to one that has not ended.";
    CONTENT_TYPE_NOT_SUPPORTED A2A InvalidArgument Never Caller jsonrpc=-32005:
        "content type not supported",
        "The agent does not take this media type. Its card lists what it takes.";
    INVALID_AGENT_RESPONSE A2A Internal Never Author jsonrpc=-32006: "invalid agent response",
        "The agent broke the protocol: it reported something that cannot be true. The log names \
         the report.";
    EXTENDED_AGENT_CARD_NOT_CONFIGURED A2A FailedPrecondition Never Operator jsonrpc=-32007:
        "no extended agent card is configured",
        "The card promises an extended card, but none is configured.";
    EXTENSION_SUPPORT_REQUIRED A2A FailedPrecondition Never Caller jsonrpc=-32008:
        "extension support required",
        "The agent requires an extension that the caller did not name in A2A-Extensions.";
    VERSION_NOT_SUPPORTED A2A FailedPrecondition Never Caller jsonrpc=-32009:
        "protocol version not supported",
        "The server does not speak the version that the header A2A-Version names. Without the \
         header a request counts as version 0.3.";

    // JSON-RPC's own errors, in A2A's domain, where its clients expect them.
    JSON_PARSE A2A InvalidArgument Never Caller jsonrpc=-32700: "invalid JSON payload",
        "The body is not JSON. The message says where reading stopped.";
    INVALID_REQUEST A2A InvalidArgument Never Caller jsonrpc=-32600:
        "request payload validation error",
        "The body is JSON but no JSON-RPC 2.0 request. It needs jsonrpc, id, method and params.";
    METHOD_NOT_FOUND A2A Unimplemented Never Caller http=404 jsonrpc=-32601: "method not found",
        "No such method here. The names are those of A2A 1.0, such as SendMessage and GetTask.";
    INVALID_PARAMS A2A InvalidArgument Never Caller jsonrpc=-32602: "invalid parameters",
        "The parameters do not fit the method. The violations name the fields and what is wrong.";
    INTERNAL_ERROR A2A Internal Never Operator jsonrpc=-32603: "internal error",
        "The server failed in a way it did not foresee. The log has it under the failure id.";

    // Faultline's own reasons.
    UNAUTHENTICATED_CALLER OURS Unauthenticated Reauthenticate Caller: "caller not authenticated",
        "The mesh does not know the caller. The agent card lists the schemes of credentials. This \
         is not about credentials an agent needs elsewhere: that is a task in AUTH_REQUIRED.";
    INSUFFICIENT_SCOPE OURS PermissionDenied Never Caller: "insufficient scope",
        "The credentials are valid but lack a scope. The message names it.";
    RATE_LIMITED OURS ResourceExhausted Delay Caller: "rate limited",
        "Too much at once. The delay that came with it says when there is room again.";
    AGENT_UNAVAILABLE OURS Unavailable Yes Operator: "agent unavailable",
        "The agent is known, but no worker that offers it is attached.";
    TASK_TIMEOUT OURS DeadlineExceeded Idempotent Caller: "task timed out",
        "The task used up its time, and may have done part of the work. The tree of the task \
         shows at which hop the time went.";
    CONTENT_TOO_LARGE OURS InvalidArgument Never Caller http=413: "content too large",
        "The message is bigger than the mesh takes. A URL can stand for the bytes.";
    SKILL_NOT_FOUND OURS NotFound Never Caller: "skill not found",
        "The agent has no such skill. Its card lists them.";
    AGENT_NOT_FOUND OURS NotFound Never Caller: "agent not found",
        "No agent of this name was ever offered here. `POST /mesh/Agents` lists them.";
    WORKER_LOST OURS Unavailable Yes Operator: "worker lost",
        "The worker died or fell silent while it ran the task, as often as attempts were allowed. \
         Look for a crash in the worker's log: a task that kills its worker will do it again.";
    CIRCUIT_OPEN OURS Unavailable Delay Nobody: "circuit open",
        "The agent failed several times in a row, so its circuit breaker is open: it gets no tasks \
         for a while.";
    DEADLINE_BUDGET_EXHAUSTED OURS DeadlineExceeded Never Caller: "no time left for this call",
        "The rest of the deadline is too short for any useful work, so nothing was tried.";
    TASK_REJECTED OURS FailedPrecondition Never Caller: "task rejected",
        "The agent looked at the task and declined it. Its message says why.";
    TASK_FAILED OURS Unknown Idempotent Author: "task failed",
        "A peer reported a failed task and did not say why.";
    MIN_RESULTS_NOT_MET OURS Unavailable Yes Caller: "too few agents responded",
        "A fan-out needed more answers than it got. The failures of the branches say why.";
    INPUT_TIMEOUT OURS DeadlineExceeded Never Caller: "nobody answered in time",
        "The task asked for input and the time to answer ran out.";
    DELEGATION_TOO_DEEP OURS FailedPrecondition Never Author: "delegation too deep",
        "Agents called agents deeper than the mesh allows, most likely in a circle.";
    AGENT_PANICKED OURS Internal Never Author: "the agent panicked",
        "The agent's code panicked. The worker keeps running; its log has the message and the \
         location.";
    TASK_TOO_LARGE OURS ResourceExhausted Never Author: "the task holds too much",
        "The task wrote more artifacts, or larger ones, than one task may hold.";
    STORE_UNAVAILABLE OURS Unavailable Yes Operator: "the store is unavailable",
        "The coordinator cannot write its store: the disk may be full or the database away. \
         Nothing that was acknowledged is lost. The message says whether the call may have been \
         carried out.";
    OUTCOME_UNKNOWN OURS Unavailable Idempotent Caller: "what became of the call is not known",
        "A connection or a service broke while the call was under way, so it may have been done. \
         Only a send with an Idempotency-Key can be repeated without a check, and only with the \
         same key. A stream can be resumed with Last-Event-ID.";
    CONNECT_TIMEOUT OURS Unavailable Yes Operator: "no connection in time",
        "A peer outside the mesh did not take the connection in time. Nothing was sent to it.";
    WRITE_TIMEOUT OURS DeadlineExceeded Idempotent Operator: "the request was not taken in time",
        "A peer outside the mesh stopped reading the request. It may have seen enough to act on.";
    POOL_TIMEOUT OURS ResourceExhausted Yes Operator: "no connection was free in time",
        "As many calls to this peer are under way as may be. Nothing was sent.";
    READ_TIMEOUT OURS DeadlineExceeded Idempotent Operator: "the peer fell silent",
        "A peer outside the mesh accepted the call and then sent nothing for too long. It may \
         still work on it. Models are slow, and their agents need a long read timeout.";
    CALL_TIMEOUT OURS DeadlineExceeded Idempotent Operator: "the call took too long",
        "A peer outside the mesh kept sending but did not finish within the time of one call.";
    RECONNECT_EXHAUSTED OURS Unavailable Idempotent Operator: "the stream could not be resumed",
        "The stream of a task broke and could not be resumed. The task may go on.";
    OVERLOADED OURS ResourceExhausted Delay Operator: "overloaded",
        "A bounded queue of the mesh is full. That passes when work is done.";
}

#[cfg(test)]
mod tests;
