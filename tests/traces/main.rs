//! Tests of traces: a collector on a real socket receives the spans of real processes, and the
//! whole tree of a task is checked: parents, links, kinds, names, statuses, events and attributes.

mod exporting;
mod questions;
mod restart;
mod sampling;
mod tree;
mod user_worker;

use faultline_tests::{Collector, Plan};

faultline_tests::role!();

/// The span id of the calling client.
const CLIENT: &str = "00f067aa0ba902b7";

/// A new trace id, and the header that propagates it.
fn trace() -> (String, String) {
    let id = format!("{:032x}", rand::random::<u128>() | 1);
    let header = format!("00-{id}-{CLIENT}-01");
    (id, header)
}

/// A mesh that exports and retries after short pauses.
fn exporting(collector: &Collector) -> Plan {
    Plan::default()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.grpc())
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .with("retry_base_ms = 20")
}
