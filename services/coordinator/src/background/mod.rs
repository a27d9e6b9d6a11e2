//! The periodic loops of a coordinator: sweep and retention, and what happens when a loop ends.
//!
//! May use: every other folder but server.

pub(crate) mod loops;
pub(crate) mod retention;
pub(crate) mod sweep;
