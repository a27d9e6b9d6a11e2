//! Conformance of the three A2A bindings: each test is written once and runs on JSON-RPC, REST and
//! gRPC, against a whole mesh.
// The lint allows `unwrap` only in functions with a test attribute; here a macro makes the tests.
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

/// Defines one test per binding for each function.
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

/// A mesh in this process and its endpoint for one binding.
struct Running {
    mesh: LocalMesh,
    endpoint: A2aEndpoint,
    _dir: TempDir,
}

impl Running {
    /// The endpoint of an agent.
    fn agent(&self, name: &str) -> A2aEndpoint {
        self.endpoint.agent(name)
    }
}

async fn start(binding: Binding) -> Running {
    start_with(binding, |_| {}).await
}

/// With the agents `echo` and `script`, and the restricted agents of [`agents`].
async fn start_with(binding: Binding, change: impl FnOnce(&mut Config)) -> Running {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mut config = in_process(dir.path());
    change(&mut config);
    let mut mesh = LocalMesh::start(config).await.expect("a mesh starts");
    let build = |config| agents::restricted().into_iter().fold(Worker::new(config), Worker::offer);
    mesh.attach(faultline_worker::Config::default(), build).await.expect("a worker attaches");
    let endpoint = A2aEndpoint::new(binding, mesh.gateway_addr());
    Running { mesh, endpoint, _dir: dir }
}
