//! Tests of the worker against a fake coordinator on a real connection.

mod context;
mod coordinators;
mod delegation;
mod endpoint;
mod failure_log;
mod fake_coordinator;
mod fanout;
mod lifecycle;
mod outcome;
mod questions;
mod script;
mod time_budget;
