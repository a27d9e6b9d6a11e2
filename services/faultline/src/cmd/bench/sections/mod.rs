//! The measurements of `faultline bench`, one file for each section of its command line.
//!
//! May use: roles, load, figures and chain.

pub(crate) mod cancel;
pub(crate) mod cluster;
pub(crate) mod compare;
pub(crate) mod failing;
pub(crate) mod hop;
pub(crate) mod idle;
pub(crate) mod json;
pub(crate) mod recovery;
pub(crate) mod stored;
pub(crate) mod streams;
pub(crate) mod tracing;
