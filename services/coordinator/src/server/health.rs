//! The gRPC health service, for the whole process and for each service by name. It reports the
//! same state as `/readyz` and needs no credential.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
};

use faultline_chassis::{
    admin::Ready,
    limits,
    server::{self, Resource},
};
use faultline_proto::{
    Failure,
    a2a::a2a_service_server::A2aServiceServer,
    keda::external_scaler_server::ExternalScalerServer,
    reason,
    v1::{hub_server::HubServer, link_server::LinkServer, mesh_server::MeshServer},
};
use futures::{Stream, StreamExt, stream};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, server::NamedService};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus::{self, NotServing, ServiceUnknown, Serving},
    health_server::Health,
};

use crate::{
    engine::core::{Closed, Core},
    server::{gateway_link::LinkService, grpc::A2aEndpoint, keda::Scaler, worker_hub::HubService},
};

/// The services by name. All of them need the store, so their state is that of the process.
const SERVICES: [&str; 6] = [
    "",
    LinkServer::<LinkService>::NAME,
    HubServer::<HubService>::NAME,
    A2aServiceServer::<A2aEndpoint>::NAME,
    MeshServer::<A2aEndpoint>::NAME,
    ExternalScalerServer::<Scaler>::NAME,
];

pub(crate) struct Condition {
    readiness: Readiness,
    /// The coordinator leaves: watches are told, and the drain does not wait for them.
    farewell: CancellationToken,
}

impl Condition {
    pub(crate) fn new(readiness: Readiness, farewell: CancellationToken) -> Self {
        Self { readiness, farewell }
    }
}

type Beats = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for Condition {
    type WatchStream = Beats;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match SERVICES.contains(&request.get_ref().service.as_str()) {
            true => Ok(Response::new(said(status(&self.readiness)))),
            false => {
                Err(Failure::new(&reason::NOT_FOUND).because("no such service is here").into())
            }
        }
    }

    /// By a look now and then, so that nothing is added to the path of a task. A service that is
    /// not known is no error here: it might come yet.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Beats>, Status> {
        let taken = server::acquire(Resource::HealthWatch).map_err(Status::from)?;
        let known = SERVICES.contains(&request.get_ref().service.as_str());
        let readiness = self.readiness.clone();
        let look = move || if known { status(&readiness) } else { ServiceUnknown };
        let mut looks = interval(limits::HEALTH_POLL_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let changes = stream::unfold((looks, None), move |(mut looks, told)| {
            let look = look.clone();
            async move {
                loop {
                    looks.tick().await;
                    let now = look();
                    if told != Some(now) {
                        return Some((Ok(said(now)), (looks, Some(now))));
                    }
                }
            }
        });
        let changes = changes.take_until(self.farewell.clone().cancelled_owned());
        let last = if known { NotServing } else { ServiceUnknown };
        // Counted for as long as it is open.
        let changes = changes.chain(stream::iter([Ok(said(last))])).map(move |change| {
            let _counted = &taken;
            change
        });
        Ok(Response::new(changes.boxed()))
    }
}

/// Whether a coordinator is of use: it is while it has its store.
#[derive(Clone)]
pub struct Readiness(Weak<Core>);

impl Readiness {
    pub(crate) fn of(core: &Arc<Core>) -> Self {
        Self(Arc::downgrade(core))
    }

    pub fn look(&self) -> Ready {
        // It leaves from its first word on, not only when it takes nothing more.
        let core = self.0.upgrade().filter(|core| !core.farewell.is_cancelled());
        match core.map(|core| core.lock().closed) {
            Some(None) => Ok(()),
            Some(Some(Closed::StoreFailed)) => Err("the store failed and is being read again"),
            Some(Some(Closed::Leaving)) | None => Err("it is leaving"),
        }
    }
}

fn status(readiness: &Readiness) -> ServingStatus {
    if readiness.look().is_ok() { Serving } else { NotServing }
}

fn said(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[cfg(test)]
mod tests;
