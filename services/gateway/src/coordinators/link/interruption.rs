//! Interrupted calls: whether a call that lost its connection may be repeated safely, and the
//! failure that its caller gets. Pure: connections are not known here.

use std::time::Duration;

use faultline_proto::{
    Failure, reason,
    v1::{Caller, Origin, Plane, call},
};

/// The retry delay for failures of the gateway itself.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) const CONNECTION_LOST: &str = "the connection to the coordinator was lost";
pub(crate) const GATEWAY_LEAVES: &str = "the gateway is leaving";
pub(crate) const COORDINATOR_LEFT: &str = "the coordinator left";

/// The end of a call without an answer.
pub(crate) enum CallError {
    /// The coordinator answered with a failure.
    Failed(Failure),
    /// The connection ended during the call, for this reason. The outcome is unknown.
    Interrupted(&'static str),
    /// The connection ended before the call was sent: it had no effect.
    NotSent(Box<(Caller, call::Body)>),
    /// The coordinator left. It names the task that continues elsewhere, or none.
    Moved(String),
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        CallError::Failed(failure)
    }
}

/// Whether a failure is transient: another coordinator, or the same one later, may succeed. That is
/// so when it cannot be reached, has no store, or is starting or leaving.
pub(crate) fn is_transient(failure: &Failure) -> bool {
    let is_coordinators = |origin: &Origin| origin.service == "coordinator";
    let passing = [&reason::UNAVAILABLE, &reason::STORE_UNAVAILABLE];
    passing.contains(&failure.row()) && failure.origin.as_ref().is_none_or(is_coordinators)
}

/// Whether `Moved` without a task means that the coordinator did nothing of this call. Answers to
/// questions are the exception: an answer may be stored for the task of another coordinator, and
/// repeating it would answer the next question.
pub(crate) fn is_undone_when_moved(call: &call::Body) -> bool {
    match call {
        call::Body::Send(request) | call::Body::Stream(request) => {
            request.message.as_ref().is_none_or(|message| message.task_id.is_empty())
        }
        call::Body::OperatorAnswer(_) => false,
        _ => true,
    }
}

/// Whether an interrupted call can be repeated safely (idempotency).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetrySafety {
    /// As it is: it changes nothing, or nothing twice.
    Idempotent,
    /// By resuming after the last event.
    Resumable,
    /// With the same idempotency key.
    WithKey,
    /// Only after the caller has looked: it may have been executed.
    Unknown,
}

impl RetrySafety {
    pub(crate) fn of(caller: &Caller, call: &call::Body) -> Self {
        match call {
            call::Body::Get(_)
            | call::Body::List(_)
            | call::Body::GetPush(_)
            | call::Body::ListPush(_)
            | call::Body::DeletePush(_)
            | call::Body::ExtendedCard(_)
            | call::Body::Agents(_)
            | call::Body::Workers(_)
            | call::Body::Inspect(_)
            | call::Body::Tasks(_)
            | call::Body::Events(_)
            | call::Body::Activity(_)
            | call::Body::Failures(_)
            | call::Body::Watch(_)
            | call::Body::Wait(_) => RetrySafety::Idempotent,
            call::Body::Subscribe(_) => RetrySafety::Resumable,
            call::Body::Send(_) | call::Body::Stream(_) if !caller.idempotency_key.is_empty() => {
                RetrySafety::WithKey
            }
            call::Body::Send(_)
            | call::Body::Stream(_)
            | call::Body::Cancel(_)
            | call::Body::OperatorCancel(_)
            | call::Body::OperatorAnswer(_)
            | call::Body::RemoveAgent(_)
            | call::Body::CreatePush(_)
            | call::Body::Credit(_)
            | call::Body::Drop(_) => RetrySafety::Unknown,
        }
    }

    /// Whether the gateway may repeat it by itself.
    pub(crate) fn gateway_may_retry(self) -> bool {
        matches!(self, RetrySafety::Idempotent | RetrySafety::WithKey)
    }

    /// The failure for an interrupted call, with the advice how to continue.
    pub(crate) fn failure(self, what: &str) -> Failure {
        let how = match self {
            RetrySafety::Idempotent => "ask again",
            RetrySafety::Resumable => "the task goes on, resume with Last-Event-ID",
            RetrySafety::WithKey => {
                "send again with the same Idempotency-Key, nothing is done twice"
            }
            RetrySafety::Unknown => {
                "the task, if it was created, goes on: look for it, or resume with Last-Event-ID, \
                 before sending again"
            }
        };
        let text = format!("{what}; {how}");
        match self {
            RetrySafety::Unknown => {
                Failure::new(&reason::OUTCOME_UNKNOWN).because(text).with_plane(Plane::Transport)
            }
            RetrySafety::WithKey => transport(&text).with_repeat_by_key(),
            RetrySafety::Idempotent | RetrySafety::Resumable => transport(&text),
        }
    }
}

pub(crate) fn unreachable() -> Failure {
    transport("the coordinator cannot be reached; nothing was sent")
}

pub(crate) fn leaving() -> Failure {
    transport("the gateway is leaving; nothing was sent")
}

pub(super) fn transport(text: &str) -> Failure {
    Failure::new(&reason::UNAVAILABLE)
        .because(text)
        .with_retryable(true)
        .with_retry_after(RETRY_AFTER)
        .with_plane(Plane::Transport)
}

pub(crate) fn overloaded(text: &str) -> Failure {
    Failure::new(&reason::OVERLOADED).because(text).with_retry_after(RETRY_AFTER)
}

pub(super) fn broken() -> Failure {
    Failure::new(&reason::INTERNAL).because("the coordinator broke the link protocol")
}
