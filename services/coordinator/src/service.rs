//! The coordinator as a service: opens the store, binds the port, serves until drained.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use faultline_chassis::{
    Drain,
    credential::Credentials,
    limits,
    server::{
        CredentialLayer, GrpcOnlyLayer, GuardLayer, HostLayer, Hosts, Listener, MeasureLayer,
        MessageBudgetLayer, UnauthenticatedLayer, refuse_undecodable, serve,
    },
};
use faultline_proto::{
    Failure,
    a2a::a2a_service_server::A2aServiceServer,
    keda::external_scaler_server::ExternalScalerServer,
    v1::{hub_server::HubServer, link_server::LinkServer, mesh_server::MeshServer},
};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::{
    Config, Error,
    background::loops::Loops,
    calls::roles,
    config::shown_store,
    engine::core::{Closed, Core, State},
    operators::gauges,
    server::{
        bounds,
        gateway_link::LinkService,
        grpc::A2aEndpoint,
        health::{Condition, Readiness},
        keda::{self, Scaler},
        worker_hub::HubService,
    },
    store,
};

/// Bound and recovered, not yet serving.
pub struct Service {
    pub(crate) listener: Listener,
    pub(crate) hosts: Hosts,
    pub(crate) credentials: Credentials,
    pub(crate) core: Arc<Core>,
}

impl Config {
    /// Opens the store, recovers the active tasks, and binds the socket.
    pub async fn bind(self) -> Result<Service, Error> {
        self.check()?;
        if self.insecure {
            return Err(Error::Insecure);
        }
        if self.timeout_ms_max == Some(0) {
            let what = "nobody could ask for any time; leave it out to let callers ask for all";
            return Err(Error::Setting { key: "timeout_ms_max", value: 0, what });
        }
        if self.sqlite().is_none() && !self.is_postgres() {
            return Err(Error::StoreUrl(shown_store(&self.store)));
        }
        let bounds = self.bounds()?;
        // Generates a token where none is configured, so after everything that may be refused.
        let credentials = Credentials::load(&self.mesh, self.port())?;
        let store = store::open(&self).await?;
        let network = self.mesh.network.as_ref();
        let listener = Listener::bind_on(network, self.listen, self.tls.as_ref()).await?;
        let listener = listener.bounds(bounds);
        let hosts = Hosts::new("coordinator", listener.addr().ip().is_loopback(), &self.hosts)?;
        let core = Arc::new(Core::new(store, self));
        core.recover().await.map_err(|e| Error::Recover(e.to_string()))?;
        gauges::watch(&core);
        Ok(Service { listener, hosts, credentials, core })
    }
}

impl Service {
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// To be asked while it runs.
    pub fn readiness(&self) -> Readiness {
        Readiness::of(&self.core)
    }

    /// Serves until drained. Tasks that run go on in their workers, which come back to the next
    /// coordinator on the same store. An error: something that it cannot do without has ended, and
    /// only a new start mends it.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let Self { listener, hosts, credentials, core } = self;
        let readiness = Readiness::of(&core);
        let health = HealthServer::new(Condition::new(readiness, core.farewell.clone()))
            .max_decoding_message_size(limits::HEALTH_BYTES_MAX);
        let doors = A2aEndpoint::new(Arc::clone(&core));
        let (answers, calls) = (limits::GRPC_BYTES_MAX, limits::CALL_BYTES_MAX);
        let routes = Routes::new(health)
            .add_service(
                LinkServer::new(LinkService::new(Arc::clone(&core)))
                    .max_decoding_message_size(calls)
                    .max_encoding_message_size(answers),
            )
            .add_service(
                HubServer::new(HubService { core: Arc::clone(&core) })
                    .max_decoding_message_size(limits::HUB_MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(answers),
            )
            .add_service(
                A2aServiceServer::new(doors.clone())
                    .max_decoding_message_size(calls)
                    .max_encoding_message_size(answers),
            )
            .add_service(MeshServer::new(doors).max_encoding_message_size(answers))
            .add_service(
                ExternalScalerServer::new(Scaler::new(Arc::clone(&core)))
                    .max_decoding_message_size(limits::SCALER_BYTES_MAX),
            );
        let router = refuse_undecodable(routes.prepare().into_axum_router());
        let router = router.layer(MessageBudgetLayer { streams: STREAMS });
        let router = router.layer(authenticated(&core, credentials));
        let router = router.layer(UnauthenticatedLayer(bounds::OPEN));
        // Outside of the credentials: defence in depth against DNS rebinding.
        let router = router.layer(HostLayer(hosts));
        // The guard stands outermost: it must see the panics and clocks of everything inside.
        let router = router.layer(GuardLayer);
        let router = router.layer(measure(&core)).layer(GrpcOnlyLayer);
        let mut loops = Loops::start(&core);
        // The door stays open until everybody has been told where to go.
        let closing = Drain::new();
        let leaving = async {
            let broken = tokio::select! {
                () = drain.signalled() => None,
                broken = loops.broken() => Some(broken),
            };
            // A broken coordinator has nothing to hand over: its streams are cut.
            if broken.is_none() {
                loops.stop_for_drain();
                core.leave().await;
            }
            closing.start();
            broken
        };
        // Long-lived streams never finish by themselves, so patience here is only for calls.
        let patience = Duration::from_millis(500);
        let serving = serve(listener, router, closing.clone(), patience);
        if let (Some(broken), ()) = tokio::join!(leaving, serving) {
            return Err(broken);
        }
        core.flushed().await;
        let ended = loops.end().await;
        if let Some(cluster) = core.store.cluster()
            && timeout(limits::LEAVE_TIMEOUT, cluster.leave()).await.is_err()
        {
            tracing::warn!(
                "the store does not answer: the tasks of this coordinator wait until its lease ends"
            );
        }
        core.released().await;
        ended
    }
}

/// The paths whose requests are streams of messages.
const STREAMS: &[&str] = &["/faultline.v1.Link/", "/faultline.v1.Hub/"];

/// Authorization comes before any byte of the call is buffered.
fn authenticated(core: &Arc<Core>, credentials: Credentials) -> CredentialLayer {
    let core = Arc::clone(core);
    CredentialLayer::new(credentials, &[keda::PATH], move |identity, head| {
        roles::authorize(identity, head)?;
        Ok(core.check_attempt_token(identity, head)?)
    })
}

impl Core {
    /// Takes nothing more, and sends everybody elsewhere: gateways with what they wait for, workers
    /// with what they run. What is stored is for the next coordinator, or for the others.
    async fn leave(&self) {
        // Gateways are told first; calls that they have sent by then are still accepted.
        self.farewell.cancel();
        tokio::time::sleep(limits::LEAVE_NOTICE).await;
        self.change(|state| {
            // First, so that rejected calls get the right reason.
            self.left.store(true, Ordering::Relaxed);
            state.close(Closed::Leaving);
            state.deliveries.stop_all();
        });
        // A redirected caller must find its task in the store.
        self.flushed().await;
        self.redirect_waiters();
        self.change(State::announce_leaving);
    }
}

/// Calls with a stream of their own. Links and workers have theirs for as long as they live, and
/// what gateways ask is measured on their links.
fn measure(core: &Arc<Core>) -> MeasureLayer {
    let except = &["/faultline.v1.Link/", "/faultline.v1.Hub/", "/grpc.health.v1.Health/"];
    let meters = Arc::clone(&core.meters);
    // Without an origin it becomes the caller's, which is an agent here, and is counted there.
    let refused = move |failure: &Failure| {
        if failure.origin.is_some() {
            meters.refused(failure);
        }
    };
    MeasureLayer::new(&core.config.metrics, except, refused)
}
