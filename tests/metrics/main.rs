//! What a mesh says of itself in numbers, and the files in `deploy/` that are made of them:
//! whatever a dashboard or an alert names is exported by a mesh that really runs.
#![allow(clippy::unwrap_used)]

mod admin;
mod deploy;
mod numbers;
mod otlp;
mod prometheus;
mod query;
mod scrape;
mod user_worker;

faultline_tests::role!();
