//! Tokens and roles: the section `[mesh]`, secrets and the file that holds a generated one, and the
//! credentials that a coordinator accepts. May depend on `net`.
//!
//! May use: net.

pub mod credential;
pub(crate) mod mesh_config;
pub mod secret;
pub mod token_file;
