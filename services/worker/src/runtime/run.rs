//! Runs the agent of one attempt and sends exactly one final report, whether the agent returns,
//! fails, panics or ignores its cancellation. The worker survives all of them.

use std::{any::Any, future::poll_fn, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Instant};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    disposition::{FLOW_ERROR, RUN_ERROR},
    reason,
    v1::{self, report::Body},
};
use futures::FutureExt;

use crate::{
    Context, Error,
    attempt::state::{Attempt, DropReason, Restored},
    sdk::{
        agent::OfferedAgent,
        error::ErrorKind,
        failure_record::{failed, rejection},
    },
};

/// Runs the agent to its end and sends the final report.
pub(crate) async fn run(attempt: Arc<Attempt>, offered: Arc<OfferedAgent>) {
    let _running = attempt.metrics.begin();
    let since = Instant::now();
    let cx = Context::new(Arc::clone(&attempt), offered);
    let mut driven = pin!(AssertUnwindSafe(drive(&cx)).catch_unwind());
    // Reports leave when a poll of the agent ends. An agent that never waits costs one message,
    // because its reports leave with the final report.
    let driven = poll_fn(|task| {
        attempt.cork();
        let poll = driven.as_mut().poll(task);
        if poll.is_pending() {
            attempt.uncork();
        }
        poll
    });
    let ended = match driven.await {
        Ok(Some(result)) => AgentEnd::Returned(result),
        Ok(None) => AgentEnd::Dropped,
        Err(panic) => AgentEnd::Panicked(panic_text(&*panic)),
    };
    let last = final_report(&cx, ended);
    attempt.metrics.record_end(last.as_ref(), since.elapsed());
    attempt.end_span();
    attempt.end(last);
}

/// The way in which the agent of an attempt ended.
enum AgentEnd {
    Returned(Result<(), Error>),
    Panicked(String),
    Dropped,
}

/// The agent's result, or `None` if the agent was dropped. The future of the agent is dropped
/// inside this function, so that a panic in a destructor is caught as well.
async fn drive(cx: &Context) -> Option<Result<(), Error>> {
    let attempt = cx.attempt_state();
    if matches!(attempt.restored, Restored::Unreadable) {
        let text = "the checkpoint of an earlier attempt cannot be read";
        return Some(Err(Error::new(&reason::DATA_LOSS).error_type(RUN_ERROR).because(text)));
    }
    // The attempt may have been stopped before the agent started.
    if attempt.must_stop() {
        return None;
    }
    let ignored = async {
        attempt.cancelled().await;
        tokio::time::sleep(limits::STOP_GRACE).await;
    };
    let must_drop = async {
        tokio::select! {
            () = ignored => {}
            () = attempt.dropped() => {}
        }
    };
    tokio::select! {
        // The agent is polled first: an agent that never waits registers no timer.
        biased;
        // The error policy is code of the user as well and may panic.
        result = cx.offered().agent.run(cx) => {
            Some(result.map_err(|error| error.classified(&cx.offered().policy)))
        }
        () = must_drop => None,
    }
}

/// The final report; `None` if the coordinator expects none.
fn final_report(cx: &Context, ended: AgentEnd) -> Option<Body> {
    let attempt = cx.attempt_state();
    let stop_requests = attempt.stop_requests();
    match (stop_requests.dropped, &ended) {
        (Some(DropReason::Forgotten), _) => return None,
        (_, _) if stop_requests.cancelled => return Some(Body::Stopped(v1::Stopped {})),
        // A completed attempt counts, even if the worker drains.
        (Some(DropReason::Released), AgentEnd::Returned(Ok(()))) => {}
        (Some(DropReason::Released), _) => return Some(Body::Released(v1::Released {})),
        (None, _) => {}
    }
    Some(match ended {
        AgentEnd::Returned(Ok(())) => completed(attempt, cx.offered()),
        AgentEnd::Returned(Err(error)) => match error.into_kind() {
            ErrorKind::Failed(failed_with) => failed(attempt, failed_with.failure, FLOW_ERROR),
            ErrorKind::Rejected(rejected) => Body::Rejected(rejection(attempt, rejected)),
            ErrorKind::Stopped => Body::Stopped(v1::Stopped {}),
        },
        AgentEnd::Panicked(text) => {
            let failure = Failure::new(&reason::AGENT_PANICKED).privately(text);
            failed(attempt, failure, RUN_ERROR)
        }
        // Only a stop request drops an agent, and stop requests are handled above.
        AgentEnd::Dropped => Body::Stopped(v1::Stopped {}),
    })
}

fn completed(attempt: &Attempt, offered: &OfferedAgent) -> Body {
    match attempt.take_reply() {
        (Some(mut message), true) if offered.may_answer_with_message => {
            // A bare message belongs to no task.
            message.task_id.clear();
            Body::Message(message)
        }
        (message, _) => Body::Completed(v1::Completed { message }),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "panicked with a payload that is not text".to_owned())
}
