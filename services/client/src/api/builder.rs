//! How a client is made: by an agent's card, or without one.

use std::{path::PathBuf, sync::Arc};

use faultline_chassis::{
    Network, TraceContext,
    client::{Channel, Dial},
    dial::{self, BadTarget, Connector},
    error_chain::causes,
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

/// Calls of one client that may be under way, open streams included.
const CALLS_MAX: usize = 256;

/// Everything that may be said about a client before it is one. See [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    url: String,
    binding: Option<Binding>,
    ca: Option<PathBuf>,
    network: Option<Network>,
    headers: HeaderMap,
    bearer: Bearer,
    /// Where credentials may go beside the card's own origin.
    allowed: Vec<String>,
    public_only: bool,
    trace: Option<TraceContext>,
    retry: Retry,
    reconnect: Reconnect,
    timeouts: Timeouts,
    max_calls: usize,
    dialect: Dialect,
    convert: Convert,
    /// The first thing that was said wrongly.
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

    /// This binding and no other. By default the card's first that is known, or JSON-RPC.
    pub fn binding(mut self, binding: Binding) -> Self {
        self.binding = Some(binding);
        self
    }

    /// With this token in every call: those that read the card, and those to where it leads, which
    /// must then be at the same origin. See [`Builder::allow_origin`].
    pub fn bearer(self, token: &str) -> Self {
        self.credential(AUTHORIZATION, &format!("Bearer {token}"))
    }

    /// With a token that expires. It is had by `have` when it is first needed, and again when the
    /// server does not take it any more: the call that was refused is then made once more.
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

    /// Trusting the certificates in this PEM file and no others. By default those that the system
    /// trusts.
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Inside this network, where a mesh in the same process listens, and nowhere else.
    pub fn network(mut self, network: Network) -> Self {
        self.network = Some(network);
        self
    }

    /// With this header in every call, such as an API key. Its value is never shown.
    pub fn header(self, name: &str, value: &str) -> Self {
        match name.parse() {
            Ok(name) => self.credential(name, value),
            Err(_) => self.wrong(format!("not the name of a header: '{name}'")),
        }
    }

    /// Credentials may go to this origin too, should the card lead there: `https://HOST:PORT`. By
    /// default they go to the origin of the card alone, since a card can name anybody.
    pub fn allow_origin(mut self, url: &str) -> Self {
        match origin(url) {
            none if none.is_empty() => {
                self.wrong(format!("not an origin: '{url}' (say https://HOST:PORT)"))
            }
            origin => {
                self.allowed.push(origin);
                self
            }
        }
    }

    /// Where the card leads to another origin than its own, only a public address is called, or an
    /// origin of [`Builder::allow_origin`]. Without this, whoever writes the card chooses what is
    /// called from here (SSRF). By default any address is.
    pub fn public_only(mut self) -> Self {
        self.public_only = true;
        self
    }

    /// With this extension, if the agent knows it. One that is needed:
    /// [`Client::require_extension`].
    pub fn extension(mut self, uri: &str) -> Self {
        match HeaderValue::from_str(uri) {
            Ok(_) => add_extension(&mut self.headers, uri),
            Err(_) => return self.wrong(format!("not the URI of an extension: '{uri}'")),
        }
        self
    }

    /// Every call in this trace; otherwise each call starts one of its own.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// How calls are repeated.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// How followers go on after a break.
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// How long one call may take. It never bounds a task: [`Client::run`] and [`Client::follow`]
    /// outlive any call.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// How many calls of this client may be under way at once, streams included. The next one
    /// waits, for [`Timeouts::pool`] at most. By default 256.
    pub fn max_calls(self, calls: usize) -> Self {
        match calls {
            0 => self.wrong("`max_calls` is 0: nothing could ever be called".to_owned()),
            calls => Self { max_calls: calls, ..self },
        }
    }

    /// How the server tells its errors, if it is not by A2A.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Reads the failure of a task as its server tells it, by whatever convention of its own. None:
    /// the usual reading, which knows faultline's record, flat keys such as `error_code`, and text.
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

    /// Reads the agent's card and chooses how to call it. The URL is that of the card, of the
    /// agent or of a server: unless it ends in `.json`, the card is well known below it.
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

    /// Chooses how to call an agent by a card that is already at hand.
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
        // A network of our own has no other addresses.
        let public_only = self.public_only && self.network.is_none();
        AllowedOrigins { card, allowed, has_credentials, public_only }
    }

    /// Says so before the first call; a name that resolves to another address later is refused
    /// when it is dialled.
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
            // A name without an address is the first call's to report.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Calls the URL as it is, without a card. The first call connects.
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
                // The token travels with the other headers.
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
    let text: Vec<_> = causes(error).map(|error| error.to_string()).collect();
    Failure::new(&reason::INVALID_ARGUMENT).because(text.join(": ")).into()
}

/// Host and port, where the URL says them.
fn peer(url: &str) -> (String, Option<u16>) {
    let uri: Option<Uri> = url.parse().ok();
    let authority = uri.as_ref().and_then(|uri| uri.authority());
    authority.map_or_else(Default::default, |at| (at.host().to_owned(), at.port_u16()))
}
