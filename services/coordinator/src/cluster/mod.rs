//! Several coordinators on one PostgreSQL store: leases, take-over, notifications, writes to and
//! watches of tasks that another coordinator owns, and rebalancing of workers.
//!
//! May use: task, policy, telemetry, store, calls, webhooks and engine.

pub(crate) mod lease;
pub(crate) mod notifications;
pub(crate) mod rebalance;
pub(crate) mod reconcile;
pub(crate) mod remote_watch;
pub(crate) mod remote_write;
