//! Tasks whose attempt failed and that wait to be tried again. One list for all of them, which the
//! sweep looks at; after a restart it is made anew from what the tasks say.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use faultline_chassis::limits;
use faultline_proto::id::TaskId;
use tokio::time::Instant;

use crate::{core::State, task::Millis};

/// By a clock that does not jump.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    due: BTreeSet<(Instant, TaskId)>,
    tasks: HashMap<TaskId, Instant>,
}

impl Pauses {
    fn add(&mut self, task: TaskId, until: Instant) {
        self.remove(task);
        self.due.insert((until, task));
        self.tasks.insert(task, until);
    }

    pub(crate) fn remove(&mut self, task: TaskId) {
        if let Some(until) = self.tasks.remove(&task) {
            self.due.remove(&(until, task));
        }
    }

    fn next_due(&mut self, now: Instant) -> Option<TaskId> {
        let (_, task) = self.due.first().copied().filter(|(until, _)| *until <= now)?;
        self.remove(task);
        Some(task)
    }
}

impl State {
    /// A task that nobody has is given to somebody, or waits until that may be.
    pub(crate) fn place_in_time(&mut self, id: TaskId, now: Millis) {
        let Some(live) = self.live.get(&id) else { return };
        match live.task.retry_at {
            Some(at) => self.pauses.add(id, Instant::now() + until(at, now)),
            None => self.place(id, now),
        }
    }

    /// Gives out what has waited long enough.
    pub(crate) fn end_pauses(&mut self, until: Instant, now: Millis) {
        while let Some(id) = self.pauses.next_due(until) {
            self.place(id, now);
        }
    }
}

/// The clock on the wall may have been set back since; nothing waits longer than it ever could.
fn until(at: Millis, now: Millis) -> Duration {
    let millis = u64::try_from(at.saturating_sub(now)).unwrap_or(0);
    Duration::from_millis(millis).min(limits::RETRY_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_in_the_order_of_their_time_and_only_once() {
        let (mut pauses, start) = (Pauses::default(), Instant::now());
        let ids: Vec<_> = (0..3).map(|_| TaskId::new()).collect();
        for (id, secs) in ids.iter().zip([3, 1, 2]) {
            pauses.add(*id, start + Duration::from_secs(secs));
        }
        pauses.remove(ids[2]);
        assert_eq!(pauses.next_due(start), None);
        assert_eq!(pauses.next_due(start + Duration::from_secs(2)), Some(ids[1]));
        assert_eq!(pauses.next_due(start + Duration::from_secs(2)), None);
        pauses.add(ids[0], start);
        assert_eq!(pauses.next_due(start), Some(ids[0]));
        assert!(pauses.due.is_empty() && pauses.tasks.is_empty());
    }

    #[test]
    fn a_wall_clock_that_jumps_neither_hurries_nor_holds() {
        assert_eq!(until(1500, 1000), Duration::from_millis(500));
        assert_eq!(until(1000, 9000), Duration::ZERO);
        assert_eq!(until(i64::MAX, 0), limits::RETRY_PAUSE_MAX);
    }
}
