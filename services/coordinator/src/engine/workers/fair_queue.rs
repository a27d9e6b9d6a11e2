//! Fair queue of the tasks of one agent that wait for a slot: round robin over principals, first in
//! first out within a principal, so that a principal with many tasks causes no starvation.

use std::collections::{HashMap, VecDeque};

use faultline_proto::id::TaskId;
use tokio::time::Instant;

/// Bound on stale places above the number of waiting tasks, before they are swept.
const GONE_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    waiting: HashMap<TaskId, Waiting>,
    /// The principals with a line, each once, in the order of their turns.
    turns: VecDeque<String>,
    lines: HashMap<String, VecDeque<Place>>,
    /// Places in all lines, including stale ones.
    places: usize,
    next_ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: u64,
    since: Instant,
}

/// A place in a line. The place of a removed task stays as a stale place, and is skipped on its
/// turn.
#[derive(Clone, Copy, Debug)]
struct Place {
    task: TaskId,
    ticket: u64,
}

impl FairQueue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The waiting tasks, and since when they wait.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, Instant)> {
        self.waiting.iter().map(|(task, waiting)| (*task, waiting.since))
    }

    pub(crate) fn push_back(&mut self, task: TaskId, principal: &str, now: Instant) {
        let place = self.place(task, now);
        self.line(principal).push_back(place);
    }

    /// Queues a task ahead of the other tasks of its principal.
    pub(crate) fn push_front(&mut self, task: TaskId, principal: &str, now: Instant) {
        let place = self.place(task, now);
        self.line(principal).push_front(place);
    }

    pub(crate) fn pop(&mut self) -> Option<TaskId> {
        loop {
            let principal = self.turns.pop_front()?;
            let Some(line) = self.lines.get_mut(&principal) else { continue };
            let mut next = None;
            while let Some(place) = line.pop_front() {
                self.places -= 1;
                if is_current(&self.waiting, &place) {
                    next = Some(place.task);
                    break;
                }
            }
            if line.is_empty() {
                drop(self.lines.remove(&principal))
            } else {
                self.turns.push_back(principal)
            }
            if let Some(task) = next {
                self.waiting.remove(&task);
                return Some(task);
            }
        }
    }

    pub(crate) fn remove(&mut self, task: TaskId) {
        self.waiting.remove(&task);
        if self.places > 2 * self.waiting.len() + GONE_MAX {
            self.sweep();
        }
    }

    fn place(&mut self, task: TaskId, since: Instant) -> Place {
        self.next_ticket += 1;
        self.places += 1;
        let ticket = self.next_ticket;
        self.waiting.insert(task, Waiting { ticket, since });
        Place { task, ticket }
    }

    fn line(&mut self, principal: &str) -> &mut VecDeque<Place> {
        if !self.lines.contains_key(principal) {
            self.turns.push_back(principal.to_owned());
        }
        self.lines.entry(principal.to_owned()).or_default()
    }

    fn sweep(&mut self) {
        for line in self.lines.values_mut() {
            line.retain(|place| is_current(&self.waiting, place));
        }
        self.lines.retain(|_, line| !line.is_empty());
        self.turns.retain(|principal| self.lines.contains_key(principal));
        self.places = self.waiting.len();
    }
}

fn is_current(waiting: &HashMap<TaskId, Waiting>, place: &Place) -> bool {
    waiting.get(&place.task).is_some_and(|waiting| waiting.ticket == place.ticket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(n: usize) -> Vec<TaskId> {
        (0..n).map(|_| TaskId::new()).collect()
    }

    fn drain(queue: &mut FairQueue) -> Vec<TaskId> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn principal_with_thousands_of_tasks_starves_nobody() {
        let (mut queue, now) = (FairQueue::default(), Instant::now());
        let (many, few) = (tasks(10_000), tasks(3));
        many.iter().for_each(|task| queue.push_back(*task, "many", now));
        few.iter().for_each(|task| queue.push_back(*task, "few", now));
        let first: Vec<_> = (0..6).filter_map(|_| queue.pop()).collect();
        assert_eq!(first, [many[0], few[0], many[1], few[1], many[2], few[2]]);
        assert_eq!(drain(&mut queue), many[3..], "each in order");
    }

    #[test]
    fn requeued_task_comes_before_tasks_of_its_principal_only() {
        let (mut queue, now) = (FairQueue::default(), Instant::now());
        let ids = tasks(4);
        queue.push_back(ids[0], "ann", now);
        queue.push_back(ids[1], "bob", now);
        queue.push_front(ids[2], "bob", now);
        queue.push_back(ids[3], "bob", now);
        assert_eq!(drain(&mut queue), [ids[0], ids[2], ids[1], ids[3]]);
    }

    #[test]
    fn removed_task_is_skipped_until_it_is_queued_again() {
        let (mut queue, now) = (FairQueue::default(), Instant::now());
        let ids = tasks(3);
        ids.iter().for_each(|task| queue.push_back(*task, "ann", now));
        queue.remove(ids[0]);
        assert_eq!((queue.len(), queue.iter().count()), (2, 2));
        queue.push_back(ids[0], "ann", now);
        assert_eq!(drain(&mut queue), [ids[1], ids[2], ids[0]]);
        assert!(queue.is_empty() && queue.turns.is_empty() && queue.lines.is_empty());
    }

    #[test]
    fn removed_tasks_leave_no_places() {
        let (mut queue, now) = (FairQueue::default(), Instant::now());
        for n in 0..10_000 {
            let task = TaskId::new();
            queue.push_back(task, &format!("p{}", n % 100), now);
            queue.remove(task);
        }
        let places: usize = queue.lines.values().map(VecDeque::len).sum();
        assert!(places <= GONE_MAX && queue.turns.len() <= GONE_MAX, "{places}");
        assert_eq!(queue.places, places);
    }
}
