//! Exponential backoff with jitter and a deadline, for a call or stream that has lost its
//! coordinator. A loss long after the last one starts anew.

use std::time::Duration;

use faultline_chassis::{
    backoff::{Backoff, Pauses},
    limits,
};
use tokio::time::Instant;

const BACKOFF: Backoff = Backoff::new(limits::RESUME_BACKOFF_MIN, limits::RESUME_BACKOFF_MAX);

/// The backoff of one call or stream, which owns it.
pub(super) struct ResumeBackoff {
    bound: Duration,
    /// The first loss since the last success.
    lost_since: Option<Instant>,
    /// The last time that a coordinator took the call.
    resumed_at: Option<Instant>,
    /// Set by the first attempt, which has no pause.
    pauses: Option<Pauses>,
}

impl ResumeBackoff {
    pub(super) fn new(bound: Duration) -> Self {
        Self { bound, lost_since: None, resumed_at: None, pauses: None }
    }

    /// After a success.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.bound);
    }

    /// A coordinator took the call, and may be silent for long.
    pub(super) fn on_resumed(&mut self) {
        self.resumed_at = Some(Instant::now());
    }

    /// After a loss: the pause before the next attempt, or `None` at the deadline. The first pause
    /// is zero; the others have jitter, so that calls lost together do not return together.
    pub(super) fn next_pause(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.resumed_at.take().is_some_and(|at| now - at > self.bound) {
            self.reset();
        }
        let since = *self.lost_since.get_or_insert(now);
        if now - since >= self.bound {
            return None;
        }
        match &mut self.pauses {
            Some(pauses) => Some(pauses.next_pause()),
            None => {
                self.pauses = Some(BACKOFF.start());
                Some(Duration::ZERO)
            }
        }
    }

    /// The deadline of the attempts.
    pub(super) fn deadline(&self) -> Instant {
        self.lost_since.unwrap_or_else(Instant::now) + self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn attempts_back_off_end_at_the_deadline_and_start_anew_after_a_long_calm() {
        let bound = Duration::from_secs(10);
        let mut backoff = ResumeBackoff::new(bound);
        let start = Instant::now();
        assert_eq!(backoff.next_pause(), Some(Duration::ZERO));
        let mut tries = 1;
        while let Some(pause) = backoff.next_pause() {
            assert!(pause <= limits::RESUME_BACKOFF_MAX);
            tokio::time::sleep(pause).await;
            tries += 1;
        }
        assert!(start.elapsed() >= bound && start.elapsed() <= bound + limits::RESUME_BACKOFF_MAX);
        assert!((10..40).contains(&tries), "{tries}");
        backoff.on_resumed();
        tokio::time::sleep(bound / 2).await;
        assert_eq!(backoff.next_pause(), None, "the calm was shorter than the bound");
        backoff.on_resumed();
        tokio::time::sleep(bound * 2).await;
        assert_eq!(backoff.next_pause(), Some(Duration::ZERO), "a new loss");
        backoff.reset();
        assert_eq!(backoff.next_pause(), Some(Duration::ZERO));
    }
}
