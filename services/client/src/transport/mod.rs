//! One call over one connection: the three bindings, HTTP and gRPC, timeouts, retries, the limit on
//! concurrent calls, bearer tokens and event streams.
//!
//! May use: protocol.

pub(crate) mod a2a_v03;
pub(crate) mod bearer;
pub(crate) mod binding;
pub(crate) mod call_limit;
pub(crate) mod events;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod request_body;
pub(crate) mod retry;
pub(crate) mod timeouts;
