//! Whether a coordinator is worth a call: one that fails several in a row is left alone for a
//! while, longer each time. Pure; time is an argument.

use faultline_chassis::limits;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Health {
    /// Failures since the last success.
    in_a_row: u32,
    /// How often it was left alone without a success since.
    rounds: u32,
    until: Option<Instant>,
}

impl Health {
    pub(super) fn well(&mut self) {
        (self.in_a_row, self.rounds) = (0, 0);
    }

    pub(super) fn badly(&mut self, now: Instant) {
        self.in_a_row += 1;
        if self.in_a_row >= limits::EJECT_AFTER && self.ejected(now).is_none() {
            let longer = 1_u32.checked_shl(self.rounds).unwrap_or(u32::MAX);
            let time = limits::EJECT_MIN.saturating_mul(longer).min(limits::EJECT_MAX);
            self.until = Some(now + time);
            (self.in_a_row, self.rounds) = (0, self.rounds + 1);
        }
    }

    /// Until when it is left alone, if it is. A late answer to an earlier call changes nothing.
    pub(super) fn ejected(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_row_of_failures_ejects_for_longer_each_time_and_a_success_resets() {
        let (mut health, mut now) = (Health::default(), Instant::now());
        let row = |health: &mut Health, now: Instant| {
            for _ in 1..limits::EJECT_AFTER {
                health.badly(now);
                assert_eq!(health.ejected(now), None, "not yet");
            }
            health.badly(now);
            health.ejected(now).expect("too many") - now
        };
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let time = row(&mut health, now);
            assert_eq!(time, Duration::from_secs(seconds));
            now += time;
            assert_eq!(health.ejected(now), None, "it has another chance");
        }
        for _ in 1..limits::EJECT_AFTER {
            health.badly(now);
        }
        health.well();
        assert_eq!(row(&mut health, now), limits::EJECT_MIN, "all is forgotten");
    }
}
