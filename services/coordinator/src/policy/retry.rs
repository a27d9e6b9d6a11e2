//! The retry decision for a failed attempt, with exponential backoff, jitter and a retry
//! budget. Retries happen in this one place, next to the failing agent, so attempts do not
//! multiply from hop to hop. Pure: time and randomness are arguments.

use crate::task::failure_origin::is_born_here;
use std::time::Duration;

use faultline_chassis::backoff::Backoff;
use faultline_proto::{Failure, reason::Retry, v1::NotRetried};

/// The least time in which an attempt may come to anything.
const USEFUL: Duration = Duration::from_millis(50);
/// How far chance moves a pause, to either side: those who failed together should not come back
/// together.
const JITTER: f64 = 0.2;

/// How often and how soon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetryRules {
    pub(crate) retries: u32,
    /// The first pause; each later one is twice as long.
    pub(crate) base: Duration,
    /// The longest pause. A failure that asks for a longer one is not retried.
    pub(crate) cap: Duration,
}

/// The history of the task so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Situation {
    /// Retries that this agent has had.
    pub(crate) retries: u32,
    /// The agent declares its work idempotent in its current offer.
    pub(crate) idempotent: bool,
    /// Of its deadline; `None`: it has none.
    pub(crate) remaining: Option<Duration>,
    /// From 0 to 1.
    pub(crate) chance: f64,
}

/// Why it is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum No {
    /// It came from further down, and was tried again there if that made sense.
    NotOurs,
    /// The retry class of the failure or of its reason forbids it.
    NotRetryable,
    /// It is not to be tried before a time for which nobody waits.
    TooLong,
    /// All retries were made.
    Spent,
    /// The agent's tasks together had theirs.
    BudgetSpent,
    /// Its time would be over.
    TooLate,
    /// Somebody is being asked, and would answer to nobody.
    Asking,
}

impl No {
    /// The agent had its chances, so another may have one.
    pub(crate) fn is_spent(self) -> bool {
        matches!(self, No::Spent | No::BudgetSpent | No::TooLong)
    }
}

/// As the task remembers it.
impl From<No> for NotRetried {
    fn from(no: No) -> Self {
        match no {
            No::NotOurs => NotRetried::Below,
            No::NotRetryable => NotRetried::Reason,
            No::TooLong => NotRetried::Pause,
            No::Spent => NotRetried::Spent,
            No::BudgetSpent => NotRetried::Budget,
            No::TooLate => NotRetried::Deadline,
            No::Asking => NotRetried::Asking,
        }
    }
}

/// The pause before the next attempt, or why there is none.
pub(crate) fn pause(
    failure: &Failure,
    rules: &RetryRules,
    situation: &Situation,
) -> Result<Duration, No> {
    let spent_elsewhere = failure.retries_spent > 0;
    if !is_born_here(failure) || spent_elsewhere && !failure.foreign {
        return Err(No::NotOurs);
    }
    if !is_retryable(failure, situation.idempotent) {
        return Err(No::NotRetryable);
    }
    // A stranger that has tried again himself had his chances.
    if spent_elsewhere {
        return Err(No::Spent);
    }
    let pause = match failure.retry_after() {
        Some(asked) if asked > rules.cap => return Err(No::TooLong),
        Some(asked) => asked,
        None => backoff(rules, situation),
    };
    if situation.retries >= rules.retries {
        return Err(No::Spent);
    }
    match situation.remaining {
        Some(remaining) if remaining < pause + USEFUL => Err(No::TooLate),
        _ => Ok(pause),
    }
}

fn is_retryable(failure: &Failure, idempotent: bool) -> bool {
    // The agent would ask the same person again.
    if failure.declined {
        return false;
    }
    let class = failure.row().retry;
    match failure.retryable {
        Some(false) => return false,
        // A key makes a call safe to repeat, not the work of the agent that made the call.
        Some(true) if class == Retry::Idempotent && failure.repeat_with_key => return idempotent,
        // The flag of another program does not settle an unknown outcome.
        Some(true) if failure.may_retry() => return true,
        Some(true) | None => {}
    }
    match class {
        Retry::Yes => true,
        Retry::Idempotent => idempotent,
        // Without a delay of its own the usual pause is the delay.
        Retry::Delay => true,
        Retry::Never | Retry::Enclosing | Retry::Reauthenticate => false,
    }
}

fn backoff(rules: &RetryRules, situation: &Situation) -> Duration {
    let backoff = Backoff::new(rules.base, rules.cap).jitter(1.0 - JITTER, 1.0 + JITTER);
    backoff.pause(situation.retries, situation.chance).min(rules.cap)
}

/// How many retries all tasks of an agent have together: when most of what it is given fails,
/// trying again only adds to its load. Each failure takes one, each success gives a part of one
/// back, and from half of them down nothing is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetryBudget {
    tokens: f64,
}

/// Of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allowance {
    /// The initial and largest amount. 0: retries are not counted.
    pub(crate) max: u32,
    /// The amount that a success gives back.
    pub(crate) ratio: f64,
}

impl RetryBudget {
    pub(crate) fn full(allowance: &Allowance) -> Self {
        Self { tokens: f64::from(allowance.max) }
    }

    pub(crate) fn succeeded(&mut self, allowance: &Allowance) {
        self.tokens = (self.tokens + allowance.ratio).min(f64::from(allowance.max));
    }

    /// False: it is not to be tried again.
    pub(crate) fn failed(&mut self, allowance: &Allowance) -> bool {
        self.tokens = (self.tokens - 1.0).max(0.0);
        allowance.max == 0 || self.tokens > f64::from(allowance.max) / 2.0
    }
}

#[cfg(test)]
pub(crate) mod tests;
