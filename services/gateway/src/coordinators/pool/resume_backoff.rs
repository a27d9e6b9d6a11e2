//! How long and how often something that lost its coordinator is tried elsewhere. A loss that comes
//! long after the last one is a new one.

use std::time::Duration;

use faultline_chassis::limits;
use tokio::time::Instant;

pub(super) struct ResumeBackoff {
    bound: Duration,
    /// When it was first lost, since all was well.
    since: Option<Instant>,
    /// When it was taken up, wherever that was last.
    begun: Option<Instant>,
    pause: Duration,
}

impl ResumeBackoff {
    pub(super) fn new(bound: Duration) -> Self {
        Self { bound, since: None, begun: None, pause: Duration::ZERO }
    }

    /// All is well again.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.bound);
    }

    /// Somebody took it up, and may keep it for long without a word.
    pub(super) fn on_resumed(&mut self) {
        self.begun = Some(Instant::now());
    }

    /// It was lost: the pause before it is tried again; `None`: that is enough. The first is none,
    /// and all others are partly by chance, so that what was lost as one does not come as one.
    pub(super) fn next_pause(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.begun.take().is_some_and(|begun| now - begun > self.bound) {
            self.reset();
        }
        let since = *self.since.get_or_insert(now);
        if now - since >= self.bound {
            return None;
        }
        let pause = self.pause;
        self.pause = (pause * 2).clamp(limits::RESUME_BACKOFF_MIN, limits::RESUME_BACKOFF_MAX);
        Some(pause.mul_f64(rand::random_range(0.5..=1.0)))
    }

    /// When it ends.
    pub(super) fn deadline(&self) -> Instant {
        self.since.unwrap_or_else(Instant::now) + self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_become_rarer_end_at_the_bound_and_begin_anew_after_a_long_calm() {
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
        assert_eq!(backoff.next_pause(), None, "not long enough to count as calm");
        backoff.on_resumed();
        tokio::time::sleep(bound * 2).await;
        assert_eq!(backoff.next_pause(), Some(Duration::ZERO), "a new loss");
        backoff.reset();
        assert_eq!(backoff.next_pause(), Some(Duration::ZERO));
    }
}
