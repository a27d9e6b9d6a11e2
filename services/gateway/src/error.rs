//! Why a gateway does not start.

use std::net::SocketAddr;

use faultline_chassis::{
    client::CannotDial,
    server::{BadHost, BindError},
};

use crate::{cards::signature::BadKey, http::auth::BadToken};

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Listen(#[from] BindError),
    #[error(
        "{0} can be reached from other machines, and nobody is asked who they are: configure \
         [[auth.token]], listen on 127.0.0.1, or say --insecure"
    )]
    Exposed(SocketAddr),
    #[error(transparent)]
    Coordinator(#[from] CannotDial),
    #[error("not a public URL: '{0}' (say http://HOST or https://HOST/PATH)")]
    PublicUrl(String),
    #[error("not a public gRPC address: '{0}' (say HOST:PORT)")]
    PublicGrpc(String),
    #[error("gateway.trace_url '{0}' is no link to a trace (say https://HOST/PATH/{{trace_id}})")]
    TraceUrl(String),
    #[error("gateway.{key} is {value}: {what}")]
    Setting { key: &'static str, value: u64, what: &'static str },
    #[error("gateway.reader_stall_ms is 0: nobody could read that fast")]
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
         agent, and would be signed for whatever Host a request names; set public_url to the \
         address that clients use, such as https://mesh.example, or listen on one address"
    )]
    SignsAnyHost(SocketAddr),
    #[error(transparent)]
    Token(#[from] BadToken),
}
