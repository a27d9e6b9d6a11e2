//! The workers of this coordinator: who is attached, what each offers, slots, queues and losses.
//!
//! May use: the rest of engine and what engine may use.

pub(crate) mod fair_queue;
pub(crate) mod identity;
pub(crate) mod known_agents;
pub(crate) mod loss;
pub(crate) mod registry;
pub(crate) mod slots;
