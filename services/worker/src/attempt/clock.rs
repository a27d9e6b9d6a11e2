//! Time budget of a task: the active time that is left, as its agent sees it. The clock is paused
//! while a question to a human is open. Pure: the present time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Owned by the state of an attempt and guarded by its lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// The time that was left at `running_since`; `None`: the task has no deadline.
    left: Option<Duration>,
    /// Start of the current stretch; `None`: the clock is paused.
    running_since: Option<Instant>,
    /// Number of open questions.
    pauses: u32,
}

impl Clock {
    pub(crate) fn new(remaining_ms: Option<u64>, now: Instant) -> Self {
        let left = remaining_ms.map(Duration::from_millis);
        Self { left, running_since: Some(now), pauses: 0 }
    }

    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let used = self
            .running_since
            .map_or(Duration::ZERO, |running_since| now.saturating_duration_since(running_since));
        self.left.map(|left| left.saturating_sub(used))
    }

    /// Takes the budget that the coordinator sent. The coordinator is authoritative.
    pub(crate) fn set(&mut self, remaining_ms: Option<u64>, now: Instant) {
        self.left = remaining_ms.map(Duration::from_millis);
        self.running_since = self.running_since.map(|_| now);
    }

    /// A question was opened.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.left = self.left(now);
        self.running_since = None;
        self.pauses += 1;
    }

    /// A question was closed; the clock runs again once none is open.
    pub(crate) fn resume(&mut self, now: Instant) {
        self.pauses -= 1;
        if self.pauses == 0 {
            self.running_since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_is_paused_while_any_question_is_open() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let left = |clock: &Clock, ms| clock.left(at(ms)).map(|left| left.as_millis());
        let mut clock = Clock::new(Some(1000), at(0));
        assert_eq!(left(&clock, 100), Some(900));
        clock.pause(at(200));
        clock.pause(at(300));
        clock.resume(at(5000));
        assert_eq!(left(&clock, 9000), Some(800));
        clock.resume(at(9000));
        assert_eq!(left(&clock, 9100), Some(700));
        clock.pause(at(9100));
        clock.set(Some(650), at(9500));
        assert_eq!(left(&clock, 9900), Some(650));
        clock.resume(at(9900));
        assert_eq!(left(&clock, 10_000), Some(550));
        assert_eq!(left(&clock, 99_000), Some(0));
        assert_eq!(Clock::new(None, at(0)).left(at(5)), None);
    }
}
