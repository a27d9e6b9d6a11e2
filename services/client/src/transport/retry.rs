//! Retry of calls with exponential backoff and jitter. Only calls without a possible side effect,
//! or with an idempotency key, are repeated.

use std::time::Duration;

use faultline_chassis::backoff::Backoff;
use faultline_proto::{Failure, reason::Retry as Class, v1::Plane};
use tokio::time::{Instant, sleep};
use tonic::Code;

/// The retry policy of a client. Reads, cancels and deletes are retried after transient failures; a
/// send only if the failure proves that it was not executed, or if it has an idempotency key.
///
/// A delay that the server sends (`Retry-After` or `RetryInfo`) is respected. If it exceeds the
/// remaining time, the failure is returned at once and contains the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Number of calls after the first.
    pub max: u32,
    /// Pause before the second call; doubled before each further call.
    pub backoff: Duration,
    /// The longest pause, unless the server asks for a longer one.
    pub backoff_max: Duration,
    /// Limit for all calls and pauses together.
    pub patience: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max: 3,
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(5),
            patience: Duration::from_secs(60),
        }
    }
}

impl Retry {
    /// No retries.
    pub fn never() -> Self {
        Self { max: 0, ..Self::default() }
    }

    /// Makes a call until it succeeds or may not be retried. If a call with a key has an unknown
    /// outcome, the failure says that the key makes a repetition safe.
    pub(crate) async fn run<T, F>(
        self,
        repeatable: bool,
        keyed: bool,
        call: impl Fn() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut attempts = self.start();
        let mut is_lost = false;
        loop {
            let fault = match call().await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            is_lost |= keyed && fault.is_lost();
            let is_of_wire = fault.failure.plane() == Plane::Transport;
            match attempts.pause(&fault, repeatable) {
                Some(pause) => sleep(pause).await,
                None if is_lost && is_of_wire => {
                    return Err(attempts.with_retries(fault.failure).with_repeat_by_key());
                }
                None => return Err(attempts.with_retries(fault.failure)),
            }
        }
    }

    fn start(self) -> Attempts {
        Attempts { retry: self, wire: 0, call: 0, until: Instant::now() + self.patience }
    }
}

/// Exponential backoff: doubles with each attempt, plus up to a quarter of jitter against
/// synchronised retries. Never longer than `max`.
pub(crate) fn backoff(first: Duration, max: Duration, attempt: u32) -> Duration {
    Backoff::new(first, max.mul_f64(0.8)).jitter(1.0, 1.25).random_pause(attempt)
}

/// A failed call: its failure, and the knowledge about its execution.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) failure: Failure,
    /// The server cannot have executed the call: it was not reached, or rejected the call first.
    pub(crate) not_executed: bool,
    /// The failure comes from the transport, not from an A2A server.
    pub(crate) from_transport: bool,
}

impl From<Failure> for Fault {
    /// A failure in an A2A response, sent before any work: work that ran and failed would be a
    /// task.
    fn from(failure: Failure) -> Self {
        let refused = matches!(failure.code(), Code::Unavailable | Code::ResourceExhausted);
        // A foreign server has to state `retryable` explicitly.
        let not_executed = refused && (!failure.foreign || failure.retryable == Some(true));
        Self { failure, not_executed, from_transport: false }
    }
}

impl Fault {
    /// The server was not reached.
    pub(crate) fn unsent(failure: Failure) -> Self {
        Self { failure, not_executed: true, from_transport: true }
    }

    /// The outcome of the call is unknown.
    pub(crate) fn lost(failure: Failure) -> Self {
        Self { failure, not_executed: false, from_transport: true }
    }

    /// The connection broke after the call was sent, so that the outcome is unknown.
    fn is_lost(&self) -> bool {
        !self.not_executed && self.from_transport && self.failure.plane() == Plane::Transport
    }

    /// Whether the same call may be retried.
    pub(crate) fn may_retry(&self, repeatable: bool) -> bool {
        if !repeatable && !self.not_executed {
            return false;
        }
        let class = match self.failure.row().retry {
            Class::Yes | Class::Delay => true,
            Class::Idempotent => repeatable,
            Class::Never | Class::Enclosing | Class::Reauthenticate => false,
        };
        self.failure.retryable.unwrap_or(class)
    }
}

/// The retry budget of one call. Transport failures and error responses are counted apart for the
/// log, and limited together.
struct Attempts {
    retry: Retry,
    wire: u32,
    call: u32,
    until: Instant,
}

impl Attempts {
    /// The pause before the next call; `None` without a next call.
    fn pause(&mut self, fault: &Fault, repeatable: bool) -> Option<Duration> {
        if self.made() >= self.retry.max || !fault.may_retry(repeatable) {
            return None;
        }
        let pause = backoff(self.retry.backoff, self.retry.backoff_max, self.made());
        let pause = pause.max(fault.failure.retry_after().unwrap_or_default());
        if Instant::now() + pause > self.until {
            return None;
        }
        if fault.from_transport {
            self.wire += 1
        } else {
            self.call += 1
        }
        let reason = fault.failure.reason.as_str();
        let after_ms = pause.as_millis() as u64;
        let wire_retries = self.wire;
        let call_retries = self.call;
        tracing::debug!(reason, after_ms, wire_retries, call_retries, "retrying a call");
        Some(pause)
    }

    fn made(&self) -> u32 {
        self.wire + self.call
    }

    /// The last failure, with the number of retries.
    fn with_retries(&self, last: Failure) -> Failure {
        let spent = last.retries_spent.saturating_add(self.made());
        last.with_retries_spent(spent)
    }
}

#[cfg(test)]
mod tests {
    use faultline_proto::reason;

    use super::*;
    use crate::{protocol::wire_error, transport::timeouts::Layer};

    #[tokio::test(start_paused = true)]
    async fn lost_call_with_a_key_is_marked_as_safe_to_repeat() {
        let retry = Retry { max: 1, ..Retry::default() };
        for (keyed, fault, expected) in [
            (true, Fault::lost as fn(Failure) -> Fault, true),
            (false, Fault::lost, false),
            (true, Fault::unsent, false),
        ] {
            let call = || async { Err::<(), _>(fault(wire_error::unavailable("x"))) };
            let failure = retry.run(true, keyed, call).await.unwrap_err();
            assert_eq!(failure.repeat_with_key, expected);
        }
        // The first call was lost, and then the server is unreachable.
        let calls = std::sync::atomic::AtomicU32::new(0);
        let call = || async {
            let is_first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            let failure = wire_error::unavailable("x");
            Err::<(), _>(if is_first { Fault::lost(failure) } else { Fault::unsent(failure) })
        };
        assert!(retry.run(true, true, call).await.unwrap_err().repeat_with_key);
    }

    #[tokio::test(start_paused = true)]
    async fn pause_doubles_until_the_last_retry() {
        let mut attempts = Retry::default().start();
        let lost = || Fault::lost(wire_error::unavailable("x"));
        let pauses: Vec<_> = std::iter::from_fn(|| attempts.pause(&lost(), true)).take(9).collect();
        assert_eq!(pauses.len(), 3);
        for (pause, least) in pauses.iter().zip([200, 400, 800]) {
            let least = Duration::from_millis(least);
            assert!(*pause >= least && *pause < least.mul_f64(1.25), "{pause:?}");
        }
    }

    #[test]
    fn pause_never_exceeds_its_maximum() {
        let first = Duration::from_secs(1);
        let max = Duration::from_secs(30);
        for attempt in 0..100 {
            let pause = backoff(first, max, attempt);
            assert!(pause <= max, "attempt {attempt}: {pause:?}");
            assert!(attempt < 9 || pause >= max.mul_f64(0.8), "attempt {attempt}: {pause:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requested_delay_is_kept_or_ends_the_retries() {
        let rate_limited = |s| {
            let failure = Failure::new(&reason::RATE_LIMITED);
            Fault::from(failure.with_retry_after(Duration::from_secs(s)))
        };
        let mut attempts = Retry::default().start();
        assert_eq!(attempts.pause(&rate_limited(7), false), Some(Duration::from_secs(7)));
        assert_eq!(attempts.pause(&rate_limited(61), false), None);
    }

    #[test]
    fn send_is_retried_only_if_it_was_not_executed() {
        let retry = Retry { patience: Duration::from_secs(3600), ..Retry::default() };
        let repeats = |fault: &Fault, repeatable| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async { retry.start().pause(fault, repeatable).is_some() })
        };
        let cases = [
            (Fault::unsent(wire_error::unavailable("x")), true, true),
            (Fault::lost(wire_error::unavailable("x")), false, true),
            (Fault::from(Failure::new(&reason::RATE_LIMITED)), true, true),
            (Fault::from(Failure::new(&reason::AGENT_UNAVAILABLE)), true, true),
            (Fault::from(Failure::new(&reason::DEADLINE_EXCEEDED)), false, true),
            (Layer::Pool.ran_out(Duration::ZERO), true, true),
            (Layer::Read.ran_out(Duration::ZERO), false, true),
            (Layer::Total.ran_out(Duration::ZERO), false, true),
            (Fault::from(Failure::new(&reason::TASK_NOT_FOUND)), false, false),
            (Fault::from(Failure::new(&reason::UNAVAILABLE).with_retryable(false)), false, false),
        ];
        for (fault, of_a_send, of_a_read) in cases {
            assert_eq!(repeats(&fault, false), of_a_send, "{}", fault.failure);
            assert_eq!(repeats(&fault, true), of_a_read, "{}", fault.failure);
        }
    }
}
