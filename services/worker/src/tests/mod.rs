//! The worker against a fake coordinator on a real connection.

mod agents;
mod asking;
mod delegation;
mod door;
mod hub;
mod life;
mod script;
mod telemetry;
