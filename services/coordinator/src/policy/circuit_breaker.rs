//! Circuit breaker per agent: opens after N consecutive infrastructure failures, rejects new
//! tasks while open, and lets one probe task through when half-open. Pure: time is an argument.

use std::time::Duration;

use faultline_proto::{
    Failure,
    a2a::TaskState,
    id::TaskId,
    reason::{self, Reason, Retry},
    v1::attempt::Outcome,
};
use tokio::time::Instant;

use crate::task::{
    Task,
    failure_origin::{is_born_here, is_of_mesh},
};

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerRules {
    /// Tasks in a row; 0: never.
    pub(crate) failures: u32,
    pub(crate) open: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Breaker {
    failures: u32,
    last_failure: Option<Instant>,
    opened: Option<Opened>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Opened {
    until: Instant,
    /// The task that was let through to see, and when.
    probe: Option<(TaskId, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Circuit {
    Closed,
    /// For so long.
    Open(Duration),
    /// One task may be let through, or was.
    HalfOpen,
}

/// The health signal that the end of a task gives about its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthSignal {
    /// It answered, if only with an error of its trade.
    Serves,
    CannotServe,
    /// Somebody else ended it.
    Nothing,
}

impl Breaker {
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn last_failure(&self) -> Option<Instant> {
        self.last_failure
    }

    pub(crate) fn circuit(&self, now: Instant) -> Circuit {
        match &self.opened {
            None => Circuit::Closed,
            Some(opened) if now < opened.until => Circuit::Open(opened.until - now),
            Some(_) => Circuit::HalfOpen,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.opened.is_none()
    }

    /// May one more task go to the agent? The probe itself may again, when its attempt was lost.
    /// A probe that neither ends nor fails in the time that the circuit is open for hangs, and
    /// another is let through.
    pub(crate) fn lets_through(
        &self,
        task: Option<TaskId>,
        rules: &BreakerRules,
        now: Instant,
    ) -> bool {
        let Some(opened) = &self.opened else { return true };
        match opened.probe {
            _ if now < opened.until => false,
            Some((probe, since)) => Some(probe) == task || now >= since + rules.open,
            None => true,
        }
    }

    /// A task that was let through goes to the agent.
    pub(crate) fn started(&mut self, task: TaskId, now: Instant) {
        if let Some(opened) = &mut self.opened {
            opened.probe = Some((task, now));
        }
    }

    /// There is reason to see earlier: somebody new offers the agent.
    pub(crate) fn see_now(&mut self, now: Instant) {
        if let Some(opened) = &mut self.opened {
            opened.until = opened.until.min(now);
        }
    }

    /// True: the circuit has opened or closed with this.
    pub(crate) fn record(
        &mut self,
        task: TaskId,
        signal: HealthSignal,
        rules: &BreakerRules,
        now: Instant,
    ) -> bool {
        let probed = |opened: &Opened| opened.probe.is_some_and(|(probe, _)| probe == task);
        match signal {
            HealthSignal::Serves => {
                self.failures = 0;
                self.opened.take().is_some()
            }
            HealthSignal::CannotServe => {
                self.failures = self.failures.saturating_add(1);
                self.last_failure = Some(now);
                let opens = match &self.opened {
                    None => rules.failures > 0 && self.failures >= rules.failures,
                    // Others were under way when it opened, and say nothing new.
                    Some(opened) => probed(opened),
                };
                if opens {
                    self.opened = Some(Opened { until: now + rules.open, probe: None });
                }
                opens
            }
            HealthSignal::Nothing => {
                if let Some(opened) = self.opened.as_mut().filter(|opened| probed(opened)) {
                    opened.probe = None;
                }
                false
            }
        }
    }
}

/// Reasons that leave the outcome unknown, so that only an idempotent agent is run again, but that
/// show an agent that cannot serve: the work took too long or could not be followed to its end.
const TOO_SLOW: [&Reason; 6] = [
    &reason::TASK_TIMEOUT,
    &reason::RECONNECT_EXHAUSTED,
    &reason::DEADLINE_EXCEEDED,
    &reason::READ_TIMEOUT,
    &reason::WRITE_TIMEOUT,
    &reason::CALL_TIMEOUT,
];

/// The agent itself is the cause, not its input and not an agent that it called.
pub(crate) fn cannot_serve(failure: &Failure) -> bool {
    let row = failure.row();
    let is_agents = is_born_here(failure) && !is_of_mesh(failure);
    is_agents && (row.retry == Retry::Yes || TOO_SLOW.contains(&row))
}

/// The health signal of an ended task for the agent that ran it last. `own_time` is the time limit
/// of the agent or the operator. A timeout under a shorter limit of the caller is no signal, or one
/// caller could open the circuit for all others; a timeout in the queue is none either.
pub(crate) fn said_by(task: &Task, own_time: Option<Duration>) -> HealthSignal {
    let hasty = || own_time.is_none_or(|own| task.budget.limit().is_some_and(|l| l < own));
    let queued = || task.attempts.last().is_none_or(|last| last.outcome() != Outcome::Ended);
    match (task.state, &task.failure) {
        (TaskState::Canceled, _) => HealthSignal::Nothing,
        (TaskState::Failed, Some(f))
            if f.row() == &reason::TASK_TIMEOUT && (hasty() || queued()) =>
        {
            HealthSignal::Nothing
        }
        (TaskState::Failed, Some(failure)) if cannot_serve(failure) => HealthSignal::CannotServe,
        _ => HealthSignal::Serves,
    }
}

#[cfg(test)]
mod tests;
