//! Re-runs after a failure whose outcome is unknown: only the agent's own declaration allows them,
//! an `Idempotency-Key` of the caller never does.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use faultline::LocalMesh;
use faultline_tests::{
    A2aEndpoint, Binding, in_process,
    rpc::message,
    task::{self, FAILED},
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Worker, reason};

/// Pays, then fails in a way that does not say whether the payment went through.
#[derive(Clone, Default)]
struct Pays {
    payments: Arc<AtomicU32>,
}

impl Pays {
    fn payments(&self) -> u32 {
        self.payments.swap(0, Ordering::SeqCst)
    }
}

impl Agent for Pays {
    async fn run(&self, _: &Context) -> Result<(), Error> {
        self.payments.fetch_add(1, Ordering::SeqCst);
        Err(Error::new(&reason::UNKNOWN).because("the bank did not answer"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_does_not_allow_a_rerun() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    config.coordinator.retry_base_ms = 20;
    let mut mesh = LocalMesh::start(config).await.unwrap();
    let pays = Pays::default();
    let declared = Pays::default();
    let offers = [
        Offer::new("pays", pays.clone()),
        Offer::new("pays-declared", declared.clone()).idempotent(),
    ];
    let build = |config| offers.into_iter().fold(Worker::new(config), Worker::offer);
    mesh.attach(Config::default(), build).await.unwrap();
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
