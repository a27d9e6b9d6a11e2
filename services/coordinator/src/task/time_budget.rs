//! The time budget of a task: its deadline in active time and how much of it is used. Active
//! time is queueing, computing and pausing before a retry; waiting for an answer is free. Pure.

use std::time::Duration;

use faultline_proto::request_options::{self, TASK_TIMEOUT_MAX};

use crate::task::Millis;

/// The least time that a call must leave of the caller's time.
const USEFUL: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Budget {
    /// None: as much as it takes.
    limit: Option<Duration>,
    /// In the stretches that are over.
    used: Duration,
    /// When the stretch that runs began.
    since: Option<Millis>,
}

impl Budget {
    /// Zero: as much as it takes.
    pub(crate) fn of(timeout_ms: u64) -> Self {
        let limit = Duration::from_millis(timeout_ms).min(TASK_TIMEOUT_MAX);
        Self { limit: Some(limit).filter(|limit| !limit.is_zero()), ..Self::default() }
    }

    pub(crate) fn limit(self) -> Option<Duration> {
        self.limit
    }

    pub(crate) fn is_running(self) -> bool {
        self.since.is_some()
    }

    pub(crate) fn run(&mut self, at: Millis) {
        self.since.get_or_insert(at);
    }

    pub(crate) fn pause(&mut self, at: Millis) {
        self.used = self.used_at(at);
        self.since = None;
    }

    pub(crate) fn left(self, now: Millis) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.used_at(now)))
    }

    /// A clock that was set back has taken no time.
    fn used_at(self, now: Millis) -> Duration {
        let running = self.since.map_or(0, |since| now.saturating_sub(since).max(0));
        self.used.saturating_add(Duration::from_millis(running.unsigned_abs()))
    }
}

/// The limit of a new task is the smallest of what the caller asks, within what the operator lets
/// callers ask, what the agent is given, and what is left to the task that delegates. The error is
/// what was left there: too little for anything useful.
pub(crate) fn allot(
    asked: Option<Duration>,
    asked_max: Option<Duration>,
    agent: Option<Duration>,
    parent_left: Option<Duration>,
) -> Result<Option<Duration>, Duration> {
    let asked = asked.map(|asked| asked_max.map_or(asked, |max| asked.min(max)));
    let parent = match parent_left {
        None => None,
        Some(left) => match left.saturating_sub(request_options::reserve(left)) {
            rest if rest < USEFUL => return Err(left),
            rest => Some(rest),
        },
    };
    Ok([asked, agent, parent].into_iter().flatten().min())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn only_active_time_is_used() {
        let mut budget = Budget::of(1000);
        assert_eq!(budget.left(5), Some(ms(1000)), "not begun");
        budget.run(100);
        budget.run(200);
        assert_eq!(budget.left(400), Some(ms(700)), "from the first");
        budget.pause(400);
        budget.pause(500);
        assert_eq!(budget.left(1_000_000), Some(ms(700)), "waiting costs nothing");
        budget.run(1_000_000);
        assert_eq!(budget.left(1_000_600), Some(ms(100)));
        assert_eq!(budget.left(2_000_000), Some(ms(0)));
        assert_eq!(Budget::of(0).left(7), None);
    }

    #[test]
    fn clock_going_back_changes_no_budget() {
        let mut budget = Budget::of(1000);
        budget.run(10_000);
        assert_eq!(budget.left(5_000), Some(ms(1000)));
        budget.pause(5_000);
        assert_eq!(budget.left(0), Some(ms(1000)));
        budget.run(i64::MIN);
        budget.pause(i64::MAX);
        assert_eq!(budget.left(0), Some(ms(0)));
    }

    proptest! {
        #[test]
        fn the_time_of_a_chain_only_shrinks(
            asked in prop::option::of(1u64..100_000),
            max in prop::option::of(1u64..100_000),
            agent in prop::option::of(1u64..100_000),
            left in prop::option::of(0u64..100_000),
        ) {
            let [asked, max, agent, left] = [asked, max, agent, left].map(|n| n.map(ms));
            match allot(asked, max, agent, left) {
                Ok(None) => prop_assert!(asked.is_none() && agent.is_none() && left.is_none()),
                Ok(Some(limit)) => {
                    prop_assert!(asked.is_none_or(|asked| limit <= asked));
                    prop_assert!(asked.is_none() || max.is_none_or(|max| limit <= max));
                    prop_assert!(agent.is_none_or(|agent| limit <= agent));
                    let fits = |left| limit + request_options::reserve(left) <= left;
                    prop_assert!(left.is_none_or(fits));
                }
                Err(was) => prop_assert!(Some(was) == left && was < USEFUL + ms(21)),
            }
        }

        #[test]
        fn remaining_time_never_grows(
            limit in 1u64..10_000,
            steps in prop::collection::vec((0i64..500, any::<bool>()), 1..50),
        ) {
            let (mut budget, mut at, mut before) = (Budget::of(limit), 0, ms(limit));
            for (step, runs) in steps {
                at += step;
                if runs { budget.run(at) } else { budget.pause(at) }
                let left = budget.left(at).unwrap();
                prop_assert!(left <= before);
                before = left;
            }
        }
    }
}
