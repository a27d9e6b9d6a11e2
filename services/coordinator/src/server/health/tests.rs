//! Tests of the health service over the wire, as probes and load balancers use it.

use std::sync::Arc;

use faultline_chassis::{Drain, client::Channel};
use tokio::task::JoinHandle;
use tonic::Code;
use tonic_health::pb::health_client::HealthClient;

use super::*;
use crate::{
    Config,
    engine::core::{Closed, Core},
    testing::soon,
};

struct Probed {
    client: HealthClient<Channel>,
    core: Arc<Core>,
    drain: Drain,
    running: JoinHandle<Result<(), crate::Error>>,
    _dir: tempfile::TempDir,
}

async fn start() -> Probed {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("t.db").display());
    // Probes have no credential and need none.
    let mut config = Config { store, listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
    config.mesh.token = Some(faultline_chassis::Secret::random());
    let service = config.bind().await.unwrap();
    let client = HealthClient::new(Channel::without_token(&service.addr().to_string()).unwrap());
    let (core, drain) = (Arc::clone(&service.core), Drain::new());
    let running = tokio::spawn(service.run(drain.clone()));
    Probed { client, core, drain, running, _dir: dir }
}

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

impl Probed {
    async fn checked(&self, service: &str) -> Result<ServingStatus, Code> {
        let mut client = self.client.clone();
        let checked = soon(client.check(of(service))).await;
        checked.map(|said| said.get_ref().status()).map_err(|refused| refused.code())
    }

    fn close(&self, why: Option<Closed>) {
        self.core.change(|state| state.closed = why);
    }
}

#[tokio::test]
async fn health_of_each_service_equals_readiness() {
    let probed = start().await;
    let everything = async |status| {
        for name in SERVICES {
            assert_eq!(probed.checked(name).await, Ok(status), "'{name}'");
        }
        assert_eq!(probed.checked("faultline.v1.Hubs").await, Err(Code::NotFound));
    };
    everything(Serving).await;
    probed.close(Some(Closed::StoreFailed));
    everything(NotServing).await;
    probed.close(None);
    everything(Serving).await;
    assert!(SERVICES.contains(&"") && SERVICES.contains(&"lf.a2a.v1.A2AService"));
}

#[tokio::test]
async fn health_watch_gets_every_change_and_does_not_delay_the_drain() {
    let mut probed = start().await;
    let mut beats = soon(probed.client.watch(of(""))).await.unwrap().into_inner();
    let mut strange = soon(probed.client.watch(of("strange"))).await.unwrap().into_inner();
    let mut next = async || soon(beats.message()).await.unwrap().map(|beat| beat.status());
    let mut next_strange =
        async || soon(strange.message()).await.unwrap().map(|beat| beat.status());
    assert_eq!((next().await, next_strange().await), (Some(Serving), Some(ServiceUnknown)));
    probed.close(Some(Closed::StoreFailed));
    assert_eq!(next().await, Some(NotServing));
    probed.close(None);
    assert_eq!(next().await, Some(Serving));
    probed.drain.start();
    assert_eq!((next().await, next().await), (Some(NotServing), None));
    assert_eq!((next_strange().await, next_strange().await), (Some(ServiceUnknown), None));
    soon(probed.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn leaving_coordinator_reports_not_serving_before_it_rejects_calls() {
    let probed = start().await;
    assert_eq!(probed.checked("").await, Ok(Serving));
    probed.drain.start();
    soon(probed.core.farewell.cancelled()).await;
    assert_eq!(Readiness(Arc::downgrade(&probed.core)).look(), Err("it is leaving"));
    assert_eq!(probed.checked("").await, Ok(NotServing), "its door is still open");
}
