//! The commands that call a gateway, as far as they are alike: the connection and its flags,
//! following a task, asking a person for an answer, and the message that answers a question.
//!
//! May use: exit, task_tree, service and output.

pub(crate) mod answer_message;
pub(crate) mod connect;
pub(crate) mod follow;
mod question_form;
