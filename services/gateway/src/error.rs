//! Start errors: invalid settings, addresses that cannot be bound, keys that cannot be read.

use std::net::SocketAddr;

use faultline_chassis::{
    client::CannotDial,
    server::{BadHost, BindError},
};

use crate::{cards::signature::BadKey, http::auth::BadToken};

/// The reason for which a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Listen(#[from] BindError),
    #[error(
        "{0} can be reached from other machines, and callers are not authenticated: configure \
         [[auth.token]], listen on 127.0.0.1, or pass --insecure"
    )]
    Exposed(SocketAddr),
    #[error(transparent)]
    Coordinator(#[from] CannotDial),
    #[error("not a public URL: '{0}' (write http://HOST or https://HOST/PATH)")]
    PublicUrl(String),
    #[error("not a public gRPC address: '{0}' (write HOST:PORT)")]
    PublicGrpc(String),
    #[error("gateway.trace_url '{0}' is no link to a trace (write https://HOST/PATH/{{trace_id}})")]
    TraceUrl(String),
    #[error("gateway.{key} is {value}: {what}")]
    Setting { key: &'static str, value: u64, what: &'static str },
    #[error("gateway.reader_stall_ms is 0: no client reads that fast")]
    NoReaders,
    #[error(
        "gateway.bindings is empty: name some of jsonrpc, rest and grpc, or leave it out for all"
    )]
    NoBindings,
    #[error(transparent)]
    Host(#[from] BadHost),
    #[error(transparent)]
    CardKey(#[from] BadKey),
    #[error(
        "gateway.card_key without gateway.public_url on {0}: a card names the address of its \
         agent, and would be signed for any Host that a request names; set public_url to the \
         address that clients use, such as https://mesh.example, or listen on one address"
    )]
    SignsAnyHost(SocketAddr),
    #[error(transparent)]
    Token(#[from] BadToken),
}
