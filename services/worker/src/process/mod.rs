//! The process around a worker: arguments, configuration file, environment, logs and exit code.
//!
//! May use: attempt, sdk, agents and runtime.

pub(crate) mod program;
pub(crate) mod settings;
