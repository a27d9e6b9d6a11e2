//! The operators' view: the Mesh service as JSON, and the console.
//!
//! May use: protocol, coordinators, cards and http.

pub(crate) mod console;
pub(crate) mod mesh;
