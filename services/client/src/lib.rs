//! An A2A client whose errors say what to do and whose streams survive a restart.
//!
//! It finds an agent by its card, speaks JSON-RPC, HTTP+JSON or gRPC with it, repeats what may be
//! repeated, and follows a task through broken connections so that each event is told once. It
//! knows no service of the mesh, only the protocol: any server of A2A 1.x will do, and one of 0.3
//! on JSON-RPC or HTTP+JSON.
//!
//! ```no_run
//! use faultline_client::{Client, Error, text};
//!
//! # async fn example() -> Result<(), Error> {
//! let agent = Client::connect("https://agents.example.org/agents/echo").await?;
//!
//! // To the end, in one line.
//! println!("{}", agent.run(text("hello")).await?.text());
//!
//! // Or event by event.
//! let mut run = agent.follow(text("a long story")).await?;
//! while let Some(event) = run.next().await {
//!     print!("{}", event?.text());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What can be said about a client before it is one is on [`Builder`]; what can go wrong is
//! [`Error`].

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
