//! Metrics of gRPC calls, unary, streamed or multiplexed on a link: number, time to the response,
//! and status.

use std::time::{Duration, Instant};

use faultline_proto::{Failure, reason};

use super::{CALL_BOUNDS, Def, Histogram, Histograms, Metrics, failures::reason_of};

const CALLS: Def<4> = Def::time(
    "rpc.server.call.duration",
    "Calls that were served; of a stream, the time to its beginning.",
    ["rpc.system.name", "rpc.method", "rpc.response.status_code", "error.type"],
    CALL_BOUNDS,
);

#[derive(Clone, Debug)]
pub struct Calls(Histograms<4>);

impl Calls {
    pub fn of(metrics: &Metrics) -> Self {
        Self(metrics.histogram(&CALLS))
    }

    /// Begins a call. `method` must be a known method, never the caller's text, because it becomes
    /// a label.
    pub fn begin(&self, method: &'static str) -> Call {
        Call { calls: self.clone(), method, well: None, since: Instant::now() }
    }

    /// The calls of a frequent method, with its series looked up in advance.
    pub fn method(&self, name: &'static str) -> Method {
        Method { calls: self.clone(), name, well: self.0.with(["grpc", name, "OK", ""]) }
    }

    pub(crate) fn ended(&self, method: &str, failure: Option<&Failure>, took: Duration) {
        let (code, error) = match failure {
            None => ("OK", ""),
            Some(failure) => (reason::code_name(failure.code()), reason_of(failure)),
        };
        self.0.at(["grpc", method, code, error], |histogram| histogram.record(took));
    }
}

/// See [`Calls::method`].
#[derive(Clone, Debug)]
pub struct Method {
    calls: Calls,
    name: &'static str,
    /// The series of successful calls.
    well: Histogram,
}

impl Method {
    pub fn begin(&self) -> Call {
        let calls = self.calls.clone();
        let well = Some(self.well.clone());
        Call { calls, method: self.name, well, since: Instant::now() }
    }
}

/// A call in progress. Dropped before its end it was abandoned and does not count.
#[derive(Debug)]
pub struct Call {
    calls: Calls,
    method: &'static str,
    well: Option<Histogram>,
    since: Instant,
}

impl Call {
    pub fn end(self, failure: Option<&Failure>) {
        match (failure, self.well) {
            (None, Some(well)) => well.record(self.since.elapsed()),
            _ => self.calls.ended(self.method, failure, self.since.elapsed()),
        }
    }
}
