//! What waits to be exported: bounded, so that a collector that is slow or gone costs the oldest
//! of it and never a task. Whoever puts something in copies bytes under a lock and goes on.

use std::{collections::VecDeque, sync::OnceLock};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::wire;

static TRACES: OnceLock<Tracing> = OnceLock::new();
static LOGS: OnceLock<ExportQueue> = OnceLock::new();

/// Where spans go, and which.
#[derive(Debug)]
pub(super) struct Tracing {
    pub(super) queue: ExportQueue,
    /// Those that end in error go also if their trace is not sampled.
    pub(super) keep_errors: bool,
    /// They say the same once more in the words of OpenInference.
    pub(super) openinference: bool,
}

/// Whoever takes the spans of a trace that is sampled or not; `None`: nobody.
pub(super) fn spans(sampled: bool) -> Option<&'static ExportQueue> {
    let tracing = TRACES.get()?;
    (sampled || tracing.keep_errors).then_some(&tracing.queue)
}

pub(super) fn is_enabled() -> bool {
    TRACES.get().is_some()
}

pub(super) fn openinference() -> bool {
    TRACES.get().is_some_and(|tracing| tracing.openinference)
}

pub(super) fn logs() -> Option<&'static ExportQueue> {
    LOGS.get()
}

/// `None`: there was one already.
pub(super) fn open_traces(tracing: Tracing) -> Option<&'static ExportQueue> {
    TRACES.set(tracing).ok()?;
    TRACES.get().map(|tracing| &tracing.queue)
}

pub(super) fn open_logs(queue: ExportQueue) -> Option<&'static ExportQueue> {
    LOGS.set(queue).ok()?;
    LOGS.get()
}

/// The signals that are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Logs,
}

impl Signal {
    /// For people.
    pub(super) fn what(self) -> &'static str {
        match self {
            Signal::Traces => "spans",
            Signal::Logs => "log records",
        }
    }
}

#[derive(Debug)]
pub(super) struct ExportQueue {
    queue: Mutex<Queue>,
    batch_max: usize,
    queue_max: usize,
    /// A batch is full, or it is the end.
    pub(super) ready: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    full: VecDeque<Batch>,
    open: Batch,
    /// Too many came, so the oldest went.
    dropped: u64,
    is_closed: bool,
}

/// Records one after another, each with the tag that the list they go into wants.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
}

impl ExportQueue {
    pub(super) fn new(batch_max: usize, queue_max: usize) -> Self {
        let batch_max = batch_max.max(1);
        let queue_max = queue_max.max(batch_max);
        Self { queue: Mutex::default(), batch_max, queue_max, ready: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    pub(super) fn push(&self, record: &[u8]) {
        let mut queue = self.lock();
        // `spans` of ScopeSpans and `log_records` of ScopeLogs have the same number.
        wire::bytes(&mut queue.open.bytes, 2, record);
        queue.open.count += 1;
        if queue.open.count < self.batch_max {
            return;
        }
        let room = Batch { bytes: Vec::with_capacity(queue.open.bytes.len()), count: 0 };
        let full = std::mem::replace(&mut queue.open, room);
        queue.full.push_back(full);
        while queue.full.len() * self.batch_max > self.queue_max
            && let Some(oldest) = queue.full.pop_front()
        {
            queue.dropped += oldest.count as u64;
        }
        drop(queue);
        self.ready.notify_one();
    }

    /// The oldest that waits; a batch that is not full only if that is all there is.
    pub(super) fn take(&self) -> Option<Batch> {
        let mut queue = self.lock();
        let oldest = queue.full.pop_front();
        oldest.or_else(|| Some(std::mem::take(&mut queue.open)).filter(|batch| batch.count > 0))
    }

    pub(super) fn has_full(&self) -> bool {
        !self.lock().full.is_empty()
    }

    /// How many were dropped since this was asked last.
    pub(super) fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.lock().dropped)
    }

    /// Whoever empties it may go when it is empty.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.ready.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Everything so far, and it stays.
    pub(super) fn look(&self) -> Vec<u8> {
        let queue = self.lock();
        let all = queue.full.iter().chain([&queue.open]);
        all.flat_map(|batch| batch.bytes.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_costs_the_oldest_and_is_counted() {
        let queue = ExportQueue::new(2, 4);
        for record in 0..7_u8 {
            queue.push(&[record]);
        }
        assert_eq!(queue.take_dropped(), 2);
        assert_eq!(queue.take_dropped(), 0, "it is told once");
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).map(|batch| batch.bytes).collect();
        let record = |n| [0x12, 1, n];
        assert_eq!(
            taken,
            [[record(2), record(3)].concat(), [record(4), record(5)].concat(), record(6).to_vec()]
        );
    }
}
