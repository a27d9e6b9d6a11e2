//! For tests of agents and of whatever calls them: a whole mesh without sockets, and a peer that
//! misbehaves on order. Nothing of the mesh itself uses it.
//!
//! Everything behind [`TestMesh`] is what runs in production, coordinator, store and worker included;
//! only the wires between them are inside the process, so tests can run side by side without ever
//! meeting on a port.
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
//! // How it fails is part of what an agent promises.
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
