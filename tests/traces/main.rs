//! What operators see in their tracing backend. A collector on a real socket takes what real
//! processes export, and the whole tree of a task is looked at: parents, links, kinds, names,
//! statuses, events and attributes.

mod exporting;
mod questions;
mod restart;
mod sampling;
mod tree;
mod user_worker;

use faultline_tests::{Collector, Plan};

faultline_tests::role!();

/// The span of the client that calls.
const CLIENT: &str = "00f067aa0ba902b7";

/// A trace of the client's own: its id, and the header that carries it.
fn trace() -> (String, String) {
    let id = format!("{:032x}", rand::random::<u128>() | 1);
    let header = format!("00-{id}-{CLIENT}-01");
    (id, header)
}

/// Processes that export soon and try again soon.
fn exporting(collector: &Collector) -> Plan {
    Plan::default()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.grpc())
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .with("retry_base_ms = 20")
}
