//! The state of one connection that its requests share: the client's address with its quotas, and
//! the time of the last use.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use faultline_proto::Failure;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    quota::{Address, QuotaPermit, Resource, too_many},
    streams,
};
use crate::{limits, net::write_stall::Warning};

/// One connection, shared by its requests and its accept task. The counters are atomic. It lives as
/// long as the connection or one of its streams.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) warning: Warning,
    address: Arc<Address>,
    /// Bytes of incomplete request bodies, and their limit.
    buffered: AtomicUsize,
    buffered_max: usize,
    /// Open streams in the lower half, and all streams so far in the upper.
    streams: AtomicU64,
    /// Unread responses of the current and of the previous period; the periods alternate.
    unread: [AtomicUsize; 2],
    period: AtomicUsize,
    /// Charges for responses that ended while the peer took nothing: HTTP/2 keeps their headers.
    blocked: Mutex<Vec<QuotaPermit>>,
    /// Cancelled when those charges exceed the quota.
    overrun: CancellationToken,
}

const STARTED: u64 = 1 << 32;

impl Connection {
    pub(super) fn new(address: Arc<Address>, buffered_max: usize) -> Arc<Self> {
        Arc::new(Self {
            warning: Warning::default(),
            address,
            buffered: AtomicUsize::new(0),
            buffered_max,
            streams: AtomicU64::new(0),
            unread: Default::default(),
            period: AtomicUsize::new(0),
            blocked: Mutex::default(),
            overrun: CancellationToken::new(),
        })
    }

    /// The flow-control windows of a stream and of the connection, as configured while the quotas
    /// have room for them. Received bytes are in memory before a handler reads them.
    pub(super) fn windows(&self, configured: (u32, u32)) -> ((u32, u32), Option<QuotaPermit>) {
        let bytes = usize::try_from(configured.1).unwrap_or(usize::MAX);
        match self.address.try_acquire(Resource::WindowBytes, bytes) {
            Some(permit) => (configured, Some(permit)),
            None => ((limits::WINDOW_BYTES_MIN, limits::WINDOW_BYTES_MIN), None),
        }
    }

    /// Counts a stream as open until the guard is dropped.
    pub(super) fn stream(self: &Arc<Self>) -> Result<OpenStream, Failure> {
        let taken = self.address.acquire(Resource::Stream, 1)?;
        self.streams.fetch_add(STARTED + 1, Relaxed);
        Ok(OpenStream { connection: Arc::clone(self), _taken: taken })
    }

    /// Counts a response as unread until the guard is dropped.
    pub(super) fn unread(self: &Arc<Self>, bytes: usize) -> Result<Unread, Failure> {
        let taken = self.address.acquire(Resource::UnreadBytes, bytes)?;
        let period = self.period.load(Relaxed) % 2;
        self.unread[period].fetch_add(1, Relaxed);
        Ok(Unread { connection: Arc::clone(self), period, _taken: taken })
    }

    /// Charges a response whose stream ended while the peer took nothing. Above its quota the peer
    /// loses the connection.
    fn charge_blocked(&self) {
        let mut blocked = self.blocked.lock();
        match self.address.acquire(Resource::UnreadBytes, limits::BLOCKED_ANSWER_BYTES) {
            Ok(taken) => blocked.push(taken),
            Err(_) => self.overrun.cancel(),
        }
    }

    /// Returns when a response has been unread for this long, and at the latest after twice as
    /// long; at once when the unread responses exceed the quota of the address.
    pub(super) async fn unread_timeout(&self, patience: Duration) {
        loop {
            let period = sleep_until(Instant::now() + patience);
            if self.overrun.run_until_cancelled(period).await.is_none() {
                return;
            }
            if !self.warning.is_blocked() {
                self.blocked.lock().clear();
            }
            let next = self.period.load(Relaxed).wrapping_add(1);
            if self.unread[next % 2].load(Relaxed) > 0 {
                return;
            }
            self.period.store(next, Relaxed);
        }
    }

    /// Returns when no stream was open for this long.
    pub(super) async fn idle(&self, idle: Duration) {
        let mut seen = self.streams.load(Relaxed);
        let mut since = Instant::now();
        loop {
            // Half the interval: a connection is closed within one and a half times `idle`.
            sleep_until(Instant::now() + idle / 2).await;
            let now = self.streams.load(Relaxed);
            let is_unused = now == seen && now.is_multiple_of(STARTED);
            if !is_unused {
                seen = now;
                since = Instant::now();
            } else if since.elapsed() >= idle {
                return;
            }
        }
    }
}

/// An open stream.
pub(super) struct OpenStream {
    connection: Arc<Connection>,
    _taken: QuotaPermit,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if self.connection.warning.is_blocked() {
            self.connection.charge_blocked();
        }
        self.connection.streams.fetch_sub(1, Relaxed);
    }
}

/// An unread response.
pub(super) struct Unread {
    connection: Arc<Connection>,
    period: usize,
    _taken: QuotaPermit,
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.connection.unread[self.period].fetch_sub(1, Relaxed);
    }
}

/// The client of the current request. None outside of a server.
pub fn client() -> Option<Client> {
    streams::connection().map(Client)
}

/// The client that sent the current request.
#[derive(Clone, Debug)]
pub struct Client(Arc<Connection>);

impl Client {
    /// Acquires one unit, unless the quota of the address or the total is exhausted.
    pub fn acquire(&self, kind: Resource) -> Result<QuotaPermit, Failure> {
        self.0.address.acquire(kind, 1)
    }

    /// Reserves no bytes yet.
    pub(super) fn reserve(&self, kind: Resource) -> Result<ReservedBytes, Failure> {
        let taken = self.0.address.acquire(kind, 0)?;
        Ok(ReservedBytes(Some(Room { taken, connection: Arc::clone(&self.0) })))
    }
}

/// Acquires one unit for the client of the current request. Nothing is counted outside of a server.
pub fn acquire(kind: Resource) -> Result<Option<QuotaPermit>, Failure> {
    client().map(|client| client.acquire(kind)).transpose()
}

/// Reserved room in the budget for buffered bytes: of the connection, its address and the process.
#[derive(Debug, Default)]
pub struct ReservedBytes(Option<Room>);

#[derive(Debug)]
struct Room {
    taken: QuotaPermit,
    connection: Arc<Connection>,
}

impl ReservedBytes {
    /// Reserves room for the current request.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let Some(client) = client() else { return Ok(Self(None)) };
        let mut reserved = client.reserve(Resource::BufferedBytes)?;
        reserved.grow(bytes)?;
        Ok(reserved)
    }

    pub fn grow(&mut self, bytes: usize) -> Result<(), Failure> {
        let Some(room) = &mut self.0 else { return Ok(()) };
        let limit = room.connection.buffered_max;
        if room.connection.buffered.load(Relaxed).saturating_add(bytes) > limit {
            return Err(too_many(room.taken.kind(), limit));
        }
        room.taken.grow(bytes)?;
        room.connection.buffered.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Changes the reservation to this many bytes.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<(), Failure> {
        let Some(room) = &mut self.0 else { return Ok(()) };
        let now = room.taken.amount();
        if bytes >= now {
            return self.grow(bytes - now);
        }
        room.taken.shrink(now - bytes);
        room.connection.buffered.fetch_sub(now - bytes, Relaxed);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn amount(&self) -> usize {
        self.0.as_ref().map_or(0, |room| room.taken.amount())
    }

    /// Ties the reservation to the bytes: dropping the last of them releases it.
    pub fn attach_to(self, bytes: Bytes) -> Bytes {
        match self.0 {
            Some(_) => Bytes::from_owner(Held { bytes, _reserved: self }),
            None => bytes,
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.connection.buffered.fetch_sub(self.taken.amount(), Relaxed);
    }
}

struct Held {
    bytes: Bytes,
    _reserved: ReservedBytes,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::quota::{QuotaTable, Quotas},
        *,
    };

    fn connection(each: usize, total: usize, own: usize) -> Arc<Connection> {
        let limits = Quotas::default().with(Resource::BufferedBytes, each, total);
        Connection::new(QuotaTable::new(limits).address([127, 0, 0, 1].into(), false), own)
    }

    #[test]
    fn reservation_ends_with_the_last_slice_of_its_bytes() {
        let connection = connection(100, 100, 60);
        let connection = &connection;
        streams::within(connection, || {
            let mut first = ReservedBytes::new(40).unwrap();
            assert!(ReservedBytes::new(40).is_err(), "above the limit of the connection");
            first.grow(20).unwrap();
            assert!(first.grow(1).is_err());
            let bytes = first.attach_to(Bytes::from_static(b"body"));
            let part = bytes.slice(1..3);
            drop(bytes);
            assert!(ReservedBytes::new(1).is_err(), "a slice of the bytes is alive");
            drop(part);
            assert!(ReservedBytes::new(60).is_ok());
        });
        assert_eq!(connection.buffered.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_an_open_stream_is_idle_after_its_time() {
        let idle = Duration::from_secs(60);
        let connection = connection(1, 1, 1);
        let start = Instant::now();
        connection.idle(idle).await;
        assert!(start.elapsed() >= idle && start.elapsed() <= idle * 3 / 2);
        let open = connection.stream().unwrap();
        let watched = tokio::time::timeout(idle * 10, connection.idle(idle)).await;
        assert!(watched.is_err(), "an open stream counts as use");
        drop(open);
        connection.idle(idle).await;
    }
}
