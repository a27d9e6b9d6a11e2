//! A client for A2A (Agent2Agent), the open protocol for calling AI agents over HTTP or gRPC. A
//! caller sends a message; the agent answers with a message or starts a task, which has a state
//! (working, input required, completed, failed and so on) and produces artifacts, its results.
//!
//! The client finds an agent by its agent card (a JSON document with the URLs, bindings and skills
//! of the agent), calls it by JSON-RPC, HTTP+JSON or gRPC, retries safe calls, and follows a task
//! through broken connections so that each event is delivered once. It depends on the protocol
//! alone: it works with any server of A2A 1.x, and with servers of 0.3 on JSON-RPC or HTTP+JSON.
//!
//! ```no_run
//! use faultline_client::{Client, Error, text};
//!
//! # async fn example() -> Result<(), Error> {
//! let agent = Client::connect("https://agents.example.org/agents/echo").await?;
//!
//! // Send a message and wait for the end of the task.
//! println!("{}", agent.run(text("hello")).await?.text());
//!
//! // Or read the events as they arrive.
//! let mut run = agent.follow(text("a long story")).await?;
//! while let Some(event) = run.next().await {
//!     print!("{}", event?.text());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Builder`] has all settings of a client, and [`Error`] all its errors.
//!
//! Folders, lowest first; a folder uses those before it (`tests/tidy.rs` enforces the order):
//!
//! - `protocol`: operations, cards, drafts and the reading of states and errors. No connection.
//! - `transport`: one call over one connection, with timeouts and retries.
//! - `api`: the public client.

mod api;
mod protocol;
mod transport;

pub use faultline_chassis::{Network, TraceContext};
pub use faultline_proto::{Failure, a2a};

pub use api::{
    answer::Answer,
    builder::Builder,
    client::Client,
    error::{Ended, Ending, Error},
    follow::{Follow, Reconnect},
};
pub use protocol::{
    card::{Binding, CardProblem},
    dialect::Dialect,
    draft::{Draft, text},
    task_outcome::{failure_of, interrupt_of, is_final, is_waiting, text_of},
};
pub use transport::{
    events::{Event, Events},
    retry::Retry,
    timeouts::Timeouts,
};
