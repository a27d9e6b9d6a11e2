//! Running one attempt: the agent's code between the assignment and the one final report. Whatever
//! the agent does — return, fail, panic, ignore that it was cancelled — exactly one report ends
//! the attempt, and the worker lives on.

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
    attempt::state::{Attempt, Dropped, Restored},
    sdk::{
        agent::OfferedAgent,
        error::ErrorKind,
        failure_record::{failed, rejection},
    },
};

/// Runs the agent to its end and reports it.
pub(crate) async fn run(attempt: Arc<Attempt>, offered: Arc<OfferedAgent>) {
    let _running = attempt.metrics.begin();
    let since = Instant::now();
    let cx = Context::new(Arc::clone(&attempt), offered);
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
        Ok(Some(result)) => AgentEnd::Returned(result),
        Ok(None) => AgentEnd::Dropped,
        Err(panic) => AgentEnd::Panicked(panic_text(&*panic)),
    };
    let last = final_report(&cx, ended);
    attempt.metrics.record_end(last.as_ref(), since.elapsed());
    attempt.end_span();
    attempt.end(last);
}

enum AgentEnd {
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
        // The agent first: one that never waits costs no timer and no registration.
        biased;
        // The policy is the agent's code too, and may panic like the rest of it.
        result = cx.offered().agent.run(cx) => {
            Some(result.map_err(|error| error.classified(&cx.offered().policy)))
        }
        () = must_drop => None,
    }
}

/// The final report, unless nobody wants one.
fn final_report(cx: &Context, ended: AgentEnd) -> Option<Body> {
    let attempt = cx.attempt_state();
    let stop_requests = attempt.stop_requests();
    match (stop_requests.dropped, &ended) {
        (Some(Dropped::Forgotten), _) => return None,
        (_, _) if stop_requests.cancelled => return Some(Body::Stopped(v1::Stopped {})),
        // Work that was finished in time counts, even if the worker is leaving.
        (Some(Dropped::Released), AgentEnd::Returned(Ok(()))) => {}
        (Some(Dropped::Released), _) => return Some(Body::Released(v1::Released {})),
        (None, _) => {}
    }
    Some(match ended {
        AgentEnd::Returned(Ok(())) => completed(attempt, cx.offered()),
        AgentEnd::Returned(Err(error)) => match error.into_kind() {
            ErrorKind::Failed(told) => failed(attempt, told.failure, FLOW_ERROR),
            ErrorKind::Rejected(rejected) => Body::Rejected(rejection(attempt, rejected)),
            ErrorKind::Stopped => Body::Stopped(v1::Stopped {}),
        },
        AgentEnd::Panicked(text) => {
            let failure = Failure::new(&reason::AGENT_PANICKED).privately(text);
            failed(attempt, failure, RUN_ERROR)
        }
        // Only an order drops an agent, and orders were looked at above.
        AgentEnd::Dropped => Body::Stopped(v1::Stopped {}),
    })
}

fn completed(attempt: &Attempt, offered: &OfferedAgent) -> Body {
    match attempt.take_reply() {
        (Some(mut message), true) if offered.may_answer_with_message => {
            // There will be no task, so the message must not name one.
            message.task_id.clear();
            Body::Message(message)
        }
        (message, _) => Body::Completed(v1::Completed { message }),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "panicked with something that is no text".to_owned())
}
