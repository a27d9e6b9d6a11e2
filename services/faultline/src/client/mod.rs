//! The parts that all commands calling a gateway share: the connection with its flags, following a
//! task, prompting a person for an answer, and the message that answers a question.
//!
//! May use: exit, task_tree, service and output.

pub(crate) mod answer_message;
pub(crate) mod connect;
pub(crate) mod follow;
mod question_form;
