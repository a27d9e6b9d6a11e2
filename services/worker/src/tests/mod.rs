//! The worker against a fake coordinator on a real connection.

mod agents;
mod hub;
mod life;
mod script;
mod telemetry;
