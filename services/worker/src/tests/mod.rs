//! The worker against a fake coordinator on a real connection.

mod agents;
mod asking;
mod delegation;
mod endpoint;
mod fanout;
mod hub;
mod life;
mod members;
mod outcome;
mod script;
mod telemetry;
mod time;
