//! The public API: the builder, the client with its operations, answers and errors, and event
//! streams that outlive their connection.
//!
//! May use: protocol and transport.

pub(crate) mod answer;
pub(crate) mod builder;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod error;
pub(crate) mod follow;
pub(crate) mod task_view;
