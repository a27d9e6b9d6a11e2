//! Re-runs after a failure whose outcome is unknown: only the agent's own declaration allows them,
//! an `Idempotency-Key` of the caller never does.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use faultline::LocalMesh;
use faultline_tests::{
    A2aEndpoint, Binding, Rpc, in_process,
    rpc::message,
    task::{self, FAILED},
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker, reason};

/// Pays, then fails in a way that does not say whether the payment went through. The text of the
/// task may name the reason.
#[derive(Clone, Default)]
struct Payer {
    payments: Arc<AtomicU32>,
}

impl Payer {
    fn payments(&self) -> u32 {
        self.payments.swap(0, Ordering::SeqCst)
    }
}

impl Agent for Payer {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        self.payments.fetch_add(1, Ordering::SeqCst);
        let row = reason::named(&cx.text()).unwrap_or(&reason::UNKNOWN);
        Err(Error::new(row).because("the bank did not answer"))
    }
}

/// A mesh with `pays` and `pays-declared`, which is declared idempotent.
async fn start() -> (LocalMesh, Payer, Payer, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("there is room for files");
    let mut config = in_process(dir.path());
    config.coordinator.retry_base_ms = 20;
    config.coordinator.breaker_failures = 0;
    let mut mesh = LocalMesh::start(config).await.expect("a mesh starts");
    let pays = Payer::default();
    let declared = Payer::default();
    let offers = [
        Offer::new("pays", pays.clone()),
        Offer::new("pays-declared", declared.clone()).idempotent(),
    ];
    let build = |config| offers.into_iter().fold(Worker::new(config), Worker::offer);
    mesh.attach(Config::default(), build).await.expect("a worker attaches");
    (mesh, pays, declared, dir)
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_outcome_is_rerun_only_for_an_agent_that_is_declared_idempotent() {
    let (mesh, pays, declared, _dir) = start().await;
    let rpc = Rpc::at(mesh.gateway_addr());
    let unknown = reason::TABLE.iter().filter(|row| row.retry == reason::Retry::Idempotent);
    let names: Vec<_> = unknown.map(|row| row.name).collect();
    assert!(names.contains(&"TASK_TIMEOUT") && names.contains(&"RECONNECT_EXHAUSTED"));
    for name in names {
        for (agent, counter, runs) in [("pays", &pays, 1), ("pays-declared", &declared, 4)] {
            let task = rpc.agent(agent).send(name).await;
            assert_eq!(task::state(&task), FAILED, "{task}");
            assert_eq!(counter.payments(), runs, "{agent} after {name}");
            let metadata = &task["metadata"];
            assert_eq!(metadata["faultline.dev/failure"]["retryable"], false, "{name}: {task}");
            assert_eq!(metadata["faultline.dev/advice"]["verdict"], "check", "{name}: {task}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_does_not_allow_a_rerun() {
    let (mesh, pays, declared, _dir) = start().await;
    for binding in [Binding::JsonRpc, Binding::Rest, Binding::Grpc] {
        let endpoint = A2aEndpoint::new(binding, mesh.gateway_addr());
        for (agent, counter, runs) in [("pays", &pays, 1), ("pays-declared", &declared, 4)] {
            let bare = endpoint.agent(agent);
            let keyed = bare.header("idempotency-key", format!("{binding:?}"));
            let params = message("pay 100");
            for (endpoint, how) in [(&bare, "without a key"), (&keyed, "with a key")] {
                let sent = endpoint.call("SendMessage", params.clone()).await.unwrap();
                assert_eq!(task::state(&sent["task"]), FAILED, "{sent}");
                assert_eq!(counter.payments(), runs, "{agent} by {binding:?} {how}");
            }
            let again = keyed.call("SendMessage", params).await.unwrap();
            assert_eq!(task::state(&again["task"]), FAILED, "{again}");
            assert_eq!(counter.payments(), 0, "a repeated submission finds the same task");
        }
    }
}
