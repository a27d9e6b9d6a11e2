//! HTTP metrics: a histogram of all requests by route, operation and result, and counters of
//! failures.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use faultline_chassis::{
    Metrics,
    metrics::{
        CALL_BOUNDS, Def, Histogram, Histograms,
        failures::{Failures, reason_of},
    },
};
use faultline_proto::{Failure, status, v1::Severity};
use http::StatusCode;

use crate::{http::route::Route, protocol::operation::Operation};

const REQUESTS: Def<5> = Def::time(
    "http.server.request.duration",
    "Duration of requests; of a stream, the time until it begins.",
    [
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "a2a.method.name",
        "error.type",
    ],
    CALL_BOUNDS,
);

/// The instruments. Made once; each is atomic and needs no lock.
pub(crate) struct HttpMetrics {
    requests: Histograms<5>,
    /// The histograms of successful POSTs by endpoint and operation: looking their series up would
    /// cost more than recording.
    frequent: [[OnceLock<Histogram>; Operation::ALL.len()]; 4],
    failures: Failures,
}

impl HttpMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        let requests = metrics.histogram(&REQUESTS);
        let failures = Failures::of(metrics);
        Arc::new(Self { requests, frequent: Default::default(), failures })
    }

    /// The histogram of a successful POST, if its route is one of the frequent ones.
    fn frequent(&self, route: &Route<'_>, operation: Operation) -> Option<&Histogram> {
        let endpoint = match route {
            Route::Rpc(None) => 0,
            Route::Rpc(Some(_)) => 1,
            Route::Rest(_) => 2,
            Route::Grpc => 3,
            _ => return None,
        };
        let place = self.frequent[endpoint].get(operation as usize)?;
        let labels = ["POST", route.template(), StatusCode::OK.as_str(), operation.name(), ""];
        Some(place.get_or_init(|| self.requests.with(labels)))
    }
}

/// The facts about one request for its metrics, collected while it is handled. Each is set once.
pub(crate) struct RequestRecord {
    http_metrics: Arc<HttpMetrics>,
    operation: OnceLock<Operation>,
    error: OnceLock<&'static str>,
}

impl RequestRecord {
    pub(crate) fn new(http_metrics: &Arc<HttpMetrics>) -> Arc<Self> {
        let http_metrics = Arc::clone(http_metrics);
        Arc::new(Self { http_metrics, operation: OnceLock::new(), error: OnceLock::new() })
    }

    /// The first operation that is set counts.
    pub(crate) fn set_operation(&self, operation: Operation) {
        let _ = self.operation.set(operation);
    }

    /// The failure of the answer. A failure from behind the gateway was counted where it arose.
    pub(crate) fn record_failure(&self, failure: &Failure, is_local: bool) {
        let _ = self.error.set(reason_of(failure));
        if is_local {
            self.http_metrics.failures.count(failure, "", Severity::Fatal);
        }
    }

    /// Counts a failure whose details do not fit into a gRPC status.
    pub(crate) fn count_truncated_status(&self, failure: &Failure) {
        if !status::fits(failure) {
            self.http_metrics.failures.truncated();
        }
    }

    pub(crate) fn record_response(
        &self,
        method: &str,
        route: &Route<'_>,
        status: StatusCode,
        took: Duration,
    ) {
        let operation = self.operation.get().copied();
        let error = self.error.get().copied();
        let well = error.is_none() && status == StatusCode::OK && method == "POST";
        let frequent =
            operation.filter(|_| well).and_then(|o| self.http_metrics.frequent(route, o));
        if let Some(histogram) = frequent {
            return histogram.record(took);
        }
        let operation = operation.map_or("", Operation::name);
        let error = error.unwrap_or_default();
        let labels = [method, route.template(), status.as_str(), operation, error];
        self.http_metrics.requests.at(labels, |histogram| histogram.record(took));
    }
}
