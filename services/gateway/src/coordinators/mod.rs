//! The way to the coordinators: one multiplexed link to each, a pool that balances calls over them
//! and repeats those that are safe to repeat, and streams that resume at another coordinator.
//!
//! May use: no other folder.

pub(crate) mod gauges;
pub(crate) mod link;
pub(crate) mod pool;
