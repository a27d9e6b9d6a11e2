//! Test harness: meshes in one process or in several, protocol clients without retries, proxies,
//! fake servers and bounded waits. Answers are read as plain JSON, not through the types of the
//! mesh, so that the tests see the wire format.
//!
//! A mesh of processes needs no binary built beforehand: every test target has a test called
//! `role`, and each process is the test executable itself, started with a variable that turns that
//! test into `faultline`.

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

/// Defines the test `role`, which the processes of a test target run. Use at the crate root.
#[macro_export]
macro_rules! role {
    () => {
        /// Does nothing in a test run; runs `faultline` when the harness starts the executable.
        #[test]
        fn role() {
            $crate::program::run_role();
        }
    };
}

/// Token of a mesh that consists of several processes.
pub const TOKEN: &str = "of-the-tests";

/// The section `[mesh]` for a worker that a test starts in addition to such a mesh.
pub fn mesh_config() -> faultline_chassis::MeshConfig {
    let token = faultline_chassis::Secret::new(TOKEN).ok();
    faultline_chassis::MeshConfig { token, ..Default::default() }
}

/// A mesh in this process, with the store of `dir` and the agents `echo` and `script`.
pub fn in_process(dir: &Path) -> faultline::Config {
    let mut config = faultline::Config::local(dir).on_free_ports();
    config.coordinator.store = postgres::store_in(dir);
    config.worker.drills = true;
    config
}

/// A mesh in this process without sockets; the test adds its agents.
pub fn without_sockets() -> faultline::testing::Builder {
    let builder = faultline::testing::TestMesh::builder();
    match Store::default() {
        Store::Sqlite => builder,
        _ => builder.store(postgres::Database::shared().keep_for_thread()),
    }
}
