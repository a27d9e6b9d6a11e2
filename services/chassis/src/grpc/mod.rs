//! gRPC details that clients and servers share: bodies that always end with a status, and the
//! `grpc-timeout` header.
//!
//! May use: no other folder of this crate.

pub(crate) mod body;
pub mod deadline;
