//! The bounded queue of the exporter: a slow or unavailable collector costs the oldest records and
//! never delays a task. A producer copies its bytes under a lock.

use std::{collections::VecDeque, sync::OnceLock};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::wire;

static TRACES: OnceLock<Tracing> = OnceLock::new();
static LOGS: OnceLock<ExportQueue> = OnceLock::new();

/// The queue of spans, and the spans that go into it. Set once at the start of the process.
#[derive(Debug)]
pub(super) struct Tracing {
    pub(super) queue: ExportQueue,
    /// Spans that end in error are exported also if their trace is not sampled.
    pub(super) keep_errors: bool,
    /// Spans also have the attributes of OpenInference.
    pub(super) openinference: bool,
}

/// The queue for spans of a sampled or unsampled trace; `None`: they are not recorded.
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

/// `None`: the queue was set before.
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
    /// The name in log messages.
    pub(super) fn noun(self) -> &'static str {
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
    /// A batch is full, or the queue is closed.
    pub(super) ready: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    full: VecDeque<Batch>,
    open: Batch,
    /// Records dropped because the queue was full.
    dropped: u64,
    is_closed: bool,
}

/// Encoded records one after another, each with the tag of the list that will contain them.
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

    /// The oldest batch; a partial batch only if there is no full one.
    pub(super) fn take(&self) -> Option<Batch> {
        let mut queue = self.lock();
        let oldest = queue.full.pop_front();
        oldest.or_else(|| Some(std::mem::take(&mut queue.open)).filter(|batch| batch.count > 0))
    }

    pub(super) fn has_full(&self) -> bool {
        !self.lock().full.is_empty()
    }

    /// The number of records dropped since the last call.
    pub(super) fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.lock().dropped)
    }

    /// After this the exporter ends once the queue is empty.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.ready.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// All records so far. They stay in the queue.
    pub(super) fn snapshot(&self) -> Vec<u8> {
        let queue = self.lock();
        let all = queue.full.iter().chain([&queue.open]);
        all.flat_map(|batch| batch.bytes.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_drops_the_oldest_batch_and_counts_it() {
        let queue = ExportQueue::new(2, 4);
        for record in 0..7_u8 {
            queue.push(&[record]);
        }
        assert_eq!(queue.take_dropped(), 2);
        assert_eq!(queue.take_dropped(), 0, "reading the count resets it");
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).map(|batch| batch.bytes).collect();
        let record = |n| [0x12, 1, n];
        assert_eq!(
            taken,
            [[record(2), record(3)].concat(), [record(4), record(5)].concat(), record(6).to_vec()]
        );
    }
}
