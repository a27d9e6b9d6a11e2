//! The library for agents: the trait of an agent and its offer, the context of a task, content,
//! questions and answers, delegation and fan-out, and the error of an agent.
//!
//! May use: attempt.

pub(crate) mod agent;
pub(crate) mod answer;
pub(crate) mod child;
pub(crate) mod content;
pub(crate) mod context;
pub(crate) mod delegation;
pub(crate) mod error;
pub(crate) mod failure_record;
pub(crate) mod fanout;
pub(crate) mod outcome;
pub(crate) mod question;
pub(crate) mod question_relay;
pub(crate) mod typed;
