//! The objects of A2A 0.3 as JSON: a pure translation from and to those of 1.0, for clients of the
//! gateway and for servers of the client that use 0.3. It knows no operations.

pub mod new;
pub mod old;
#[cfg(test)]
mod tests;

/// The two JSON dialects of 0.3. An agent card is the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// JSON-RPC: its own JSON, with `kind` and states in kebab case.
    Rpc,
    /// REST below `/v1`: the ProtoJSON of an earlier contract, with `content` for parts. Its peers
    /// refuse fields that the contract did not have.
    Rest,
}

/// A field of 0.3 that has no counterpart in 1.0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The field by its 0.3 name; empty at the root.
    pub path: String,
    pub description: String,
}

/// Marks wrapped data that is not an object, which only 1.0 allows. The SDKs of both versions know
/// the mark.
pub const WRAPPED: &str = "data_part_compat";

/// The states of a task in JSON, on REST and in 1.0.
const STATES: [(&str, &str, &str); 9] = [
    ("submitted", "TASK_STATE_SUBMITTED", "TASK_STATE_SUBMITTED"),
    ("working", "TASK_STATE_WORKING", "TASK_STATE_WORKING"),
    ("completed", "TASK_STATE_COMPLETED", "TASK_STATE_COMPLETED"),
    ("failed", "TASK_STATE_FAILED", "TASK_STATE_FAILED"),
    // The earlier contract had the other spelling.
    ("canceled", "TASK_STATE_CANCELLED", "TASK_STATE_CANCELED"),
    ("input-required", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_INPUT_REQUIRED"),
    ("rejected", "TASK_STATE_REJECTED", "TASK_STATE_REJECTED"),
    ("auth-required", "TASK_STATE_AUTH_REQUIRED", "TASK_STATE_AUTH_REQUIRED"),
    ("unknown", "TASK_STATE_UNSPECIFIED", "TASK_STATE_UNSPECIFIED"),
];
