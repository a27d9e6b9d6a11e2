//! A request over HTTP, of every binding: its route and context, authentication, CSRF checks,
//! body, admission, and the response, as one answer or as a stream of server-sent events.
//!
//! May use: protocol, coordinators and cards.

pub(crate) mod admission;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod card_endpoint;
pub(crate) mod conditional;
pub(crate) mod context;
pub(crate) mod csrf;
pub(crate) mod extensions;
pub(crate) mod failure;
pub(crate) mod metrics;
pub(crate) mod negotiation;
pub(crate) mod response;
pub(crate) mod route;
pub(crate) mod sse;
pub(crate) mod trace_link;
