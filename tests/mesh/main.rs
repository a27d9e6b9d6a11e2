//! A whole mesh as its callers, operators and remote peers use it: sending, questions, delegation,
//! remote agents, operator views, security limits and several coordinators on one store.

mod cluster;
mod delegation;
mod drain;
mod operators;
mod push;
mod questions;
mod remote;
mod security;
mod tasks;
mod testing_kit;

use faultline::{Config, LocalMesh};
use faultline_tests::{Rpc, in_process};
use tempfile::TempDir;

faultline_tests::role!();

/// A mesh in this process, a client of it, and the directory of its store.
struct Running {
    mesh: LocalMesh,
    rpc: Rpc,
    script: Rpc,
    _dir: TempDir,
}

async fn start() -> Running {
    start_with(|_| {}).await
}

async fn start_with(change: impl FnOnce(&mut Config)) -> Running {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mut config = in_process(dir.path());
    change(&mut config);
    let mesh = LocalMesh::start(config).await.expect("a mesh starts");
    let rpc = Rpc::at(mesh.gateway_addr());
    let script = rpc.agent("script");
    Running { mesh, rpc, script, _dir: dir }
}
