//! The protocol without a connection: operations of A2A, drafts of messages, agent cards,
//! server-sent events, and the reading of task states and error responses.
//!
//! May use: no other folder.

pub(crate) mod card;
pub(crate) mod dialect;
pub(crate) mod draft;
pub(crate) mod operation;
pub(crate) mod sse;
pub(crate) mod task_outcome;
pub(crate) mod wire_error;
