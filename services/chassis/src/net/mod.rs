//! Byte streams: TCP and in-process networks, name resolution, dialling with TLS and the SSRF
//! guard, and the cut of connections whose peer does not read.
//!
//! May use: no other folder of this crate.

pub mod dial;
pub mod network;
pub(crate) mod resolver;
pub mod tls;
pub(crate) mod write_stall;
