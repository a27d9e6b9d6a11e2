//! A whole mesh for one test, with its own in-memory network, its own store and the test's agents.

use std::path::Path;

use anyhow::{Context, bail};
use bytes::Bytes;
use faultline_chassis::{Network, dial::Connector, tls::Trust};
use faultline_client::{Answer, Binding, Client};
use faultline_worker::{Offer, Worker};
use http::{Method, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use serde_json::Value;
use tempfile::TempDir;

use crate::config::{Config, store_in};

/// A mesh in this process without sockets. A drop aborts it and deletes its store. Webhooks and
/// remote agents are outside of it and are called over the machine's network.
///
/// ```
/// # use faultline::testing::TestMesh;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let builder = TestMesh::builder().configure(|c| c.worker.agents = vec!["echo".into()]);
/// let mesh = builder.start().await?;
///
/// // As an A2A client that discovers the agent by its card.
/// let echo = mesh.connect("echo").await?;
/// assert_eq!(echo.run(faultline_client::text("hello")).await?.text(), "hello");
///
/// // As HTTP, for tests of the wire format.
/// let body = serde_json::json!({
///     "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
/// });
/// let (status, answer) = mesh.post("/agents/echo/message:send", &body).await?;
/// assert_eq!(status, 200);
/// assert_eq!(answer["task"]["status"]["state"], "TASK_STATE_COMPLETED");
/// # mesh.stop().await
/// # }).unwrap();
/// ```
pub struct TestMesh {
    running: crate::LocalMesh,
    network: Network,
    bindings: Vec<faultline_gateway::Binding>,
    http: legacy::Client<Connector, Full<Bytes>>,
    /// Last, so that the mesh is gone before its files are.
    _dir: TempDir,
}

/// The agents and the configuration of a mesh to be started.
#[must_use]
pub struct Builder {
    offers: Vec<Offer>,
    config: Config,
    store: Option<String>,
}

impl Builder {
    /// Adds an agent. The first one is also the default agent at the root.
    pub fn agent(mut self, offer: Offer) -> Self {
        self.offers.push(offer);
        self
    }

    /// Keeps tasks in this store, such as `postgres://…`, which outlives the mesh. By default the
    /// mesh has a temporary store of its own.
    pub fn store(mut self, url: impl Into<String>) -> Self {
        self.store = Some(url.into());
        self
    }

    /// Changes the configuration: built-in agents, tokens, limits of an agent. The addresses are
    /// overridden, and so is the store unless [`Builder::store`] names one.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Serves the REST binding only, also according to the cards.
    pub fn rest_only(self) -> Self {
        self.configure(|config| config.gateway.bindings = vec![faultline_gateway::Binding::Rest])
    }

    /// Starts the mesh and returns once it answers and its agents are offered.
    pub async fn start(self) -> anyhow::Result<TestMesh> {
        let Self { offers, mut config, store } = self;
        if offers.is_empty() && config.worker.agents.is_empty() {
            bail!("a mesh without agents: offer one with Builder::agent");
        }
        let dir = tempfile::tempdir().context("no room for a store")?;
        let network = Network::new();
        config.coordinator.store = store.unwrap_or_else(|| store_in(dir.path()));
        config.mesh.network = Some(network.clone());
        let first = offers.first().map(|offer| offer.name().to_owned());
        config.coordinator.default_agent = config.coordinator.default_agent.or(first);
        let worker = config.worker.clone();
        let bindings = config.gateway.bindings.clone();
        config.worker.agents.clear();
        let mut running = crate::LocalMesh::start(config).await?;
        let build = |config| offers.into_iter().fold(Worker::new(config), Worker::offer);
        running.attach(worker, build).await?;
        let connector = Connector::new(Trust::system()).on(Some(network.clone()));
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        Ok(TestMesh { running, network, bindings, http, _dir: dir })
    }
}

impl TestMesh {
    pub fn builder() -> Builder {
        let mut config = Config::local(Path::new("")).on_free_ports();
        config.worker.agents.clear();
        config.coordinator.default_agent = None;
        Builder { offers: Vec::new(), config, store: None }
    }

    /// Sends one text and waits until its task ends or asks. A failed task is not an error of this
    /// call; [`Answer::ok`] turns it into one.
    pub async fn send(&self, agent: &str, text: &str) -> anyhow::Result<Answer> {
        Ok(self.client(agent)?.send(faultline_client::text(text)).await?)
    }

    /// A client of an agent without its card, by the first binding that is served.
    pub fn client(&self, agent: &str) -> anyhow::Result<Client> {
        let binding = match self.bindings[0] {
            faultline_gateway::Binding::JsonRpc => Binding::JsonRpc,
            faultline_gateway::Binding::Rest => Binding::HttpJson,
            faultline_gateway::Binding::Grpc => Binding::Grpc,
        };
        self.client_by(binding, agent)
    }

    /// A client of an agent by this binding.
    pub fn client_by(&self, binding: Binding, agent: &str) -> anyhow::Result<Client> {
        let builder = Client::builder(&self.running.url()).network(self.network.clone());
        Ok(builder.binding(binding).direct()?.agent(agent))
    }

    /// A client that has read the card of the agent and follows it.
    pub async fn connect(&self, agent: &str) -> anyhow::Result<Client> {
        let url = format!("{}/agents/{agent}", self.running.url());
        Ok(Client::builder(&url).network(self.network.clone()).connect().await?)
    }

    /// The in-memory network of the mesh, for clients with further settings such as a token.
    pub fn network(&self) -> Network {
        self.network.clone()
    }

    /// The URL of the gateway in that network.
    pub fn url(&self) -> String {
        self.running.url()
    }

    /// Sends one HTTP request to a path of the gateway. A stream is read to its end.
    pub async fn http(
        &self,
        request: Request<impl Into<Bytes>>,
    ) -> anyhow::Result<Response<Bytes>> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("{}{path}", self.running.url()).parse().context("no path")?;
        head.uri = uri;
        let request = Request::from_parts(head, Full::new(body.into()));
        let (head, body) = self.http.request(request).await.context("no answer")?.into_parts();
        let body = body.collect().await.context("the answer broke off")?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// The JSON response to a GET of this path.
    pub async fn get(&self, path: &str) -> anyhow::Result<(StatusCode, Value)> {
        self.json(Method::GET, path, String::new()).await
    }

    /// The JSON response to a POST of this JSON: a call of REST, or a whole request of JSON-RPC.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<(StatusCode, Value)> {
        self.json(Method::POST, path, body.to_string()).await
    }

    async fn json(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let request = Request::builder().method(method).uri(path).header("a2a-version", "1.0");
        let request = request.header(CONTENT_TYPE, "application/json").body(body)?;
        let response = self.http(request).await?;
        let value = serde_json::from_slice(response.body())
            .with_context(|| format!("no JSON: {:?}", response.body()))?;
        Ok((response.status(), value))
    }

    /// Drains and stops the mesh.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.running.stop().await
    }
}
