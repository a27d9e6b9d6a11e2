//! Metrics of a worker: attempts, fan-outs, slots and whether the worker is attached. The
//! coordinator counts tasks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use faultline_chassis::{
    Metrics,
    metrics::{Counters, Def, Gauge, GaugeGuard, Gauges, Histogram, Histograms, Unit, WORK_BOUNDS},
};
use faultline_proto::v1::report::Body;

const RUNNING: Def<1> = Def::new(
    "faultline.worker.attempts",
    Unit::Of("attempt"),
    "Attempts that this worker runs, whatever they wait for.",
    ["agent"],
);
const ATTEMPTS: Def<2> = Def::time(
    "faultline.attempt.duration",
    "Attempts that this worker ran, by how they ended.",
    ["agent", "outcome"],
    WORK_BOUNDS,
);
const FANOUTS: Def<1> = Def::new(
    "faultline.fanout.results",
    Unit::Of("fanout"),
    "Fan-outs: complete, degraded because some branch failed, or with too few results.",
    ["outcome"],
);
const BRANCHES: Def<1> = Def::new(
    "faultline.fanout.branches",
    Unit::Of("branch"),
    "Branches of fan-outs: succeeded, failed, or cancelled because enough had.",
    ["outcome"],
);
const ATTACHED: Def<0> = Def::new(
    "faultline.worker.attached",
    Unit::None,
    "Whether this worker is attached to a coordinator: 1 or 0.",
    [],
);
const SLOTS: Def<0> =
    Def::new("faultline.worker.slots", Unit::Of("slot"), "Slots that this worker offers.", []);

const COMPLETED: &str = "completed";

/// The instruments of one worker, shared by all its attempts.
pub(crate) struct WorkerMetrics {
    running: Gauges<1>,
    attempts: Histograms<2>,
    fanouts: Counters<1>,
    branches: Counters<1>,
}

impl WorkerMetrics {
    pub(crate) fn new(metrics: &Metrics, attached: &Arc<AtomicBool>, slots: u32) -> Arc<Self> {
        let attached = Arc::downgrade(attached);
        metrics.observe(move |seen| {
            let Some(attached) = attached.upgrade() else { return false };
            seen.gauge(&ATTACHED, [], attached.load(Ordering::Relaxed).into());
            seen.gauge(&SLOTS, [], slots.into());
            true
        });
        Arc::new(Self {
            running: metrics.gauge(&RUNNING),
            attempts: metrics.histogram(&ATTEMPTS),
            fanouts: metrics.counter(&FANOUTS),
            branches: metrics.counter(&BRANCHES),
        })
    }

    /// Counts a finished fan-out and its branches.
    pub(crate) fn record_fanout(
        &self,
        asked: usize,
        required: usize,
        succeeded: usize,
        failed: usize,
    ) {
        let outcome = match (succeeded < required, failed) {
            (true, _) => "too_few",
            (false, 0) => "complete",
            (false, _) => "degraded",
        };
        self.fanouts.at([outcome], |counter| counter.add(1));
        let cancelled = asked.saturating_sub(succeeded + failed);
        let branches = [("succeeded", succeeded), ("failed", failed), ("cancelled", cancelled)];
        for (outcome, n) in branches.into_iter().filter(|(_, n)| *n > 0) {
            self.branches.at([outcome], |counter| counter.add(n as u64));
        }
    }
}

/// The series of one agent, kept so that recording a value needs no lookup.
pub(crate) struct AgentMetrics {
    pub(crate) worker: Arc<WorkerMetrics>,
    agent: String,
    running: Gauge,
    completed: Histogram,
}

impl AgentMetrics {
    pub(crate) fn new(worker: &Arc<WorkerMetrics>, agent: &str) -> Self {
        Self {
            running: worker.running.with([agent]),
            completed: worker.attempts.with([agent, COMPLETED]),
            worker: Arc::clone(worker),
            agent: agent.to_owned(),
        }
    }

    /// Counts a running attempt until the guard is dropped.
    pub(crate) fn begin(&self) -> GaugeGuard {
        self.running.guard()
    }

    /// Records the duration of an attempt under the outcome of its final report.
    pub(crate) fn record_end(&self, last: Option<&Body>, took: Duration) {
        let outcome = match last {
            None => "forgotten",
            Some(Body::Completed(_) | Body::Message(_)) => return self.completed.record(took),
            Some(Body::Rejected(_)) => "rejected",
            Some(Body::Released(_)) => "released",
            Some(Body::Stopped(_)) => "stopped",
            Some(_) => "failed",
        };
        self.worker.attempts.at([&self.agent, outcome], |histogram| histogram.record(took));
    }
}
