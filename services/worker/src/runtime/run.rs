//! Running one attempt: the agent's code between the assignment and the one final report. Whatever
//! the agent does — return, fail, panic, ignore that it was cancelled — exactly one report ends
//! the attempt, and the worker lives on.

use std::{any::Any, future::poll_fn, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Instant};

use faultline_chassis::limits;
use faultline_proto::{
    Failure, a2a,
    advice::REMOTE_SETUP,
    disposition::{FLOW_ERROR, RUN_ERROR},
    reason,
    v1::{self, Origin, Plane, Severity, report::Body},
};
use futures::FutureExt;
use prost::Message as _;

use crate::{
    Context, Error,
    attempt::state::{Attempt, Dropped, Restored},
    sdk::error::{Kind, Rejected},
};

/// The longest text of a rejection; the rest is cut.
const REJECTION_BYTES_MAX: usize = 64 * 1024;

/// Runs the agent to its end and reports it.
pub(crate) async fn run(attempt: Arc<Attempt>) {
    let (_running, since) = (attempt.meters.run(), Instant::now());
    let cx = Context::new(Arc::clone(&attempt));
    let mut driven = pin!(AssertUnwindSafe(drive(&cx)).catch_unwind());
    // Reports leave when the agent has nothing more to do for now. An agent that never waits costs
    // one message, however much it reports, because its end joins the rest below.
    let driven = poll_fn(|task| {
        attempt.cork();
        let poll = driven.as_mut().poll(task);
        if poll.is_pending() {
            attempt.uncork();
        }
        poll
    });
    let ended = match driven.await {
        Ok(Some(result)) => Ended::Returned(result),
        Ok(None) => Ended::Dropped,
        Err(panic) => Ended::Panicked(panic_text(&*panic)),
    };
    let last = last_words(&attempt, ended);
    attempt.meters.ended(last.as_ref(), since.elapsed());
    attempt.end_span();
    attempt.end(last);
}

enum Ended {
    Returned(Result<(), Error>),
    Panicked(String),
    Dropped,
}

/// The agent's result, or `None` if it had to be dropped. The agent's future lives and dies in
/// here, so that a panic while it is dropped is caught like any other.
async fn drive(cx: &Context) -> Option<Result<(), Error>> {
    let attempt = cx.attempt_state();
    if matches!(attempt.restored, Restored::Unreadable) {
        let text = "the checkpoint of an earlier attempt cannot be read";
        return Some(Err(Error::new(&reason::DATA_LOSS).error_type(RUN_ERROR).because(text)));
    }
    // An order can be older than the agent: then it must not even begin.
    if attempt.told_to_stop() {
        return None;
    }
    let ignored = async {
        attempt.cancelled().await;
        tokio::time::sleep(limits::STOP_GRACE).await;
    };
    let out_of_patience = async {
        tokio::select! {
            () = ignored => {}
            () = attempt.dropped() => {}
        }
    };
    tokio::select! {
        // The agent first: one that never waits costs no timer and no registration.
        biased;
        // The policy is the agent's code too, and may panic like the rest of it.
        result = attempt.hosted.agent.run(cx) => {
            Some(result.map_err(|error| error.normalised(&attempt.hosted.policy)))
        }
        () = out_of_patience => None,
    }
}

/// The final report, unless nobody wants one.
fn last_words(attempt: &Attempt, ended: Ended) -> Option<Body> {
    let orders = attempt.orders();
    match (orders.dropped, &ended) {
        (Some(Dropped::Forgotten), _) => return None,
        (_, _) if orders.cancelled => return Some(Body::Stopped(v1::Stopped {})),
        // Work that was finished in time counts, even if the worker is leaving.
        (Some(Dropped::Released), Ended::Returned(Ok(()))) => {}
        (Some(Dropped::Released), _) => return Some(Body::Released(v1::Released {})),
        (None, _) => {}
    }
    Some(match ended {
        Ended::Returned(Ok(())) => completed(attempt),
        Ended::Returned(Err(error)) => match error.into_kind() {
            Kind::Failed(told) => failed(attempt, told.failure, FLOW_ERROR),
            Kind::Rejected(rejected) => Body::Rejected(rejection(attempt, rejected)),
            Kind::Stopped => Body::Stopped(v1::Stopped {}),
        },
        Ended::Panicked(text) => {
            let failure = Failure::new(&reason::AGENT_PANICKED).privately(text);
            failed(attempt, failure, RUN_ERROR)
        }
        // Only an order drops an agent, and orders were looked at above.
        Ended::Dropped => Body::Stopped(v1::Stopped {}),
    })
}

fn completed(attempt: &Attempt) -> Body {
    match attempt.take_reply() {
        (Some(mut message), true) if attempt.hosted.may_answer_with_message => {
            // There will be no task, so the message must not name one.
            message.task_id.clear();
            Body::Message(message)
        }
        (message, _) => Body::Completed(v1::Completed { message }),
    }
}

/// A message of the agent in its task.
pub(crate) fn attempt_message(
    attempt: &Attempt,
    content: impl Into<crate::Content>,
) -> a2a::Message {
    a2a::Message {
        message_id: uuid::Uuid::now_v7().to_string(),
        context_id: attempt.context_id.clone(),
        task_id: attempt.task_id().to_owned(),
        role: a2a::Role::Agent as i32,
        parts: content.into().0,
        ..a2a::Message::default()
    }
}

/// The message of a rejection. Its record, if it has one, is where every failure of a task is.
fn rejection(attempt: &Attempt, Rejected { mut text, failure }: Rejected) -> a2a::Message {
    text.truncate(text.floor_char_boundary(REJECTION_BYTES_MAX));
    let mut message = attempt_message(attempt, text);
    if let Some(failure) = failure {
        let said = failure.public_message.clone();
        let failure = complete(attempt, failure, FLOW_ERROR).because(said);
        let failure = Failure::from_record(bounded(failure));
        message.metadata = Some(failure.to_metadata(a2a::TaskState::Rejected));
    }
    message
}

/// Completes the record, logs it and marks the span.
fn failed(attempt: &Attempt, failure: Failure, error_type: &str) -> Body {
    attempt.wake_span();
    let failure = complete(attempt, failure, error_type);
    attempt.span_failed(&failure);
    Body::Failed(bounded(failure))
}

/// What failed although the agent goes on: its span has seen it, and is no error.
pub(crate) fn tolerated(attempt: &Attempt, error: Error) -> Result<Body, Error> {
    let failure = match error.normalised(&attempt.hosted.policy).into_kind() {
        Kind::Failed(told) => told.failure,
        Kind::Rejected(Rejected { text, failure }) => {
            failure.unwrap_or_else(|| Failure::new(&reason::TASK_REJECTED).because(text))
        }
        Kind::Stopped => return Err(Error::stopped()),
    };
    let failure = failure.with_severity(Severity::Recoverable);
    let failure = complete(attempt, failure, FLOW_ERROR);
    attempt.span_saw(&failure);
    Ok(Body::Tolerated(bounded(failure)))
}

/// Gives a failure what only its attempt knows. One that came from another agent was logged there:
/// this one only adds itself to the chain.
fn complete(attempt: &Attempt, failure: Failure, error_type: &str) -> Failure {
    let hosted = &attempt.hosted;
    let failure = failure.with_plane(Plane::Execution);
    let (failure, service) = match is_of_setup(&failure) {
        true => {
            let record = v1::Failure { origin: None, ..failure.into_record() };
            (Failure::from_record(record), REMOTE_SETUP)
        }
        false => (failure, "worker"),
    };
    if failure.origin.is_some() {
        let failure = failure.wrap(&hosted.name, attempt.task_id(), &attempt.context_id);
        let failure = failure.with_hop_span(attempt.trace().span_id());
        tracing::debug!(failure.id = %failure.id, task.id = %attempt.key.task_id, "passed on");
        failure
    } else {
        let origin = Origin {
            agent: hosted.name.clone(),
            service: service.to_owned(),
            worker: hosted.worker.clone(),
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

/// The agent stands for a remote one, and says that its own configuration is wrong: a service
/// without an agent and without a chain.
fn is_of_setup(failure: &Failure) -> bool {
    let named = |origin: &Origin| origin.service == REMOTE_SETUP && origin.agent.is_empty();
    failure.origin.as_ref().is_some_and(named) && failure.causes.is_empty()
}

/// Read back as a peer would read it, which cuts what an agent made too long.
fn bounded(failure: Failure) -> v1::Failure {
    let mut record = Failure::from_record(failure.into_record()).into_record();
    if record.encoded_len() > limits::MESSAGE_BYTES_MAX {
        record.violations.clear();
    }
    record
}

/// The one line about it. What the caller was not told needs somebody to look; the rest is a
/// business of agent and caller.
fn log(attempt: &Attempt, failure: &Failure) {
    macro_rules! line {
        ($level:ident, $($detail:tt)*) => {
            tracing::$level!(
                failure.id = %failure.id,
                task.id = %attempt.key.task_id,
                trace.id = %failure.trace_id,
                agent = %attempt.hosted.name,
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

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "panicked with something that is no text".to_owned())
}
