//! The worker against a fake coordinator on a real connection.

mod agents;
mod delegation;
mod door;
mod hub;
mod life;
mod script;
mod telemetry;
mod time;
