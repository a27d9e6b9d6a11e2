//! When a call is made again, and after how long. Only what cannot do harm twice is repeated.

use std::time::Duration;

use faultline_proto::{Failure, reason::Retry as Class, v1::Plane};
use tokio::time::{Instant, sleep};
use tonic::Code;

/// How calls are repeated. Reads, cancels and deletes are repeated when the failure may pass; a
/// send only when the failure proves that nothing ran, or when it has an idempotency key.
///
/// A delay that the server asks for, by `Retry-After` or `RetryInfo`, is kept. When it is longer
/// than the time that is left the failure is returned at once, and still says how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Calls after the first.
    pub max: u32,
    /// Before the second call; twice as long before each further one.
    pub backoff: Duration,
    /// The longest pause that is not asked for by the server.
    pub backoff_max: Duration,
    /// For all calls and pauses together.
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
    /// Every failure is the caller's to see.
    pub fn never() -> Self {
        Self { max: 0, ..Self::default() }
    }

    /// Makes a call until it goes well or there is no point in another. If the outcome of a call
    /// with a key is unknown, the failure says that the key makes it safe to repeat.
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

/// Twice as long each time, and up to a quarter longer still, so that those who broke off
/// together do not come back together. Never longer than `max`.
pub(crate) fn backoff(first: Duration, max: Duration, attempt: u32) -> Duration {
    let pause = first.saturating_mul(1 << attempt.min(16)).min(max.mul_f64(0.8));
    pause.mul_f64(rand::random_range(1.0..1.25))
}

/// What is known of a failed call beyond its failure.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) failure: Failure,
    /// The server cannot have acted: it was not reached, or it refused before it began.
    pub(crate) not_executed: bool,
    /// It is the wire's: no peer that speaks A2A put it into words.
    pub(crate) from_transport: bool,
}

impl From<Failure> for Fault {
    /// A failure that the server put into words itself, before it did anything: what ran and
    /// failed would have been answered with a task.
    fn from(failure: Failure) -> Self {
        let refused = matches!(failure.code(), Code::Unavailable | Code::ResourceExhausted);
        // A stranger has to say so in as many words.
        let not_executed = refused && (!failure.foreign || failure.retryable == Some(true));
        Self { failure, not_executed, from_transport: false }
    }
}

impl Fault {
    /// Nobody was reached.
    pub(crate) fn unsent(failure: Failure) -> Self {
        Self { failure, not_executed: true, from_transport: true }
    }

    /// What became of the call is not known.
    pub(crate) fn lost(failure: Failure) -> Self {
        Self { failure, not_executed: false, from_transport: true }
    }

    /// The connection broke after the call was sent, so nobody knows what became of it.
    fn is_lost(&self) -> bool {
        !self.not_executed && self.from_transport && self.failure.plane() == Plane::Transport
    }

    /// Whether the same call may go better later, and may be made.
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

/// The clock and the counts of one call. What the wire did and what the peer said are counted
/// apart, for whoever reads the log, and allowed together.
struct Attempts {
    retry: Retry,
    wire: u32,
    call: u32,
    until: Instant,
}

impl Attempts {
    /// How long to wait before the next call; none when there is to be no next.
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
        tracing::debug!(reason, after_ms, wire_retries, call_retries, "a call is made again");
        Some(pause)
    }

    fn made(&self) -> u32 {
        self.wire + self.call
    }

    /// The last failure, with how often the call was made again for it.
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
    async fn lost_call_with_a_key_says_that_its_key_makes_it_safe_to_repeat() {
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
        // The first call was lost, and the server cannot be reached any more.
        let calls = std::sync::atomic::AtomicU32::new(0);
        let call = || async {
            let is_first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            let failure = wire_error::unavailable("x");
            Err::<(), _>(if is_first { Fault::lost(failure) } else { Fault::unsent(failure) })
        };
        assert!(retry.run(true, true, call).await.unwrap_err().repeat_with_key);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_doubles_and_ends_after_the_last_try() {
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
    fn no_pause_is_longer_than_it_may_be() {
        let first = Duration::from_secs(1);
        let max = Duration::from_secs(30);
        for attempt in 0..100 {
            let pause = backoff(first, max, attempt);
            assert!(pause <= max, "attempt {attempt}: {pause:?}");
            assert!(attempt < 9 || pause >= max.mul_f64(0.8), "attempt {attempt}: {pause:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_that_is_asked_for_is_kept_or_not_waited_for_at_all() {
        let told = |s| {
            let failure = Failure::new(&reason::RATE_LIMITED);
            Fault::from(failure.with_retry_after(Duration::from_secs(s)))
        };
        let mut attempts = Retry::default().start();
        assert_eq!(attempts.pause(&told(7), false), Some(Duration::from_secs(7)));
        assert_eq!(attempts.pause(&told(61), false), None);
    }

    #[test]
    fn a_send_is_repeated_only_when_nothing_can_have_happened() {
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
