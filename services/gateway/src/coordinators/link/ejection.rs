//! Whether a coordinator is worth a call: one that fails several in a row is left alone for a
//! while, longer each time. Pure; time is an argument.

use faultline_chassis::limits;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct OutlierState {
    /// Failures since the last success.
    consecutive_failures: u32,
    /// How often it was left alone without a success since.
    ejections: u32,
    until: Option<Instant>,
}

impl OutlierState {
    pub(super) fn on_success(&mut self) {
        (self.consecutive_failures, self.ejections) = (0, 0);
    }

    pub(super) fn on_failure(&mut self, now: Instant) {
        self.consecutive_failures += 1;
        if self.consecutive_failures >= limits::EJECT_AFTER && self.ejected_until(now).is_none() {
            let longer = 1_u32.checked_shl(self.ejections).unwrap_or(u32::MAX);
            let time = limits::EJECT_MIN.saturating_mul(longer).min(limits::EJECT_MAX);
            self.until = Some(now + time);
            (self.consecutive_failures, self.ejections) = (0, self.ejections + 1);
        }
    }

    /// Until when it is left alone, if it is. A late answer to an earlier call changes nothing.
    pub(super) fn ejected_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_row_of_failures_ejects_for_longer_each_time_and_a_success_resets() {
        let mut health = OutlierState::default();
        let mut now = Instant::now();
        let row = |health: &mut OutlierState, now: Instant| {
            for _ in 1..limits::EJECT_AFTER {
                health.on_failure(now);
                assert_eq!(health.ejected_until(now), None, "not yet");
            }
            health.on_failure(now);
            health.ejected_until(now).expect("too many") - now
        };
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let time = row(&mut health, now);
            assert_eq!(time, Duration::from_secs(seconds));
            now += time;
            assert_eq!(health.ejected_until(now), None, "it has another chance");
        }
        for _ in 1..limits::EJECT_AFTER {
            health.on_failure(now);
        }
        health.on_success();
        assert_eq!(row(&mut health, now), limits::EJECT_MIN, "all is forgotten");
    }
}
