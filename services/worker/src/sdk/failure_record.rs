//! Failure record of an attempt: gives an error of the agent its origin, or adds a hop to a failure
//! of another agent, bounds the size and logs the failure once.

use faultline_chassis::limits;
use faultline_proto::{
    Failure, a2a,
    advice::REMOTE_SETUP,
    disposition::FLOW_ERROR,
    reason,
    v1::{self, Origin, Plane, Severity, report::Body},
};
use prost::Message as _;

use crate::{
    Content, Context, Error,
    attempt::state::Attempt,
    sdk::error::{ErrorKind, Rejected},
};

/// The longest text of a rejection; the rest is cut.
const REJECTION_BYTES_MAX: usize = 64 * 1024;

/// A message of the agent in its task.
pub(crate) fn attempt_message(attempt: &Attempt, content: impl Into<Content>) -> a2a::Message {
    a2a::Message {
        message_id: uuid::Uuid::now_v7().to_string(),
        context_id: attempt.context_id.clone(),
        task_id: attempt.task_id().to_owned(),
        role: a2a::Role::Agent as i32,
        parts: content.into().0,
        ..a2a::Message::default()
    }
}

/// The message of a rejection, with the record in its metadata if there is one.
pub(crate) fn rejection(
    attempt: &Attempt,
    Rejected { mut text, failure }: Rejected,
) -> a2a::Message {
    text.truncate(text.floor_char_boundary(REJECTION_BYTES_MAX));
    let mut message = attempt_message(attempt, text);
    if let Some(failure) = failure {
        let public_text = failure.public_message.clone();
        let failure = complete(attempt, failure, FLOW_ERROR).because(public_text);
        let failure = Failure::from_record(bounded(failure));
        message.metadata = Some(failure.to_metadata(a2a::TaskState::Rejected));
    }
    message
}

/// Completes the record, logs it and marks the span.
pub(crate) fn failed(attempt: &Attempt, failure: Failure, error_type: &str) -> Body {
    attempt.resume_span_after_failure();
    let failure = complete(attempt, failure, error_type);
    attempt.span_failed(&failure);
    Body::Failed(bounded(failure))
}

/// The report of a tolerated failure: the span records it without being an error.
pub(crate) fn tolerated(cx: &Context, error: Error) -> Result<Body, Error> {
    let attempt = cx.attempt_state();
    let failure = match error.classified(&cx.offered().policy).into_kind() {
        ErrorKind::Failed(failed) => failed.failure,
        ErrorKind::Rejected(Rejected { text, failure }) => {
            failure.unwrap_or_else(|| Failure::new(&reason::TASK_REJECTED).because(text))
        }
        ErrorKind::Stopped => return Err(Error::stopped()),
    };
    let failure = failure.with_severity(Severity::Recoverable);
    let failure = complete(attempt, failure, FLOW_ERROR);
    attempt.span_saw(&failure);
    Ok(Body::Tolerated(bounded(failure)))
}

/// Adds the fields that only the attempt knows. A failure of another agent was logged there; here
/// it gets one more hop.
fn complete(attempt: &Attempt, failure: Failure, error_type: &str) -> Failure {
    let names = &attempt.names;
    let failure = failure.with_plane(Plane::Execution);
    let (failure, service) = if is_of_setup(&failure) {
        let record = v1::Failure { origin: None, ..failure.into_record() };
        (Failure::from_record(record), REMOTE_SETUP)
    } else {
        (failure, "worker")
    };
    if failure.origin.is_some() {
        let failure = failure.wrap(&names.agent, attempt.task_id(), &attempt.context_id);
        let failure = failure.with_hop_span(attempt.trace().span_id());
        tracing::debug!(
            failure.id = %failure.id, task.id = %attempt.key.task_id,
            "failure of another agent passed on"
        );
        failure
    } else {
        let origin = Origin {
            agent: names.agent.clone(),
            service: service.to_owned(),
            worker: names.worker.clone(),
        };
        let trace = attempt.trace();
        let failure = match failure.error_type.as_str() {
            "" => failure.with_error_type(error_type),
            _ => failure,
        };
        let failure = failure
            .with_task(attempt.task_id(), &attempt.context_id)
            .with_trace(trace.trace_id(), trace.span_id())
            .born_at(origin);
        log(attempt, &failure);
        failure
    }
}

/// A configuration error of an agent that represents a remote one: an origin with that service,
/// without an agent and without causes.
fn is_of_setup(failure: &Failure) -> bool {
    let named = |origin: &Origin| origin.service == REMOTE_SETUP && origin.agent.is_empty();
    failure.origin.as_ref().is_some_and(named) && failure.causes.is_empty()
}

/// Reads the record as a peer would, which cuts fields that are too long.
fn bounded(failure: Failure) -> v1::Failure {
    let mut record = Failure::from_record(failure.into_record()).into_record();
    if record.encoded_len() > limits::MESSAGE_BYTES_MAX {
        record.violations.clear();
    }
    record
}

/// Logs the failure once: WARN with the private text, which the caller does not see; DEBUG
/// otherwise.
fn log(attempt: &Attempt, failure: &Failure) {
    macro_rules! line {
        ($level:ident, $($detail:tt)*) => {
            tracing::$level!(
                failure.id = %failure.id,
                task.id = %attempt.key.task_id,
                trace.id = %failure.trace_id,
                agent = %attempt.names.agent,
                attempt = attempt.key.attempt,
                reason = %failure.reason,
                $($detail)*
                "task failed: {}",
                failure.public_message
            )
        };
    }
    match failure.private() {
        Some(private) => line!(warn, detail = private.for_log(),),
        None => line!(debug,),
    }
}
