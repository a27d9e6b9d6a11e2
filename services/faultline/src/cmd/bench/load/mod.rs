//! A load generator for one HTTP address: connections that repeat a request, and single calls.
//!
//! May use: nothing of the other folders of the bench.

pub(crate) mod driver;
pub(crate) mod http1;
pub(crate) mod rpc;
