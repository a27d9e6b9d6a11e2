//! The harness: meshes in one process and in many, clients that hide nothing, and waits that end.
//! It reads answers as JSON and not through the mesh's own types, so that it sees what a stranger
//! would see.
//!
//! A mesh of processes needs no binary built beforehand: every test target has a test called
//! `role`, and a process of the mesh is that very test executable, told by a variable to be a role.

pub mod a2a_endpoint;
pub mod cluster;
pub mod cuttable_proxy;
pub mod http2;
pub mod log;
pub mod otlp;
pub mod postgres;
pub mod process;
pub mod program;
pub mod raw;
pub mod recording_proxy;
pub mod rpc;
pub mod task;
pub mod wait;
pub mod webhook;

pub use a2a_endpoint::{A2aEndpoint, Binding};
pub use cluster::{Cluster, Plan};
pub use cuttable_proxy::CuttableProxy;
pub use otlp::Collector;
pub use postgres::Store;
pub use process::Process;
pub use program::Program;
pub use rpc::{Broken, Frame, Frames, Rpc};
pub use wait::until;

use std::path::Path;

/// Gives a test target the test that its own processes run as. Call it at the root of the target.
#[macro_export]
macro_rules! role {
    () => {
        /// Nothing in a test run; a process of the mesh when the harness started it as one.
        #[test]
        fn role() {
            $crate::program::play_role();
        }
    };
}

/// The token of meshes that consist of several processes.
pub const TOKEN: &str = "of-the-tests";

/// The section `[mesh]` of members that a test starts beside such a mesh.
pub fn mesh_config() -> faultline_chassis::MeshConfig {
    let token = faultline_chassis::Secret::new(TOKEN).ok();
    faultline_chassis::MeshConfig { token, ..Default::default() }
}

/// A mesh in this process, with the store of `dir` and the agents echo and script.
pub fn in_process(dir: &Path) -> faultline::Config {
    let mut config = faultline::Config::local(dir).on_free_ports();
    config.coordinator.store = postgres::store_in(dir);
    config.worker.drills = true;
    config
}

/// A mesh in this process without sockets and, so far, without agents.
pub fn without_sockets() -> faultline::testing::Builder {
    let builder = faultline::testing::Mesh::builder();
    match Store::default() {
        Store::Sqlite => builder,
        _ => builder.store(postgres::Database::shared().keep()),
    }
}
