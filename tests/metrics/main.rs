//! Tests of metrics, probes and the files in `deploy/` that use them: a running mesh exports every
//! metric that the dashboard, the alerts and the documentation name.
#![allow(clippy::unwrap_used)]

mod admin;
mod counters;
mod deploy;
mod otlp;
mod prometheus;
mod promql;
mod scrape;
mod user_worker;

faultline_tests::role!();
