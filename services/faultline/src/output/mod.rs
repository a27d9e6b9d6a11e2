//! Rendering of tasks, failures and tables as text for people and programs. Data goes to stdout,
//! everything else to stderr, and both are plain text without a terminal. Must not call the mesh.
//!
//! May use: exit and task_tree.

pub mod failure_card;
pub mod style;

pub(crate) mod artifacts;
pub(crate) mod failures;
pub(crate) mod grid;
pub(crate) mod progress;
pub(crate) mod reason;
pub(crate) mod retry_text;
mod sparkline;
pub(crate) mod task;
pub(crate) mod text;
pub(crate) mod top;
pub(crate) mod tree;
mod tree_layout;
