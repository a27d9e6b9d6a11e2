//! The failure counter: each failure counts once, where it originates. Labels are bounded: reasons
//! come from the table, and agents from the known ones.

use faultline_proto::{
    reason,
    v1::{self, Plane, Severity},
};

use super::{Counter, Counters, Def, Metrics, Unit};

const FAILURES: Def<4> = Def::new(
    "faultline.failures",
    Unit::Of("failure"),
    "Failures, each counted where it was born; recoverable ones did not end their task.",
    ["reason", "origin_agent", "severity", "plane"],
);
const TRUNCATED: Def<0> = Def::new(
    "faultline.failure.details_truncated",
    Unit::Of("failure"),
    "Failures that lost details because they did not fit.",
    [],
);

/// The label of a reason that is not in the table.
const FOREIGN: &str = "OTHER";

#[derive(Clone, Debug)]
pub struct Failures {
    born: Counters<4>,
    truncated: Counter,
}

impl Failures {
    pub fn of(metrics: &Metrics) -> Self {
        Self { born: metrics.counter(&FAILURES), truncated: metrics.counter(&TRUNCATED).with([]) }
    }

    /// Counts a failure of an agent that the caller knows; empty: of none.
    pub fn count(&self, failure: &v1::Failure, origin_agent: &str, severity: Severity) {
        let severity = match severity {
            Severity::Recoverable => "recoverable",
            Severity::Fatal | Severity::Unspecified => "fatal",
        };
        let plane = match failure.plane() {
            Plane::Transport => "transport",
            Plane::Execution => "execution",
            Plane::Protocol | Plane::Unspecified => "protocol",
        };
        let labels = [reason_of(failure), origin_agent, severity, plane];
        self.born.at(labels, |counter| counter.add(1));
    }

    /// Counts a failure that lost details because of their size.
    pub fn truncated(&self) {
        self.truncated.add(1);
    }
}

/// The reason, if it is in the table.
pub fn reason_of(failure: &v1::Failure) -> &'static str {
    reason::find(&failure.domain, &failure.reason).map_or(FOREIGN, |row| row.name)
}
