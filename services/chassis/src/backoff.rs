//! Exponential backoff with jitter, for every retry and poll loop of the workspace.

use std::time::Duration;

/// The policy: each pause is twice the one before, up to a maximum, times a random factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    jitter: (f64, f64),
}

impl Backoff {
    /// The jitter is a factor between a half and one: clients that failed together do not come back
    /// together.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, jitter: (0.5, 1.0) }
    }

    /// Sets the range of the random factor.
    pub const fn jitter(self, least: f64, most: f64) -> Self {
        Self { jitter: (least, most), ..self }
    }

    /// For a loop that polls: it competes with no others.
    pub const fn without_jitter(self) -> Self {
        self.jitter(1.0, 1.0)
    }

    /// The pause after `earlier` pauses. `chance`, from 0 to 1, chooses the jitter.
    pub fn pause(&self, earlier: u32, chance: f64) -> Duration {
        let (least, most) = self.jitter;
        let pause = self.first.saturating_mul(1 << earlier.min(31)).min(self.max);
        pause.mul_f64(least + chance * (most - least))
    }

    /// The same with a random jitter.
    pub fn random_pause(&self, earlier: u32) -> Duration {
        self.pause(earlier, rand::random())
    }

    /// The sequence of pauses of one loop.
    pub fn start(self) -> Pauses {
        Pauses { backoff: self, earlier: 0 }
    }
}

/// A backoff in progress. Its loop owns it.
#[derive(Clone, Debug)]
pub struct Pauses {
    backoff: Backoff,
    earlier: u32,
}

impl Pauses {
    /// The next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.backoff.random_pause(self.earlier);
        self.earlier = self.earlier.saturating_add(1);
        pause
    }

    /// Starts over with the shortest pause, after a success.
    pub fn reset(&mut self) {
        self.earlier = 0;
    }

    /// Whether no pause was taken since the start or the last success.
    pub fn is_fresh(&self) -> bool {
        self.earlier == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_maximum_and_start_over_after_a_reset() {
        let mut pauses = Backoff::new(50 * MS, 300 * MS).without_jitter().start();
        assert!(pauses.is_fresh());
        let first = [0; 4].map(|_| pauses.next_pause());
        assert_eq!(first, [50 * MS, 100 * MS, 200 * MS, 300 * MS]);
        assert!(!pauses.is_fresh());
        pauses.reset();
        assert_eq!(pauses.next_pause(), 50 * MS);
        let backoff = Backoff::new(50 * MS, Duration::MAX).without_jitter();
        assert!(backoff.pause(u32::MAX, 0.5) >= backoff.pause(31, 0.5));
    }

    #[test]
    fn jitter_scales_each_pause_within_its_range() {
        let backoff = Backoff::new(100 * MS, 400 * MS);
        assert_eq!([0.0, 1.0].map(|chance| backoff.pause(1, chance)), [100 * MS, 200 * MS]);
        let longer = backoff.jitter(1.0, 1.25);
        assert_eq!([0.0, 1.0].map(|chance| longer.pause(9, chance)), [400 * MS, 500 * MS]);
        for earlier in 0..100 {
            let pause = backoff.random_pause(earlier);
            assert!((50 * MS..=400 * MS).contains(&pause), "{pause:?}");
        }
    }
}
