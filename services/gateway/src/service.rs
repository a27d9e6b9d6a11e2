//! The gateway as a service: binds the port, keeps the pool to the coordinators, serves until
//! drained.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use faultline_chassis::{
    Drain, Members, Metrics,
    admin::Ready,
    limits,
    server::{self, Hosts, Listener},
};
use tokio::time::sleep;

use crate::{
    Config, Error,
    bindings::grpc,
    cards::{
        cache::CardCache,
        card::CardSettings,
        public_url::{self, PublicUrl},
        signature::Signer,
    },
    coordinators::{gauges, link::CallShares, pool::Pool},
    http::{
        auth::Authenticator, context::Gateway, failure::ErrorTable, metrics::HttpMetrics,
        trace_link::TraceLink,
    },
    router,
};

/// The last part of a drain: open calls are ended this long before the drain times out, so that
/// their final events reach the clients.
const FINAL_EVENTS_TIME: Duration = Duration::from_secs(1);

/// A gateway whose port is bound and which does not serve yet. Made by [`Config::bind`], consumed
/// by [`Service::run`].
pub struct Service {
    listener: Listener,
    pool: Pool,
    drain_delay: Duration,
    cards: CardSettings,
    authenticator: Authenticator,
    hosts: Hosts,
    operators_act: bool,
    trace_link: Option<TraceLink>,
    error_table: ErrorTable,
    metrics: Metrics,
    /// Host and port of the coordinators, for spans.
    peer: (String, Option<u16>),
    is_tls: bool,
    console: bool,
}

impl Config {
    /// Checks the configuration, loads the card key and binds the port. No request is served yet.
    pub async fn bind(self) -> Result<Service, Error> {
        if self.bindings.is_empty() {
            return Err(Error::NoBindings);
        }
        if self.reader_stall_ms == 0 {
            return Err(Error::NoReaders);
        }
        let bounds = self.bounds()?;
        let authenticator = Authenticator::new(&self.auth)?;
        let shares = CallShares::new(authenticator.principals(), self.calls_per_caller_max);
        let signer = Signer::load(self.card_key.as_deref(), self.card_key_id.as_deref())?;
        if signer.is_some() && self.public_url.is_none() && self.listen.ip().is_unspecified() {
            return Err(Error::SignsAnyHost(self.listen));
        }
        if let Some(bad) =
            self.public_grpc.as_ref().filter(|text| !public_url::is_grpc_address(text))
        {
            return Err(Error::PublicGrpc(bad.clone()));
        }
        let trace_link = self.trace_url.map(TraceLink::new).transpose().map_err(Error::TraceUrl)?;
        if !self.listen.ip().is_loopback() && self.auth.token.is_empty() && !self.insecure {
            return Err(Error::Exposed(self.listen));
        }
        let members = Members::new(&self.mesh, &self.coordinator)?;
        let network = self.mesh.network.as_ref();
        let reader_stall = Duration::from_millis(self.reader_stall_ms);
        let listener = Listener::bind_on(network, self.listen, self.tls.as_ref()).await?;
        let listener = listener.reader_stall(reader_stall).bounds(bounds);
        let resume = Duration::from_millis(self.resume_ms);
        let known = authenticator.requires_token();
        let is_guarded = listener.addr().ip().is_loopback() && !known;
        let public_host = self.public_url.as_deref().and_then(public_url::host);
        let hosts =
            Hosts::new("gateway", is_guarded, &self.hosts)?.with_name(public_host.as_deref());
        let public = PublicUrl::new(self.public_url, listener.addr(), self.tls.is_some())
            .map_err(Error::PublicUrl)?;
        let cards = CardSettings {
            public,
            grpc: self.public_grpc,
            signer,
            secured: known,
            bindings: self.bindings,
            v03: self.serve_v03,
            since: SystemTime::now(),
        };
        Ok(Service {
            listener,
            peer: members.peer(),
            pool: Pool::new(members, reader_stall, resume, shares),
            drain_delay: Duration::from_millis(self.drain_delay_ms),
            cards,
            authenticator,
            hosts,
            operators_act: self.operators_act,
            trace_link,
            error_table: self.a2a_error_table,
            metrics: self.metrics,
            is_tls: self.tls.is_some(),
            console: self.console,
        })
    }
}

impl Service {
    /// The address it listens on, with the port that port 0 became.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// A handle that tells whether the running gateway is ready.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.pool.clone())
    }

    /// Serves until drained.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let pool = self.pool;
        gauges::observe(&self.metrics, &pool);
        let gateway = Gateway {
            grpc: grpc::router(&pool, &drain),
            http_metrics: HttpMetrics::new(&self.metrics),
            pool: pool.clone(),
            drain: drain.clone(),
            cards: self.cards,
            card_cache: CardCache::default(),
            authenticator: self.authenticator,
            hosts: self.hosts,
            operators_act: self.operators_act,
            trace_link: self.trace_link,
            error_table: self.error_table,
            metrics: self.metrics,
            peer: self.peer,
            is_tls: self.is_tls,
            console: self.console,
        };
        let router = router::router(Arc::new(gateway));
        // Balancers notice only after a while that the gateway leaves: until then it still accepts.
        let closing = Drain::new();
        let leaving = async {
            drain.signalled().await;
            sleep(self.drain_delay).await;
            pool.drain();
            closing.start();
            sleep(limits::DRAIN_TIMEOUT - FINAL_EVENTS_TIME).await;
            pool.shut_down();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server::serve(self.listener, router, closing.clone(), limits::DRAIN_TIMEOUT) => {}
            () = leaving => {}
            // In this select, not in tasks: a gateway without its links must end, not look healthy.
            () = pool.clone().run() => {}
            () = pool.clone().end_stalled_streams() => {}
        }
        Ok(())
    }
}

/// Readiness: a gateway is ready while it has a link to a coordinator.
#[derive(Clone)]
pub struct Readiness(Pool);

impl Readiness {
    pub fn is_ready(&self) -> bool {
        self.0.is_up()
    }

    pub fn look(&self) -> Ready {
        self.is_ready().then_some(()).ok_or("the coordinator has not been reached")
    }
}
