//! A scripted A2A server with fault injection, for tests of clients and of remote agents. It
//! records the requests that it receives.

use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use crate::testing::scripted_reply::{Fault, Reply};

const CARD: &str = "/.well-known/agent-card.json";
/// Bound on a request; a larger one closes its connection.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Listens on a port of this machine until it is dropped. The script answers every request but
/// those for the card, which offers JSON-RPC; every connection serves one request.
///
/// ```
/// use faultline::testing::{Peer, Reply};
/// use faultline_client::{Client, text};
/// use serde_json::json;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let done = json!({"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}});
/// let busy = Reply::json(429, json!({})).header("retry-after", "0");
/// let peer = Peer::start([busy, Reply::task(done)]).await?;
///
/// let client = Client::connect(&peer.url()).await?;
/// client.send(text("hello").idempotent()).await?;
/// assert_eq!(peer.calls().len(), 2);
/// # anyhow::Ok(())
/// # }).unwrap();
/// ```
pub struct Peer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    _serving: AbortOnDropHandle<()>,
}

/// One recorded request.
#[derive(Clone, Debug)]
pub struct Request {
    pub verb: String,
    pub path: String,
    /// The headers in their order, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub at: Instant,
}

/// Computes the reply to a request from it and the number of calls before it.
type Script = dyn FnMut(&Request, usize) -> Reply + Send;

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null if it is invalid.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The method of a JSON-RPC call.
    pub fn method(&self) -> String {
        self.json()["method"].as_str().unwrap_or_default().to_owned()
    }
}

impl Peer {
    /// Answers each call with the next reply; after the last one connections are closed.
    pub async fn start(replies: impl IntoIterator<Item = Reply>) -> anyhow::Result<Self> {
        let mut replies: VecDeque<Reply> = replies.into_iter().collect();
        let over = || Reply::json(500, Value::Null).drop_before_headers();
        Self::answering(move |_, _| replies.pop_front().unwrap_or_else(over)).await
    }

    /// Answers each call with the result of the script, which receives the call and the number of
    /// calls before it.
    pub async fn answering(
        script: impl FnMut(&Request, usize) -> Reply + Send + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port")?;
        let address = listener.local_addr().context("no address")?;
        let seen = Arc::default();
        let serving = serve(listener, address, Arc::clone(&seen), Box::new(script));
        let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
        Ok(Self { address, seen, _serving })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The recorded requests, without those for the card.
    pub fn calls(&self) -> Vec<Request> {
        let seen = self.seen.lock();
        seen.iter().filter(|request| !request.path.ends_with(CARD)).cloned().collect()
    }

    /// The JSON-RPC methods of the recorded requests.
    pub fn methods(&self) -> Vec<String> {
        self.calls().iter().map(Request::method).collect()
    }

    /// The time between each call and the next.
    pub fn gaps(&self) -> Vec<Duration> {
        self.calls().windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }
}

async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    script: Box<Script>,
) {
    let script = Arc::new(Mutex::new((script, 0)));
    // Connections end with the peer.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let seen = Arc::clone(&seen);
        let script = Arc::clone(&script);
        connections.spawn(async move {
            let mut stream = stream;
            let Ok(request) = read(&mut stream).await else { return };
            let reply = if request.path.ends_with(CARD) {
                Reply::json(200, card(address))
            } else {
                let mut script = script.lock();
                let (answer, count) = &mut *script;
                *count += 1;
                answer(&request, *count - 1)
            };
            let id = request.json()["id"].clone();
            seen.lock().push(request);
            // The client may have closed the connection.
            let _ = answer(&mut stream, &reply, &id).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(stream: &mut TcpStream, reply: &Reply, id: &Value) -> io::Result<()> {
    let bytes = reply.render(id);
    match reply.fault {
        Fault::DropBeforeHead => return Ok(()),
        Fault::Silence => return std::future::pending().await,
        _ => stream.write_all(&bytes.head).await?,
    }
    match reply.fault {
        Fault::DropAfterHead => Ok(()),
        Fault::SilenceAfterHead => std::future::pending().await,
        Fault::Drip(pause) => {
            for byte in &bytes.body {
                sleep(pause).await;
                stream.write_all(&[*byte]).await?;
            }
            Ok(())
        }
        _ => stream.write_all(&bytes.body).await,
    }
}

async fn read(stream: &mut TcpStream) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
        if bytes.len() > REQUEST_BYTES_MAX || stream.read_buf(&mut bytes).await? == 0 {
            return Err(broken());
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let verb = first.next().unwrap_or_default();
    let path = first.next().unwrap_or_default();
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers: Vec<_> = lines.filter_map(header).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = bytes.split_off(head_end + 4);
    while body.len() < length {
        if length > REQUEST_BYTES_MAX || stream.read_buf(&mut body).await? == 0 {
            return Err(broken());
        }
    }
    Ok(Request { verb, path, headers, body, at: Instant::now() })
}

fn card(address: SocketAddr) -> Value {
    json!({
        "name": "peer",
        "description": "Answers by a script",
        "version": "1.0.0",
        "capabilities": {"streaming": true},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "peer", "name": "peer", "description": "Anything", "tags": ["test"]}],
        "supportedInterfaces": [{
            "url": format!("http://{address}/"),
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }],
    })
}
