//! What a mesh does for its callers when nothing goes wrong, and what it says when they ask for
//! what cannot be.

mod addresses;
mod again;
mod asking;
mod browsers;
mod credentials;
mod delegation;
mod encrypted;
mod floods;
mod kit;
mod leaving;
mod load;
mod names;
mod old_remotes;
mod operators;
mod outage;
mod promises;
mod push;
mod questions;
mod remote;
mod replicas;
mod scaling;
mod send;
mod spread;
mod stop;
mod strangers;
mod streams;
mod takeover;
mod tasks;
mod view;

use faultline::{Config, Mesh};
use faultline_tests::{Rpc, in_process};
use tempfile::TempDir;

faultline_tests::role!();

/// A mesh in this process, a client of it, and the directory of its store.
struct Running {
    mesh: Mesh,
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
    let mesh = Mesh::start(config).await.expect("a mesh starts");
    let rpc = Rpc::at(mesh.gateway_addr());
    let script = rpc.agent("script");
    Running { mesh, rpc, script, _dir: dir }
}
