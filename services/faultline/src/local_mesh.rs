//! The whole mesh in one process, for `faultline up` and for tests. The services still communicate
//! over connections, either sockets or the in-memory network of the tests, so that everything that
//! works here also works with one process per service.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, anyhow, bail};
use faultline_chassis::{
    Drain, MeshConfig as Shared, Metrics, Secret, Timeouts,
    admin::Ready,
    client::{Channel, Dial},
    limits,
};
use faultline_client::Client;
use faultline_gateway::Readiness;
use faultline_proto::v1::{WorkersRequest, WorkersResponse, mesh_client::MeshClient};
use faultline_worker::Worker;
use futures::future::{join_all, select_all};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tonic::Request;

use crate::{
    config::{Config, url},
    exit::CannotStart,
    remote,
};

/// Timeout until a started mesh answers. The recovery of the store takes most of the time.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two readiness checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long open requests may continue without any worker before the coordinator drains.
const OPEN_REQUESTS_GRACE: Duration = Duration::from_millis(500);

/// A running mesh in this process. The caller of [`LocalMesh::start`] owns it; only `attach`,
/// `detach` and `stop` change it. A drop without [`LocalMesh::stop`] aborts the services, but the
/// tasks that they spawned, including the coordinator's lease on its store, live as long as the
/// runtime: a test of a crash has to run the binary.
pub struct LocalMesh {
    gateway: RunningService,
    coordinator: RunningService,
    workers: Vec<RunningService>,
    readiness: Readiness,
    coordinator_readiness: faultline_coordinator::Readiness,
    url: String,
    hub_url: String,
    gateway_addr: SocketAddr,
    hub_addr: SocketAddr,
    shared: Shared,
    metrics: Metrics,
    /// Calls the coordinator directly: a gateway may require a token that this process lacks.
    operator: MeshClient<Channel>,
    client: Client,
}

/// One service as a task of the runtime, with the handle that drains it.
struct RunningService {
    name: String,
    drain: Drain,
    task: AbortOnDropHandle<anyhow::Result<()>>,
}

impl RunningService {
    fn spawn<E, F>(name: &str, drain: Drain, run: F) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let task = tokio::spawn(async move { run.await.map_err(anyhow::Error::from) });
        Self { name: name.to_owned(), drain, task: AbortOnDropHandle::new(task) }
    }

    /// Waits for the service to end; its result.
    async fn ended(&mut self) -> anyhow::Result<()> {
        let ended = (&mut self.task).await.map_err(anyhow::Error::from).flatten();
        ended.with_context(|| format!("{} failed", self.name))
    }

    /// Waits for the service to end until `at`, then aborts it, which is an error.
    async fn stopped_by(mut self, at: Instant) -> anyhow::Result<()> {
        let ended = timeout_at(at, self.ended()).await;
        ended.unwrap_or_else(|_| Err(anyhow!("{} was cut off while it was leaving", self.name)))
    }
}

impl LocalMesh {
    /// Starts all services and returns once the mesh answers: the gateway has reached the
    /// coordinator, and the worker is attached. Without agents in `config.worker` and `[remote]`
    /// no worker is started.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let worker = config.worker.clone();
        let remote = remote::offers(&config.remote).await.context(CannotStart("worker"))?;
        // On the heap: the future holds three large configurations, and tests start many meshes.
        let mut mesh = Box::pin(Self::start_without_worker(config)).await?;
        if !worker.agents.is_empty() || !remote.is_empty() {
            let build = |config| remote.into_iter().fold(Worker::new(config), Worker::offer);
            mesh.attach(worker, build).await?;
        }
        Ok(mesh)
    }

    async fn start_without_worker(mut config: Config) -> anyhow::Result<Self> {
        config.mesh.in_process_token.get_or_insert_with(Secret::random);
        let Config { coordinator, gateway, mesh: shared, metrics, .. } = config.shared();
        let tls = coordinator.tls.is_some();
        let service = coordinator.bind().await.context(CannotStart("coordinator"))?;
        let hub_addr = service.addr();
        let coordinator_readiness = service.readiness();
        let hub_url = url(hub_addr, tls);
        let drain = Drain::new();
        let coordinator =
            RunningService::spawn("the coordinator", drain.clone(), service.run(drain));

        // No load balancer is in front of this gateway, so a drain delay would serve no one.
        let gateway = faultline_gateway::Config {
            coordinator: hub_url.clone(),
            drain_delay_ms: 0,
            ..gateway
        };
        let tls = gateway.tls.is_some();
        let service = gateway.bind().await.context(CannotStart("gateway"))?;
        let gateway_addr = service.addr();
        let readiness = service.readiness();
        let drain = Drain::new();
        let gateway = RunningService::spawn("the gateway", drain.clone(), service.run(drain));

        let url = url(gateway_addr, tls);
        let operator = MeshClient::new(Channel::lazy(&shared.dial(&hub_url))?);
        let builder = Client::builder(&url);
        let client = match shared.network.clone() {
            Some(network) => builder.network(network).direct()?,
            None => builder.direct()?,
        };
        let mut mesh = Self {
            gateway,
            coordinator,
            workers: Vec::new(),
            readiness,
            coordinator_readiness,
            url,
            hub_url,
            gateway_addr,
            hub_addr,
            shared,
            metrics,
            operator,
            client,
        };
        mesh.wait_until(|_| true).await?;
        Ok(mesh)
    }

    /// Adds a worker and returns once it is attached. `build` receives the configuration with the
    /// address of this mesh's coordinator and may offer agents:
    /// `|config| Worker::new(config).offer(…)`.
    pub async fn attach(
        &mut self,
        config: faultline_worker::Config,
        build: impl FnOnce(faultline_worker::Config) -> Worker,
    ) -> anyhow::Result<()> {
        let name = config.name.clone().unwrap_or_else(|| format!("w-{}", self.workers.len() + 1));
        let config = faultline_worker::Config {
            coordinator: self.hub_url.clone(),
            mesh: self.shared.clone(),
            metrics: self.metrics.clone(),
            name: Some(name.clone()),
            ..config
        };
        let service = build(config).bind().await.context(CannotStart("worker"))?;
        let drain = Drain::new();
        self.workers.push(RunningService::spawn(&name, drain.clone(), service.run(drain)));
        let count = self.workers.iter().filter(|w| w.name == name).count();
        self.wait_until(|seen| {
            seen.workers.iter().filter(|w| w.attached && w.name == name).count() >= count
        })
        .await
    }

    /// Drains and stops the worker that was attached last.
    pub async fn detach(&mut self) -> anyhow::Result<()> {
        let worker = self.workers.pop().ok_or_else(|| anyhow!("there is no worker"))?;
        worker.drain.start();
        worker.stopped_by(Instant::now() + limits::DRAIN_TIMEOUT).await
    }

    pub fn gateway_addr(&self) -> SocketAddr {
        self.gateway_addr
    }

    /// The address at which workers and gateways reach the coordinator.
    pub fn hub_addr(&self) -> SocketAddr {
        self.hub_addr
    }

    /// The parameters of a connection to the coordinator, with the credential of this process,
    /// which is valid for every role.
    pub fn hub_dial(&self) -> Dial {
        self.shared.dial(&self.hub_url)
    }

    /// The URL of the gateway.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The readiness of the mesh, which can be queried at any time.
    pub fn readiness(&self) -> impl Fn() -> Ready + Send + Sync + use<> {
        let gateway = self.readiness.clone();
        let coordinator = self.coordinator_readiness.clone();
        move || coordinator.look().and_then(|()| gateway.look())
    }

    /// A client of this mesh.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until a service ends on its own, which is always an error.
    pub async fn failed(&mut self) -> anyhow::Error {
        let worker = async {
            if self.workers.is_empty() {
                std::future::pending().await
            } else {
                let ended = self.workers.iter_mut().map(|w| Box::pin(w.ended()));
                select_all(ended).await.0
            }
        };
        let ended = tokio::select! {
            ended = self.gateway.ended() => ended,
            ended = self.coordinator.ended() => ended,
            ended = worker => ended,
        };
        ended.err().unwrap_or_else(|| anyhow!("a service ended before it was asked to"))
    }

    /// Drains and stops all services within [`limits::DRAIN_TIMEOUT`]. The gateway stops accepting
    /// requests, workers finish or hand back their tasks, and the coordinator, which both depend
    /// on, stops last.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let end = Instant::now() + limits::DRAIN_TIMEOUT;
        self.gateway.drain.start();
        self.workers.iter().for_each(|worker| worker.drain.start());
        let leave_time = limits::DRAIN_TIMEOUT - 2 * OPEN_REQUESTS_GRACE;
        let workers = self.workers.into_iter().map(|w| w.stopped_by(Instant::now() + leave_time));
        // Every worker is awaited, also after another one has failed.
        let workers: Result<(), _> = join_all(workers).await.into_iter().collect();
        // Requests that are still open wait for people or for other workers. When the coordinator
        // stops, their streams end with a failure that tells the client to reconnect.
        let gateway = timeout(OPEN_REQUESTS_GRACE, self.gateway.ended()).await;
        self.coordinator.drain.start();
        let coordinator = self.coordinator.stopped_by(end).await;
        let gateway = match gateway {
            Ok(ended) => ended,
            Err(_) => self.gateway.stopped_by(end).await,
        };
        workers.and(gateway).and(coordinator)
    }

    /// Polls the mesh through its own interface until the gateway is ready and `condition` holds.
    async fn wait_until(
        &mut self,
        condition: impl Fn(&WorkersResponse) -> bool,
    ) -> anyhow::Result<()> {
        let mut operator = self.operator.clone();
        let readiness = self.readiness.clone();
        let looking = async {
            loop {
                let mut request = Request::new(WorkersRequest {});
                request.extensions_mut().insert(Timeouts::total(POLL_TIMEOUT));
                let seen = operator.workers(request).await;
                if readiness.is_ready() && seen.is_ok_and(|seen| condition(seen.get_ref())) {
                    return;
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = looking => Ok(()),
            error = self.failed() => Err(error),
            () = sleep(START_TIMEOUT) => bail!("no answer within {} s", START_TIMEOUT.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hanging_service_is_aborted_and_named_on_stop() {
        let hanging = std::future::pending::<Result<(), std::io::Error>>();
        let running = RunningService::spawn("w-1", Drain::new(), hanging);
        let cut = running.stopped_by(Instant::now() + Duration::from_millis(20)).await;
        assert_eq!(cut.unwrap_err().to_string(), "w-1 was cut off while it was leaving");
    }
}
