//! Several coordinators on one PostgreSQL: reads and writes at any replica, take-over, rebalance,
//! outages and TLS. These tests always use PostgreSQL, so `tests/run` skips this module in its
//! second run.

mod encrypted_store;
mod outage;
mod rebalance;
mod replicas;
mod takeover;
