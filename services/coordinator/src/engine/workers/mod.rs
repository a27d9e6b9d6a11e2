//! The workers of this coordinator: registry, identity, slots, queues and losses.
//!
//! May use: the rest of engine and the folders that engine may use.

pub(crate) mod fair_queue;
pub(crate) mod identity;
pub(crate) mod known_agents;
pub(crate) mod loss;
pub(crate) mod registry;
pub(crate) mod slots;
