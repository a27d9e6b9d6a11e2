//! What a caller is told whose call was under way when the connection broke, or when the gateway
//! left: whether it may have been done, and how to go on. Knows calls, and nothing of connections.

use std::time::Duration;

use faultline_proto::{
    Failure, reason,
    v1::{Caller, Origin, Plane, call},
};

/// When it may be different: what a caller is told that came at a bad moment.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) const CONNECTION_LOST: &str = "the connection to the coordinator was lost";
pub(crate) const GATEWAY_LEAVES: &str = "the gateway is leaving";
pub(crate) const COORDINATOR_LEFT: &str = "the coordinator left";

/// How a call ended that was not answered.
pub(crate) enum CallError {
    /// With a failure that is the answer.
    Failed(Failure),
    /// In the middle, by this.
    Interrupted(&'static str),
    /// Before it was sent: as good as never made.
    NotSent(Box<(Caller, call::Body)>),
    /// By a coordinator that left. It names the task that goes on elsewhere, or none.
    Moved(String),
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        CallError::Failed(failure)
    }
}

/// Whether a coordinator failed here that another one, or the same a little later, may not: it
/// cannot be reached, has no store, or is not yet or no longer the one to ask.
pub(crate) fn is_transient(failure: &Failure) -> bool {
    let is_coordinators = |origin: &Origin| origin.service == "coordinator";
    let passing = [&reason::UNAVAILABLE, &reason::STORE_UNAVAILABLE];
    passing.contains(&failure.row()) && failure.origin.as_ref().is_none_or(is_coordinators)
}

/// Whether a coordinator that leaves and names no task has done nothing of this call. It is so but
/// for answers: one that was stored for another coordinator's task may be named by nobody, and a
/// second one would be taken for the answer to the next question.
pub(crate) fn is_undone_when_moved(call: &call::Body) -> bool {
    match call {
        call::Body::Send(request) | call::Body::Stream(request) => {
            request.message.as_ref().is_none_or(|message| message.task_id.is_empty())
        }
        call::Body::OperatorAnswer(_) => false,
        _ => true,
    }
}

/// How a call that was cut off can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetrySafety {
    /// As it is: it changes nothing, or not twice.
    Idempotent,
    /// From where it was.
    Resumable,
    /// With its key, by which it is known.
    WithKey,
    /// Only by somebody who has looked first: it may have been done.
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

    /// Whether the gateway may make it again by itself.
    pub(crate) fn gateway_may_retry(self) -> bool {
        matches!(self, RetrySafety::Idempotent | RetrySafety::WithKey)
    }

    /// The end of a call that this befell.
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
    Failure::new(&reason::INTERNAL).because("the coordinator answered out of turn")
}
