//! A closed-loop load generator: each connection sends its next request when it has the response.
//! It checks every response and uses little CPU, because it shares the machine with the servers.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::cmd::bench::{Shape, load::http1::Connection};

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT_PAUSE: Duration = Duration::from_millis(5);
/// The text of every message, about 200 bytes.
const TEXT: &str = "The quick brown fox jumps over the lazy dog, and the lazy dog, which has seen \
    this before in every type specimen since the Boston Journal of 1885, does not even bother to \
    open an eye for it.";
/// Always the same: a message id alone is no idempotency key.
const MESSAGE_ID: &str = "01980000-0000-7000-8000-000000000001";
/// The default text that every response has to contain.
const COMPLETED: &str = "TASK_STATE_COMPLETED";

/// The bytes of one request, the same for every connection.
pub(crate) fn request(shape: Shape) -> Arc<[u8]> {
    let method = shape.method();
    let message = format!(
        r#"{{"messageId":"{MESSAGE_ID}","role":"ROLE_USER","parts":[{{"text":"{TEXT}"}}]}}"#
    );
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{message}}}}}"#
    );
    let head = format!(
        "POST /agents/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         a2a-version: 1.0\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes().into()
}

/// The counts and latencies of a period of load.
#[derive(Default)]
pub(crate) struct Tally {
    /// The latency of each successful request, in nanoseconds.
    pub(crate) latencies: Vec<u32>,
    pub(crate) elapsed: Duration,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<String>,
}

impl Tally {
    fn fail(&mut self, error: &anyhow::Error) {
        self.failed += 1;
        self.first_failure.get_or_insert_with(|| format!("{error:#}"));
    }

    /// Adds the counts of other connections in the same period.
    fn join(&mut self, other: Tally) {
        self.latencies.extend(other.latencies);
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }

    /// Adds the counts of another period.
    pub(crate) fn append(&mut self, other: Tally) {
        self.elapsed += other.elapsed;
        self.join(other);
    }
}

/// Connections to one server that stay open between periods of load.
pub(crate) struct Fleet {
    address: SocketAddr,
    connections: Vec<Connection>,
    /// The requests, sent in turn.
    requests: Arc<[Arc<[u8]>]>,
    /// The text that every response has to contain.
    expected: &'static str,
}

impl Fleet {
    pub(crate) async fn open(
        address: SocketAddr,
        count: u16,
        request: Arc<[u8]>,
    ) -> anyhow::Result<Self> {
        Self::open_with(address, count, [request].into()).await
    }

    /// Opens connections that send these requests in turn. There is at least one.
    pub(crate) async fn open_with(
        address: SocketAddr,
        count: u16,
        requests: Arc<[Arc<[u8]>]>,
    ) -> anyhow::Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(Connection::open(address).await.context("cannot connect")?);
        }
        Ok(Self { address, connections, requests, expected: COMPLETED })
    }

    /// Changes the text that every response has to contain.
    pub(crate) fn expecting(self, expected: &'static str) -> Self {
        Self { expected, ..self }
    }

    /// Applies load for `span`; requests that are under way then are awaited and counted.
    pub(crate) async fn drive(&mut self, span: Duration) -> anyhow::Result<Tally> {
        let mut running = JoinSet::new();
        let start = Instant::now();
        for connection in self.connections.drain(..) {
            let requests = Arc::clone(&self.requests);
            let address = self.address;
            running.spawn(repeat(connection, address, requests, self.expected, start + span));
        }
        let mut tally = Tally::default();
        while let Some(ended) = running.join_next().await {
            let (connection, seen) = ended.context("the driver broke")??;
            self.connections.push(connection);
            tally.join(seen);
        }
        tally.elapsed = start.elapsed();
        Ok(tally)
    }
}

async fn repeat(
    mut connection: Connection,
    address: SocketAddr,
    requests: Arc<[Arc<[u8]>]>,
    expected: &'static str,
    until: Instant,
) -> anyhow::Result<(Connection, Tally)> {
    let mut tally = Tally { latencies: Vec::with_capacity(4096), ..Tally::default() };
    let mut now = Instant::now();
    let mut next = requests.iter().cycle();
    while now < until {
        // One timer for many requests: a timer per request would add to the measured latency.
        let many = timeout(TIMEOUT + (until - now), async {
            while now < until {
                let request = next.next().context("no request")?;
                check(connection.exchange(request).await?, expected)?;
                let end = Instant::now();
                tally.latencies.push(u32::try_from((end - now).as_nanos()).unwrap_or(u32::MAX));
                now = end;
            }
            anyhow::Ok(())
        });
        let failure = match many.await {
            Ok(Ok(())) => break,
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("no answer in time"),
        };
        tally.fail(&failure);
        sleep(RECONNECT_PAUSE).await;
        connection = Connection::open(address).await.context("cannot connect again")?;
        now = Instant::now();
    }
    Ok((connection, tally))
}

fn check((status, body): (u16, &[u8]), expected: &str) -> anyhow::Result<()> {
    let text = std::str::from_utf8(body).context("a body that is not text")?;
    if status != 200 || !text.contains(expected) {
        bail!("HTTP {status}: {text:.300}");
    }
    Ok(())
}

/// Sends one request on a new connection; the number of frames and bytes of its response.
pub(crate) async fn ask(address: SocketAddr, request: &[u8]) -> anyhow::Result<(usize, usize)> {
    let one = async {
        let mut connection = Connection::open(address).await?;
        let answer = connection.exchange(request).await?;
        check(answer, COMPLETED)?;
        let text = std::str::from_utf8(answer.1)?;
        Ok((text.lines().filter(|line| line.starts_with("data:")).count(), text.len()))
    };
    timeout(TIMEOUT, one).await.context("no answer in time")?
}

/// Repeats a request until it succeeds: the first requests to a starting mesh fail.
pub(crate) async fn ask_until_served(
    address: SocketAddr,
    request: &[u8],
    patience: Duration,
    pause: Duration,
) -> anyhow::Result<(usize, usize)> {
    let until = Instant::now() + patience;
    loop {
        match ask(address, request).await {
            Ok(seen) => return Ok(seen),
            Err(error) if Instant::now() > until => return Err(error.context("never served")),
            Err(_) => sleep(pause).await,
        }
    }
}
