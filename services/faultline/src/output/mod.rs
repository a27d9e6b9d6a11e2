//! What people see. Data goes to stdout, everything else to stderr, and both are plain text where
//! no terminal is. Nothing here makes a call.

pub mod chain;
pub mod paint;

pub(crate) mod artifacts;
pub(crate) mod progress;
pub(crate) mod reason;
pub(crate) mod task;
pub(crate) mod text;
pub(crate) mod tree;
mod twigs;
