//! Tools for tests of agents and their clients: a whole mesh without sockets, and a scripted A2A
//! server with fault injection. The mesh itself must not use them.
//!
//! [`TestMesh`] runs the production code of coordinator, store and worker. Only the connections
//! between them are in memory, so that concurrent tests need no ports.
//!
//! ```
//! use faultline::testing::TestMesh;
//! use faultline_worker::{Agent, Context, Error, Offer, reason};
//!
//! struct Shout;
//!
//! impl Agent for Shout {
//!     async fn run(&self, cx: &Context) -> Result<(), Error> {
//!         if cx.text().is_empty() {
//!             return Err(Error::new(&reason::INVALID_ARGUMENT).because("Say something"));
//!         }
//!         cx.artifact("shout", cx.text().to_uppercase()).await
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let mesh = TestMesh::builder().agent(Offer::new("shout", Shout)).start().await?;
//! assert_eq!(mesh.send("shout", "hello").await?.text(), "HELLO");
//!
//! // The failure is part of the agent's contract.
//! let failed = mesh.client("shout")?.run(faultline_client::text("")).await.unwrap_err();
//! assert_eq!(failed.failure().unwrap().public_message, "Say something");
//! # mesh.stop().await
//! # }).unwrap();
//! ```
//!
//! May use: config and mesh.

mod peer;
mod scripted_reply;
mod test_mesh;

pub use peer::{Peer, Request};
pub use scripted_reply::Reply;
pub use test_mesh::{Builder, TestMesh};
