//! The gRPC client side: channels to one peer, and the members that a list of coordinator addresses
//! resolves to. May depend on `auth`, `net` and `grpc`.
//!
//! May use: net, grpc and auth.

mod channel;
pub mod members;

pub use channel::{CannotDial, Channel, Dial};
