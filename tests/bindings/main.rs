//! The three bindings of A2A are one protocol: every test here is written once and run on each of
//! them, against a whole mesh.
// Every function here is a test; the lint knows only those that say so.
#![allow(clippy::unwrap_used)]

mod agents;
mod answers;
mod capabilities;
mod deadlines;
mod disconnects;
mod errors;
mod idempotency;
mod lists;
mod principals;
mod push;
mod random;
mod streams;
mod versions;

use faultline::{Config, LocalMesh};
use faultline_tests::{A2aEndpoint, Binding, in_process};
use faultline_worker::Worker;
use tempfile::TempDir;

/// Makes one test per binding of each function.
macro_rules! on_every_binding {
    ($($name:ident)*) => {$(
        mod $name {
            use faultline_tests::Binding;

            #[tokio::test(flavor = "multi_thread")]
            async fn by_json_rpc() {
                super::$name(Binding::JsonRpc).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn by_rest() {
                super::$name(Binding::Rest).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn by_grpc() {
                super::$name(Binding::Grpc).await;
            }
        }
    )*};
}
pub(crate) use on_every_binding;

/// A mesh in this process and a door into it.
struct Running {
    mesh: LocalMesh,
    endpoint: A2aEndpoint,
    _dir: TempDir,
}

impl Running {
    /// The door of an agent.
    fn agent(&self, name: &str) -> A2aEndpoint {
        self.endpoint.agent(name)
    }
}

async fn start(binding: Binding) -> Running {
    start_with(binding, |_| {}).await
}

/// With the agents echo and script, and the picky ones of [`agents`].
async fn start_with(binding: Binding, change: impl FnOnce(&mut Config)) -> Running {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mut config = in_process(dir.path());
    change(&mut config);
    let mut mesh = LocalMesh::start(config).await.expect("a mesh starts");
    let build = |config| agents::picky().into_iter().fold(Worker::new(config), Worker::offer);
    mesh.attach(faultline_worker::Config::default(), build).await.expect("a worker attaches");
    let endpoint = A2aEndpoint::new(binding, mesh.gateway_addr());
    Running { mesh, endpoint, _dir: dir }
}
