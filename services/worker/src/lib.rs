//! The SDK and the runtime of workers. A worker is a process that runs agents: it connects to a
//! coordinator of the mesh, offers its agents, receives tasks, runs an agent for each and reports
//! the results. A caller reaches the agents by A2A (Agent2Agent), an open protocol in which a
//! caller sends a message, gets a task with a state, and reads the artifacts that the agent makes.
//!
//! An agent is a type with one method:
//!
//! ```no_run
//! use faultline_worker::{Agent, Context, Error, Offer};
//!
//! struct Shout;
//!
//! impl Agent for Shout {
//!     async fn run(&self, cx: &Context) -> Result<(), Error> {
//!         cx.artifact("shout", cx.text().to_uppercase()).await
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::process::ExitCode {
//!     faultline_worker::main(|worker| worker.offer(Offer::new("shout", Shout))).await
//! }
//! ```
//!
//! - [`Context`] is the agent's access to its task: the message of the caller, status texts,
//!   artifacts (the results), questions to humans, delegation to other agents, checkpoints,
//!   cancellation and the deadline.
//! - [`Error`] is the error of an agent. Its reason and public text reach the caller; everything
//!   else stays in the log of the worker.
//! - [`Offer`] gives an agent its name, its description for callers (the agent card) and its
//!   policies.
//! - [`main`] is the rest of the program: `--config FILE`, `faultline.toml` and `FAULTLINE_…`
//!   variables, logs, OTLP, metrics and probes, graceful shutdown and the exit code.
//! - [`agents`] contains the built-in agents `echo` and `script`.
//!
//! The crate knows the coordinator by its gRPC protocol alone and stores nothing. A task survives
//! the loss of its worker, because the coordinator stores each report before it acknowledges it.
//!
//! Folders, lowest first; a folder uses those before it (`tests/tidy.rs` enforces the order):
//!
//! - `attempt`: the state of one attempt and the outbox of the connection. Runs no agent code.
//! - `sdk`: the public library for agents. `agents`: the built-in agents.
//! - `runtime`: the connection, the table of attempts and the life of the worker.
//! - `process`: arguments, configuration file, logs and exit code.

pub mod agents;
mod attempt;
mod process;
mod runtime;
mod sdk;

pub use faultline_chassis::{
    Drain, MeshConfig as Mesh, Metrics, Secret, config::Error as ConfigError, process::Log,
};
pub use faultline_proto::{
    Failure, a2a,
    id::TaskId,
    reason::{self, Reason},
    v1::{Disposition, Interrupt, Severity},
};

pub use process::{
    program::{SetupError, main, try_main},
    settings::Settings,
};
pub use runtime::service::{Config, Readiness, Service, Worker};
pub use sdk::{
    agent::{Agent, Offer, OnWorkerLost, Skill},
    answer::{Action, Answer},
    child::Child,
    content::Content,
    context::Context,
    delegation::{Delegated, Delegation},
    error::{Error, ServiceError},
    fanout::{Branch, Fanned, Fanout, TooFew},
    outcome::{Ending, Outcome, OutcomeCall},
    question::Question,
    typed::{AgentError, Code, MarkRecoverable, TypedResult},
};

#[cfg(test)]
mod tests;
