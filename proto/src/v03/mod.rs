//! The objects of A2A 0.3 as JSON: a pure translation from and to those of 1.0, for the gateway,
//! whose clients may speak 0.3, and for the client, whose servers may. It knows no operation.

pub mod new;
pub mod old;
#[cfg(test)]
mod tests;

/// 0.3 has two. A card is the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// JSON of its own, with `kind` and kebab-case states.
    Rpc,
    /// Below `/v1`: the ProtoJSON of an earlier contract, with `content` for parts. Its peers
    /// refuse fields which that contract did not have.
    Rest,
}

/// A field of 0.3 that has no counterpart in 1.0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The field by its old name; empty at the root.
    pub path: String,
    pub description: String,
}

/// Marks data that is no object, which only 1.0 can have. Both generations of the SDKs know it.
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
