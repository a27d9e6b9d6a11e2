//! Runs agents. A worker dials the coordinator, offers its agents, works on the tasks it is given
//! and reports back; this crate is all of that, and what agents are written against.
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
//! - [`Context`] is what an agent sees of its task: the message, status and artifacts, questions to
//!   humans, work for other agents, checkpoints, cancellation and the deadline.
//! - [`Error`] is how it fails, and decides what callers get to read.
//! - [`Offer`] names it and describes it to the mesh.
//! - [`main`] is the rest of the program: `--config FILE`, `faultline.toml` and `FAULTLINE_…`
//!   variables, logs, OTLP, metrics and probes, graceful shutdown and the exit code.
//! - [`agents`] are the built-in ones, `echo` and `script`.
//!
//! The crate knows the coordinator only by its protocol, and keeps nothing: a task survives the
//! loss of its worker, because everything that was reported is with the coordinator.

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
