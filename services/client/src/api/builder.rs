//! Builder of a client: from an agent card, or for a URL without a card. Includes the guards
//! against SSRF and for credentials.

use std::{path::PathBuf, sync::Arc};

use faultline_chassis::{
    Network, TraceContext,
    client::{Channel, Dial},
    dial::{self, BadTarget, Connector},
    error_chain::one_line,
    limits,
    tls::Trust,
};
use faultline_proto::{
    Failure,
    a2a::{AgentCard, Task},
    reason,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header::AUTHORIZATION};
use tokio::time::timeout;

use crate::{
    Client,
    api::{error::Error, follow::Reconnect},
    protocol::{
        card::{self, AllowedOrigins, Binding, CardProblem, Interface, origin},
        dialect::Dialect,
        operation::{EXTENSIONS_HEADER, VERSION_HEADER},
        task_outcome::Convert,
    },
    transport::{
        bearer::Bearer,
        binding::Transport,
        call_limit::CallLimit,
        grpc::Grpc,
        http::{BodyFormat, Http, HttpRequest},
        retry::Retry,
        timeouts::Timeouts,
    },
};

/// Default limit of concurrent calls of one client, open streams included.
const CALLS_MAX: usize = 256;

/// All settings of a client. See [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    url: String,
    binding: Option<Binding>,
    ca: Option<PathBuf>,
    network: Option<Network>,
    headers: HeaderMap,
    bearer: Bearer,
    /// Further origins to which credentials may be sent.
    allowed: Vec<String>,
    public_only: bool,
    trace: Option<TraceContext>,
    retry: Retry,
    reconnect: Reconnect,
    timeouts: Timeouts,
    max_calls: usize,
    dialect: Dialect,
    convert: Convert,
    /// The first invalid setting; returned by `connect` and `direct`.
    problem: Option<Failure>,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        Self {
            url: url.trim_end_matches('/').to_owned(),
            binding: None,
            ca: None,
            network: None,
            headers: HeaderMap::new(),
            bearer: Bearer::default(),
            allowed: Vec::new(),
            public_only: false,
            trace: None,
            retry: Retry::default(),
            reconnect: Reconnect::default(),
            timeouts: Timeouts::default(),
            max_calls: CALLS_MAX,
            dialect: Dialect::default(),
            convert: Convert::default(),
            problem: None,
        }
    }

    /// Uses this binding. Default: the first supported binding of the card, or JSON-RPC without a
    /// card.
    pub fn binding(mut self, binding: Binding) -> Self {
        self.binding = Some(binding);
        self
    }

    /// Sends this token with every call: to the server of the card, and to the interface of the
    /// card if it has the same origin. See [`Builder::allow_origin`].
    pub fn bearer(self, token: &str) -> Self {
        self.credential(AUTHORIZATION, &format!("Bearer {token}"))
    }

    /// Sends a token that expires. `have` fetches the token before the first call, and again when
    /// the server rejects it; the rejected call is then repeated once.
    ///
    /// ```
    /// # use faultline_client::Client;
    /// let builder = Client::builder("https://agents.example.org").bearer_from(|| async {
    ///     Ok(tokio::fs::read_to_string("/run/secrets/agents").await?.trim().to_owned())
    /// });
    /// ```
    pub fn bearer_from<F>(mut self, have: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String, Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        self.bearer = Bearer::from(have);
        self
    }

    /// Trusts the certificates in this PEM file and no others. Default: those of the system.
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Connects inside this in-process network, where a mesh of the same process listens.
    pub fn network(mut self, network: Network) -> Self {
        self.network = Some(network);
        self
    }

    /// Sends this header with every call, such as an API key. The value is never shown.
    pub fn header(self, name: &str, value: &str) -> Self {
        match name.parse() {
            Ok(name) => self.credential(name, value),
            Err(_) => self.wrong(format!("not the name of a header: '{name}'")),
        }
    }

    /// Allows credentials to be sent to this origin as well, if the card leads there:
    /// `https://HOST:PORT`. By default credentials are sent to the origin of the card alone,
    /// because a card can name any URL.
    pub fn allow_origin(mut self, url: &str) -> Self {
        match origin(url) {
            none if none.is_empty() => {
                self.wrong(format!("not an origin: '{url}' (write https://HOST:PORT)"))
            }
            origin => {
                self.allowed.push(origin);
                self
            }
        }
    }

    /// Restricts interfaces at other origins than the card's to public addresses and to the origins
    /// of [`Builder::allow_origin`]. Without this, the author of a card chooses an address that is
    /// called from this machine (SSRF). Default: any address.
    pub fn public_only(mut self) -> Self {
        self.public_only = true;
        self
    }

    /// Requests this extension if the agent supports it. For a required extension use
    /// [`Client::require_extension`].
    pub fn extension(mut self, uri: &str) -> Self {
        match HeaderValue::from_str(uri) {
            Ok(_) => add_extension(&mut self.headers, uri),
            Err(_) => return self.wrong(format!("not the URI of an extension: '{uri}'")),
        }
        self
    }

    /// Makes every call part of this trace. Default: each call starts a trace.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// The retry policy of calls.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The reconnect policy of event streams.
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// The timeouts of one call. They do not limit a task: [`Client::run`] and [`Client::follow`]
    /// outlive any call.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Limit of concurrent calls of this client, streams included. Further calls wait, for
    /// [`Timeouts::pool`] at most. Default: 256.
    pub fn max_calls(self, calls: usize) -> Self {
        match calls {
            0 => self.wrong("`max_calls` is 0: no call could be made".to_owned()),
            calls => Self { max_calls: calls, ..self },
        }
    }

    /// The error format of a server that does not follow A2A.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Reads the failure of a task by a convention of its server. If `convert` returns `None`, the
    /// default reading applies: the faultline record, flat keys such as `error_code`, or text.
    ///
    /// ```
    /// # use faultline_client::{Client, Failure};
    /// # use faultline_proto::reason;
    /// let builder = Client::builder("https://agents.example.org").convert(|task| {
    ///     let code = task.metadata.as_ref()?.fields.get("acme/errno")?;
    ///     Some(Failure::new(&reason::TASK_FAILED).with_business_code(format!("{code:?}")))
    /// });
    /// ```
    pub fn convert(
        mut self,
        convert: impl Fn(&Task) -> Option<Failure> + Send + Sync + 'static,
    ) -> Self {
        self.convert = Convert::new(convert);
        self
    }

    /// Reads the agent's card and chooses an interface. The URL is that of the card, of the agent
    /// or of the server: unless it ends in `.json`, the card is at the well-known path below it.
    pub async fn connect(self) -> Result<Client, Error> {
        let http = self.http(false)?;
        let url = card::card_url(&self.url);
        let read = || async {
            let mut headers = self.headers.clone();
            self.bearer.put(&mut headers).await?;
            let url = url.clone();
            let form = BodyFormat::Bare;
            let exchange = HttpRequest { verb: Method::GET, url, headers, body: None, form };
            http.call(exchange).await?.success_body()
        };
        let card = self.retry.run(true, false, || self.bearer.run(read)).await?;
        let card = card::read(&card).map_err(|problem| Error::InvalidCard { url, problem })?;
        let interface = self.choose(&card)?;
        if self.allowed_origins().must_be_public(&interface.url) {
            self.check_public(&interface).await?;
        }
        self.build_by(card, interface)
    }

    /// Chooses an interface of a card that is already at hand.
    pub fn connect_by(self, card: AgentCard) -> Result<Client, Error> {
        let interface = self.choose(&card)?;
        self.build_by(card, interface)
    }

    fn build_by(self, card: AgentCard, interface: Interface) -> Result<Client, Error> {
        let root = origin(&interface.url);
        self.build(interface, root, Some(card))
    }

    fn choose(&self, card: &AgentCard) -> Result<Interface, Error> {
        let unusable = |problem| Error::InvalidCard { url: card::card_url(&self.url), problem };
        card::choose(card, self.binding, &self.allowed_origins()).map_err(unusable)
    }

    fn allowed_origins(&self) -> AllowedOrigins {
        let in_headers = self.headers.values().any(HeaderValue::is_sensitive);
        let has_credentials = in_headers || self.bearer.is_some();
        let card = self.url.clone();
        let allowed = self.allowed.clone();
        // An in-process network has no other addresses.
        let public_only = self.public_only && self.network.is_none();
        AllowedOrigins { card, allowed, has_credentials, public_only }
    }

    /// Reports a forbidden address before the first call. A name that later resolves to another
    /// address is rejected when it is dialled (DNS rebinding).
    async fn check_public(&self, interface: &Interface) -> Result<(), Error> {
        let uri: Uri = interface.url.parse().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(443);
        let checking = dial::check_public(uri.host().unwrap_or_default(), port);
        let bound = self.timeouts.connect.unwrap_or(limits::CONNECT_TIMEOUT);
        match timeout(bound, checking).await {
            Ok(Err(BadTarget::Forbidden(_))) => {
                let card = origin(&self.url);
                let called = origin(&interface.url);
                let problem = CardProblem::NotPublic { card, called };
                Err(Error::InvalidCard { url: card::card_url(&self.url), problem })
            }
            // A name that does not resolve is reported by the first call.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Calls the URL without a card. The first call connects.
    pub fn direct(self) -> Result<Client, Error> {
        let binding = self.binding.unwrap_or(Binding::JsonRpc);
        let url = card::checked_url(&self.url, binding, false).map_err(|why| {
            let message = format!("not an address to call: '{}' ({why})", self.url);
            Failure::new(&reason::INVALID_ARGUMENT).because(message)
        })?;
        let root = url.clone();
        let version = card::V1_0.to_owned();
        self.build(Interface { binding, url, tenant: String::new(), version }, root, None)
    }

    fn build(
        self,
        interface: Interface,
        root: String,
        card: Option<AgentCard>,
    ) -> Result<Client, Error> {
        let public_only = card.is_some() && self.allowed_origins().must_be_public(&interface.url);
        let http = self.http(public_only)?;
        let ca = self.ca.clone();
        let network = self.network.clone();
        let peer = Arc::new(peer(&interface.url));
        let v03 = interface.version == card::V0_3;
        let transport = match interface.binding {
            Binding::JsonRpc => Transport::JsonRpc { http: http.clone(), url: interface.url, v03 },
            Binding::HttpJson => {
                Transport::HttpJson { http: http.clone(), url: interface.url, v03 }
            }
            Binding::Grpc => {
                // The token is sent with the other headers.
                let address = interface.url;
                let dial = Dial { address, ca, network, public_only, ..Dial::default() };
                let Timeouts { connect, write, .. } = self.timeouts;
                let channel = Channel::external(&dial, connect, write);
                Transport::Grpc(Grpc::new(channel.map_err(|e| unusable(&e))?, self.timeouts))
            }
        };
        let mut headers = self.headers;
        let version = HeaderValue::from_str(&interface.version);
        headers.insert(VERSION_HEADER, version.expect("a version is made of digits and dots"));
        Ok(Client {
            transport,
            http,
            root,
            tenant: interface.tenant,
            headers,
            trace: self.trace,
            peer,
            card: card.map(Arc::new),
            retry: self.retry,
            reconnect: self.reconnect,
            call_limit: CallLimit::new(self.max_calls, self.timeouts.pool),
            convert: self.convert,
            bearer: self.bearer,
        })
    }

    fn http(&self, public_only: bool) -> Result<Http, Error> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone().into());
        }
        let trust = Trust::with_ca(self.ca.as_deref()).map_err(|e| unusable(&e))?;
        let connector = Connector::new(trust).on(self.network.clone());
        let connector = if public_only { connector.public_only() } else { connector };
        Ok(Http::new(connector, self.timeouts, self.dialect))
    }

    fn credential(mut self, name: HeaderName, value: &str) -> Self {
        match HeaderValue::from_str(value) {
            Ok(mut value) => {
                value.set_sensitive(true);
                self.headers.insert(name, value);
                self
            }
            Err(_) => self.wrong(format!("the value of header '{name}' cannot be sent")),
        }
    }

    fn wrong(mut self, message: String) -> Self {
        let problem = || Failure::new(&reason::INVALID_ARGUMENT).because(message);
        self.problem.get_or_insert_with(problem);
        self
    }
}

pub(crate) fn add_extension(headers: &mut HeaderMap, uri: &str) {
    let known = headers.get(EXTENSIONS_HEADER).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if known.split(", ").any(|one| one == uri) {
        return;
    }
    let all = if known.is_empty() { uri.to_owned() } else { format!("{known}, {uri}") };
    if let Ok(value) = HeaderValue::from_str(&all) {
        headers.insert(EXTENSIONS_HEADER, value);
    }
}

fn unusable(error: &(dyn std::error::Error + 'static)) -> Error {
    Failure::new(&reason::INVALID_ARGUMENT).because(one_line(error)).into()
}

/// Host and port of the URL.
fn peer(url: &str) -> (String, Option<u16>) {
    let uri: Option<Uri> = url.parse().ok();
    let authority = uri.as_ref().and_then(|uri| uri.authority());
    authority.map_or_else(Default::default, |at| (at.host().to_owned(), at.port_u16()))
}
