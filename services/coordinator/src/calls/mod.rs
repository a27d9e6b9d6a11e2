//! A call as it arrives: its caller, the role of its credential, the token of the attempt that
//! makes it, and its idempotency key.
//!
//! May use: task, policy, telemetry and store.

pub(crate) mod attempt_token;
pub(crate) mod caller;
pub(crate) mod idempotency;
pub(crate) mod roles;
