//! The bindings of A2A: JSON-RPC, REST and gRPC. Each finds the operation of a request and reads
//! its parameters; admission and the response are in `http`.
//!
//! May use: protocol, coordinators, cards and http.

pub(crate) mod grpc;
pub(crate) mod jsonrpc;
pub(crate) mod rest;
