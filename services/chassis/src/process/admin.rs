//! The admin port of one process: liveness, readiness and startup probes, and metrics. Without
//! authentication: it reveals nothing of tasks and callers, and probes have no token. It answers
//! until the process exits, so that a draining process can report that it is not ready.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
};
use http::{
    HeaderValue, Method, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE},
};

use crate::{
    drain::Drain,
    limits,
    metrics::{Metrics, text},
    server::{self, BindError, Bounds, Hosts, Listener, Quotas, Resource},
};

/// The response to a request with a foreign host name, as in DNS rebinding.
const FOREIGN_HOST: &str =
    "this port is bound to loopback: use localhost or a loopback address as the host\n";

/// The reason for which a process is not ready; `Ok` if it is.
pub type Ready = Result<(), &'static str>;

/// The state that probes read. The service sets it. Cheap to clone; all clones share their state.
#[derive(Clone, Default)]
pub struct Probes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    look: OnceLock<Box<dyn Fn() -> Ready + Send + Sync>>,
    leaving: AtomicBool,
}

impl Probes {
    /// Marks the process as started. From now on `look` decides whether it is ready.
    pub fn mark_started(&self, look: impl Fn() -> Ready + Send + Sync + 'static) {
        // Only the first call counts.
        let _ = self.0.look.set(Box::new(look));
    }

    /// Marks the process as leaving: it should get no more traffic.
    pub fn mark_leaving(&self) {
        self.0.leaving.store(true, Ordering::Relaxed);
    }

    fn startup(&self) -> Ready {
        self.0.look.get().map(|_| ()).ok_or("it is starting")
    }

    fn ready(&self) -> Ready {
        if self.0.leaving.load(Ordering::Relaxed) {
            return Err("it is leaving");
        }
        self.0.look.get().map_or(Err("it is starting"), |look| look())
    }
}

/// The bound admin port.
pub struct Admin {
    listener: Listener,
    metrics: Metrics,
    probes: Probes,
}

impl Admin {
    pub async fn bind(
        address: SocketAddr,
        metrics: Metrics,
        probes: Probes,
    ) -> Result<Self, BindError> {
        let listener = Listener::bind(address, None).await?.bounds(bounds());
        Ok(Self { listener, metrics, probes })
    }

    /// The address it listens on, with the assigned port.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Serves for as long as the future is polled.
    pub async fn serve(self) {
        // A loopback port is unauthenticated, so DNS rebinding must be prevented.
        let hosts = Hosts::for_loopback("admin", self.listener.addr());
        let state = Arc::new((self.metrics, self.probes, hosts));
        let router = Router::new().fallback(answer).with_state(state);
        server::serve(self.listener, router, Drain::new(), Duration::ZERO).await;
    }
}

/// Limits of the admin port, which is unauthenticated and has few clients.
fn bounds() -> Bounds {
    let unread = (limits::UNREAD_BYTES_PER_ADDRESS_MAX, limits::UNREAD_BYTES_MAX);
    let few = (limits::ADMIN_CONNECTIONS_PER_ADDRESS_MAX, limits::ADMIN_CONNECTIONS_MAX);
    let limits = Quotas::default()
        .with(Resource::Connection, few.0, few.1)
        .with(Resource::Stream, few.0, few.1)
        .with(Resource::UnreadBytes, unread.0, unread.1);
    // Bodies are not read, so there is no budget for them.
    Bounds::public(limits, 0, limits::IDLE_CONNECTION)
}

type Shared = Arc<(Metrics, Probes, Hosts)>;

async fn answer(State(shared): State<Shared>, request: Request) -> Response<Body> {
    server::charge_until_read(route(&shared, &request))
}

fn route(shared: &Shared, request: &Request) -> Response<Body> {
    let (metrics, probes, hosts) = &**shared;
    let answer = match request.uri().path() {
        "/metrics" => match hosts.check(request.uri(), request.headers()) {
            Ok(()) => metrics_response(metrics),
            Err(_) => return plain(StatusCode::FORBIDDEN, FOREIGN_HOST),
        },
        // Any answer is a sign of life.
        "/livez" => probe_response(Ok(())),
        "/readyz" => probe_response(probes.ready()),
        "/startupz" => probe_response(probes.startup()),
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics, /livez, /readyz and /startupz\n"),
    };
    match *request.method() {
        Method::GET | Method::HEAD => answer,
        _ => {
            let mut refused =
                plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET or HEAD\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            refused
        }
    }
}

/// The metrics in the text format of Prometheus.
pub fn metrics_response(metrics: &Metrics) -> Response<Body> {
    let mut response = Response::new(Body::from(metrics.text()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(text::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn probe_response(ready: Ready) -> Response<Body> {
    match ready {
        Ok(()) => plain(StatusCode::OK, "ok\n"),
        Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn plain(status: StatusCode, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn readiness_follows_the_phases_of_a_process() {
        let probes = Probes::default();
        let is_ready = Arc::new(AtomicBool::new(false));
        assert!(probes.startup().is_err() && probes.ready().is_err());
        probes.mark_started({
            let is_ready = Arc::clone(&is_ready);
            move || is_ready.load(Ordering::Relaxed).then_some(()).ok_or("no coordinator")
        });
        assert_eq!((probes.startup(), probes.ready()), (Ok(()), Err("no coordinator")));
        is_ready.store(true, Ordering::Relaxed);
        assert_eq!(probes.ready(), Ok(()));
        probes.mark_leaving();
        assert_eq!((probes.startup(), probes.ready()), (Ok(()), Err("it is leaving")));
    }
}
