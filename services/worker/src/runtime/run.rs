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
        agent::Hosted,
        error::Kind,
        failure_record::{failed, rejection},
    },
};

/// Runs the agent to its end and reports it.
pub(crate) async fn run(attempt: Arc<Attempt>, hosted: Arc<Hosted>) {
    let _running = attempt.meters.run();
    let since = Instant::now();
    let cx = Context::new(Arc::clone(&attempt), hosted);
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
    let last = last_words(&cx, ended);
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
        result = cx.hosted().agent.run(cx) => {
            Some(result.map_err(|error| error.normalised(&cx.hosted().policy)))
        }
        () = out_of_patience => None,
    }
}

/// The final report, unless nobody wants one.
fn last_words(cx: &Context, ended: Ended) -> Option<Body> {
    let attempt = cx.attempt_state();
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
        Ended::Returned(Ok(())) => completed(attempt, cx.hosted()),
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

fn completed(attempt: &Attempt, hosted: &Hosted) -> Body {
    match attempt.take_reply() {
        (Some(mut message), true) if hosted.may_answer_with_message => {
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
