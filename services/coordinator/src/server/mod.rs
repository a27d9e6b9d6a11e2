//! The gRPC services of the coordinator: gateway link, worker hub, A2A and Mesh, KEDA scaler and
//! health, and the authorization of each method.
//!
//! May use: every other folder but background.

pub(crate) mod bounds;
pub(crate) mod gateway_link;
pub(crate) mod grpc;
pub(crate) mod health;
pub(crate) mod keda;
pub(crate) mod worker_hub;
