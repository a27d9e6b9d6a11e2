//! An ordered set of timers with one key each. Knows neither tasks nor clocks; the timer loop
//! sleeps until the earliest timer.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use tokio::time::Instant;

pub(crate) struct Timers<K> {
    due: BTreeSet<(Instant, K)>,
    of: HashMap<K, Instant>,
    /// The earliest timer has moved forward since `take_sooner` was called last.
    sooner: bool,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), of: HashMap::new(), sooner: false }
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    /// Sets a timer. An earlier time for the same key is replaced.
    pub(crate) fn set(&mut self, key: K, at: Instant) {
        self.clear(key);
        self.sooner |= self.next().is_none_or(|next| at < next);
        self.of.insert(key, at);
        self.due.insert((at, key));
    }

    pub(crate) fn clear(&mut self, key: K) {
        if let Some(at) = self.of.remove(&key) {
            self.due.remove(&(at, key));
        }
    }

    pub(crate) fn at(&self, key: K) -> Option<Instant> {
        self.of.get(&key).copied()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns the earliest timer that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<K> {
        let (_, key) = *self.due.first().filter(|(at, _)| *at <= now)?;
        self.clear(key);
        Some(key)
    }

    /// Whether the timer loop has to shorten its sleep.
    pub(crate) fn take_sooner(&mut self) -> bool {
        std::mem::take(&mut self.sooner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_fire_once_in_order_at_their_last_time() {
        let start = Instant::now();
        let at = |n: u64| start + Duration::from_secs(n);
        let mut timers = Timers::default();
        assert!(!timers.take_sooner());
        timers.set('b', at(2));
        assert!(timers.take_sooner());
        timers.set('c', at(3));
        assert!(!timers.take_sooner(), "the next one is the same");
        timers.set('a', at(1));
        assert!(timers.take_sooner());
        timers.set('a', at(4));
        timers.set('d', at(1));
        timers.clear('d');
        assert_eq!((timers.next(), timers.at('a')), (Some(at(2)), Some(at(4))));
        assert_eq!(timers.pop(at(1)), None);
        let due: Vec<_> = std::iter::from_fn(|| timers.pop(at(9))).collect();
        assert_eq!(due, ['b', 'c', 'a']);
        assert_eq!(timers.next(), None);
    }
}
