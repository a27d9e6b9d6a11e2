//! What the gateway measures: every request once, by what it asked for and how it was answered,
//! and the link to the coordinator.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use faultline_chassis::{
    Metrics,
    metrics::{CALL, Def, Histograms, Unit, failures::Failures, failures::reason_of},
};
use faultline_proto::{Failure, status, v1::Severity};
use http::StatusCode;

use crate::{link::Link, operation::Operation};

const REQUESTS: Def<5> = Def::time(
    "http.server.request.duration",
    "Requests that were answered; of a stream, the time to its beginning.",
    [
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "a2a.method.name",
        "error.type",
    ],
    CALL,
);
const UP: Def<0> = Def::new(
    "faultline.link.up",
    Unit::None,
    "Whether the gateway has reached the coordinator: 1 or 0.",
    [],
);
const CALLS: Def<0> = Def::new(
    "faultline.link.calls",
    Unit::Of("call"),
    "Calls of this gateway that are under way, streams among them.",
    [],
);
const STREAMS: Def<0> =
    Def::new("faultline.link.streams", Unit::Of("stream"), "Streams that clients follow.", []);
const STALLED: Def<0> = Def::new(
    "faultline.stream.stalled",
    Unit::Of("stream"),
    "Streams that were ended because their reader took nothing of them.",
    [],
);

pub(crate) struct Meters {
    requests: Histograms<5>,
    failures: Failures,
}

impl Meters {
    pub(crate) fn new(metrics: &Metrics, link: &Link) -> Arc<Self> {
        let link = link.downgrade();
        metrics.observe(move |seen| {
            let Some(link) = link() else { return false };
            seen.gauge(&UP, [], link.is_up().into());
            seen.gauge(&CALLS, [], link.calls() as f64);
            seen.gauge(&STREAMS, [], link.open_streams() as f64);
            seen.counter(&STALLED, [], link.stalled() as f64);
            true
        });
        let (requests, failures) = (metrics.histogram(&REQUESTS), Failures::of(metrics));
        Arc::new(Self { requests, failures })
    }
}

/// What becomes known of one request on its way.
pub(crate) struct Seen {
    meters: Arc<Meters>,
    operation: OnceLock<&'static str>,
    error: OnceLock<&'static str>,
}

impl Seen {
    pub(crate) fn new(meters: &Arc<Meters>) -> Arc<Self> {
        let meters = Arc::clone(meters);
        Arc::new(Self { meters, operation: OnceLock::new(), error: OnceLock::new() })
    }

    /// What it asks for. The first word counts, as nobody says another.
    pub(crate) fn asks(&self, operation: Operation) {
        let _ = self.operation.set(operation.name());
    }

    /// It is answered with this. What came from behind us was counted there.
    pub(crate) fn failed(&self, failure: &Failure, is_ours: bool) {
        let _ = self.error.set(reason_of(failure));
        if is_ours {
            self.meters.failures.count(failure, "", Severity::Fatal);
        }
    }

    /// The same by gRPC, which has little room.
    pub(crate) fn told_by_status(&self, failure: &Failure) {
        if !status::fits(failure) {
            self.meters.failures.truncated();
        }
    }

    pub(crate) fn answered(&self, method: &str, route: &str, status: StatusCode, took: Duration) {
        let said = |word: &OnceLock<&'static str>| word.get().copied().unwrap_or_default();
        let (operation, error) = (said(&self.operation), said(&self.error));
        let labels = [method, route, status.as_str(), operation, error];
        self.meters.requests.at(labels, |histogram| histogram.record(took));
    }
}
