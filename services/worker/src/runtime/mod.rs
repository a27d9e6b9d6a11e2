//! The running worker: its configuration and life cycle, the connection to a coordinator, the table
//! of attempts, and the task that runs the code of an agent.
//!
//! May use: attempt, sdk and agents.

pub(crate) mod attach;
pub(crate) mod attempts;
pub(crate) mod run;
pub(crate) mod service;
