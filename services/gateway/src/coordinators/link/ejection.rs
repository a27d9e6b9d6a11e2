//! Outlier ejection: a coordinator with consecutive failures gets no calls for a while, longer each
//! time. Pure; time is an argument.

use faultline_chassis::limits;
use tokio::time::Instant;

/// The failures of one coordinator. Under the lock of its link.
#[derive(Default)]
pub(super) struct OutlierState {
    /// Failures since the last success.
    consecutive_failures: u32,
    /// Ejections since the last success.
    ejections: u32,
    /// The end of the last ejection.
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

    /// The end of the present ejection. A late success of an earlier call does not shorten it.
    pub(super) fn ejected_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn consecutive_failures_eject_for_longer_each_time_and_success_resets() {
        let mut state = OutlierState::default();
        let mut now = Instant::now();
        let row = |state: &mut OutlierState, now: Instant| {
            for _ in 1..limits::EJECT_AFTER {
                state.on_failure(now);
                assert_eq!(state.ejected_until(now), None, "below the threshold");
            }
            state.on_failure(now);
            state.ejected_until(now).expect("the threshold is reached") - now
        };
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let time = row(&mut state, now);
            assert_eq!(time, Duration::from_secs(seconds));
            now += time;
            assert_eq!(state.ejected_until(now), None, "the ejection has ended");
        }
        for _ in 1..limits::EJECT_AFTER {
            state.on_failure(now);
        }
        state.on_success();
        assert_eq!(row(&mut state, now), limits::EJECT_MIN, "a success resets the duration");
    }
}
