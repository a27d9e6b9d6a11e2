//! The gateway: the only service that speaks HTTP and JSON. It turns requests into calls to the
//! coordinators and their answers back into JSON; it holds no task and stores nothing.
//!
//! Folders, lowest first; a folder may use those before it (`tests/tidy.rs` enforces it):
//!
//! - `protocol`: A2A as plain values: operations, versions, ids, validation, translation of 0.3.
//! - `coordinators`: the pool of links to the coordinators, and streams that outlive one of them.
//! - `cards`: the content of agent cards: cache, public address, signature.
//! - `http`: the context of a request, authentication, admission, responses and streams.
//! - `bindings`: JSON-RPC, REST and gRPC.
//! - `operators`: the operators' view as JSON, and the console.
//!
//! At the root: the configuration, the service and the router, which names all of them.

mod bindings;
mod bounds;
mod cards;
mod config;
mod coordinators;
mod error;
mod http;
mod operators;
mod protocol;
mod router;
mod service;

pub use crate::{
    cards::signature::BadKey,
    config::Config,
    error::Error,
    http::{
        auth::{Auth, BadToken, Scope, Token, TokenProblem},
        failure::ErrorTable,
    },
    protocol::binding::Binding,
    service::{Readiness, Service},
};
