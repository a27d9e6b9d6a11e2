//! The A2A protocol as plain values: operations, versions, bindings, request ids, validation, and
//! the translation of A2A 0.3. Pure: no sockets, no tasks, no state.
//!
//! May use: no other folder.

pub(crate) mod binding;
pub(crate) mod operation;
pub(crate) mod request_id;
pub(crate) mod v03;
pub(crate) mod validate;
pub(crate) mod version;
