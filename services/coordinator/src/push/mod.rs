//! Push notifications by webhook. The events of a task are the outbox: each configuration
//! stores its position in them, so a delivery delays no task and survives a restart.

mod deliver;
mod operations;
mod pending;

#[cfg(test)]
mod tests;
