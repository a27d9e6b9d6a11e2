//! The content of agent cards: their cache, the public address of the gateway on them, and their
//! signatures. HTTP is not known here.
//!
//! May use: protocol and coordinators.

pub(crate) mod cache;
pub(crate) mod canonical_json;
pub(crate) mod card;
pub(crate) mod public_url;
pub(crate) mod signature;
