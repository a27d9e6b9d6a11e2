//! The state of one attempt at one task and its half of the protocol with the coordinator: reports
//! with flow control, open questions, the slot, the clock, the outbox of the connection and the
//! metrics. Runs no agent code and opens no connection.
//!
//! May use: no other folder.

pub(crate) mod clock;
pub(crate) mod coordinator_channel;
pub(crate) mod metrics;
pub(crate) mod outbox;
pub(crate) mod slot;
pub(crate) mod state;
