//! Admission control: quotas of a listener per client address and in total. They apply before
//! authentication, so that one address cannot exhaust a resource that all share.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_proto::{Failure, reason};
use parking_lot::{Mutex, MutexGuard};

use super::address::{Cidr, grouped};

/// `retry_after` of a refusal.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A counted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Connection,
    /// Bytes of incomplete request bodies.
    BufferedBytes,
    /// Calls that the coordinator has not answered.
    Call,
    /// Health watches, which need no credential.
    HealthWatch,
    /// KEDA push-scaler streams.
    ScalerStream,
    /// Calls without a credential.
    UnauthenticatedCall,
    /// Agent cards that are being fetched from a coordinator.
    CardFetch,
    /// Open HTTP/2 streams, those with an unread request included.
    Stream,
    /// Bytes of unread responses on a public port.
    UnreadBytes,
    /// Bytes of incomplete gRPC messages of members of the mesh.
    MessageBytes,
    /// Bytes of the flow-control windows of connections.
    WindowBytes,
}

impl Resource {
    const COUNT: usize = 11;

    fn name(self) -> &'static str {
        match self {
            Resource::Connection => "connections",
            Resource::BufferedBytes => "buffered bytes of requests",
            Resource::Call => "calls",
            Resource::HealthWatch => "health watches",
            Resource::ScalerStream => "scaler streams",
            Resource::UnauthenticatedCall => "calls without a credential",
            Resource::CardFetch => "agent cards being fetched",
            Resource::Stream => "streams",
            Resource::UnreadBytes => "bytes of unread answers",
            Resource::MessageBytes => "bytes of unfinished messages",
            Resource::WindowBytes => "bytes of flow-control windows",
        }
    }
}

/// The limits of each resource.
#[derive(Clone, Debug)]
pub struct Quotas {
    each: [usize; Resource::COUNT],
    total: [usize; Resource::COUNT],
    exempt: Vec<Cidr>,
}

/// No limits.
impl Default for Quotas {
    fn default() -> Self {
        let none = [usize::MAX; Resource::COUNT];
        Self { each: none, total: none, exempt: Vec::new() }
    }
}

impl Quotas {
    /// Sets the limits of one address, and of all addresses together.
    pub fn with(mut self, kind: Resource, each: usize, total: usize) -> Self {
        self.each[kind as usize] = each;
        self.total[kind as usize] = total;
        self
    }

    /// Sets the addresses that stand for many clients, such as proxies: only the total applies to
    /// them.
    pub fn exempt(self, exempt: Vec<Cidr>) -> Self {
        Self { exempt, ..self }
    }
}

/// The usage of one listener: in total by atomic counters, and per address under a mutex.
#[derive(Debug)]
pub(super) struct QuotaTable {
    limits: Quotas,
    total: [AtomicUsize; Resource::COUNT],
    known: Mutex<HashMap<IpAddr, Weak<Address>>>,
}

/// The usage of one client address. It lives as long as the address holds any resource.
#[derive(Debug)]
pub(super) struct Address {
    /// None: the address is exempt.
    ip: Option<IpAddr>,
    held: [AtomicUsize; Resource::COUNT],
    /// A refusal of this address was logged.
    refusal_logged: AtomicBool,
    quotas: Arc<QuotaTable>,
}

impl QuotaTable {
    pub(super) fn new(limits: Quotas) -> Arc<Self> {
        Arc::new(Self { limits, total: Default::default(), known: Mutex::default() })
    }

    /// The usage of an address. Exempt peers and peers inside this process get one of their own.
    pub(super) fn address(self: &Arc<Self>, peer: IpAddr, is_inside: bool) -> Arc<Address> {
        let is_exempt = is_inside || self.limits.exempt.iter().any(|cidr| cidr.contains(peer));
        let ip = (!is_exempt).then(|| grouped(peer));
        let new = || {
            let held = Default::default();
            let refusal_logged = AtomicBool::new(false);
            Arc::new(Address { ip, held, refusal_logged, quotas: Arc::clone(self) })
        };
        let Some(ip) = ip else { return new() };
        let mut known = self.known();
        if let Some(address) = known.get(&ip).and_then(Weak::upgrade) {
            return address;
        }
        let address = new();
        known.insert(ip, Arc::downgrade(&address));
        address
    }

    fn known(&self) -> MutexGuard<'_, HashMap<IpAddr, Weak<Address>>> {
        self.known.lock()
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let Some(ip) = self.ip else { return };
        let mut known = self.quotas.known();
        // Another account may have taken its place already.
        if known.get(&ip).is_some_and(|address| address.strong_count() == 0) {
            known.remove(&ip);
        }
    }
}

impl Address {
    /// Acquires `n` units, or refuses. Dropping the permit releases them.
    pub(super) fn acquire(
        self: &Arc<Self>,
        kind: Resource,
        n: usize,
    ) -> Result<QuotaPermit, Failure> {
        self.add(kind, n)?;
        Ok(QuotaPermit { address: Arc::clone(self), kind, n })
    }

    /// Acquires `n` units of an optional resource. A lack is no refusal and is not logged.
    pub(super) fn try_acquire(self: &Arc<Self>, kind: Resource, n: usize) -> Option<QuotaPermit> {
        self.try_add(kind, n).ok()?;
        Some(QuotaPermit { address: Arc::clone(self), kind, n })
    }

    fn add(&self, kind: Resource, n: usize) -> Result<(), Failure> {
        self.try_add(kind, n).map_err(|exceeded| match exceeded {
            Exceeded::Total => full(kind),
            Exceeded::Address(limit) => {
                if !self.refusal_logged.swap(true, Relaxed) {
                    let address = self.ip.map(|ip| ip.to_string());
                    let what = kind.name();
                    tracing::warn!(address, limit, "an address reached its limit of {what}");
                }
                too_many(kind, limit)
            }
        })
    }

    fn try_add(&self, kind: Resource, n: usize) -> Result<(), Exceeded> {
        let at = kind as usize;
        let limits = &self.quotas.limits;
        let each = if self.ip.is_some() { limits.each[at] } else { usize::MAX };
        if !try_add(&self.held[at], n, each) {
            return Err(Exceeded::Address(each));
        }
        if !try_add(&self.quotas.total[at], n, limits.total[at]) {
            self.held[at].fetch_sub(n, Relaxed);
            return Err(Exceeded::Total);
        }
        Ok(())
    }

    fn release(&self, kind: Resource, n: usize) {
        self.held[kind as usize].fetch_sub(n, Relaxed);
        self.quotas.total[kind as usize].fetch_sub(n, Relaxed);
    }
}

/// The exhausted quota: that of the address with its limit, or the total.
enum Exceeded {
    Address(usize),
    Total,
}

/// Adds `n`, unless the sum exceeds the limit.
fn try_add(counter: &AtomicUsize, n: usize, limit: usize) -> bool {
    let before = counter.fetch_add(n, Relaxed);
    let fits = before.checked_add(n).is_some_and(|now| now <= limit);
    if !fits {
        counter.fetch_sub(n, Relaxed);
    }
    fits
}

/// The failure for an address above its limit.
pub(super) fn too_many(kind: Resource, limit: usize) -> Failure {
    let what = kind.name();
    Failure::new(&reason::RATE_LIMITED)
        .because(format!("too many {what} of one client at once: it may have {limit}"))
        .with_retry_after(RETRY_AFTER)
}

fn full(kind: Resource) -> Failure {
    let what = kind.name();
    Failure::new(&reason::OVERLOADED)
        .because(format!("this server has no room for more {what}"))
        .with_retry_after(RETRY_AFTER)
}

/// Units of a resource. Dropping the permit releases them.
#[derive(Debug)]
pub struct QuotaPermit {
    address: Arc<Address>,
    kind: Resource,
    n: usize,
}

impl QuotaPermit {
    pub(super) fn amount(&self) -> usize {
        self.n
    }

    pub(super) fn grow(&mut self, n: usize) -> Result<(), Failure> {
        self.address.add(self.kind, n)?;
        self.n += n;
        Ok(())
    }

    pub(super) fn shrink(&mut self, n: usize) {
        let n = n.min(self.n);
        self.address.release(self.kind, n);
        self.n -= n;
    }

    pub(super) fn kind(&self) -> Resource {
        self.kind
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.address.release(self.kind, self.n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    #[test]
    fn quota_of_one_address_leaves_room_for_others() {
        let limits = Quotas::default().with(Resource::HealthWatch, 2, 3);
        let quotas = QuotaTable::new(limits);
        let one = quotas.address(ip(1), false);
        let other = quotas.address(ip(2), false);
        let first = one.acquire(Resource::HealthWatch, 1).unwrap();
        let _second = quotas.address(ip(1), false).acquire(Resource::HealthWatch, 1).unwrap();
        let refused = one.acquire(Resource::HealthWatch, 1).unwrap_err();
        assert_eq!(refused.row(), &reason::RATE_LIMITED);
        assert!(refused.retry_after.is_some());
        let _third = other.acquire(Resource::HealthWatch, 1).unwrap();
        let full = other.acquire(Resource::HealthWatch, 1).unwrap_err();
        assert_eq!(full.row(), &reason::OVERLOADED);
        drop(first);
        assert!(
            one.acquire(Resource::HealthWatch, 1).is_ok(),
            "a released unit can be acquired again"
        );
    }

    #[test]
    fn trusted_proxies_are_limited_by_the_total_only() {
        let proxies = vec!["127.0.0.9".parse().unwrap()];
        let limits = Quotas::default().with(Resource::Connection, 1, 3).exempt(proxies);
        let quotas = QuotaTable::new(limits);
        let proxy = quotas.address(ip(9), false);
        let held: Vec<_> =
            (0..3).map(|_| proxy.acquire(Resource::Connection, 1).unwrap()).collect();
        let full = proxy.acquire(Resource::Connection, 1).unwrap_err();
        assert_eq!(full.row(), &reason::OVERLOADED);
        drop(held);
        let inside = quotas.address(ip(1), true);
        let _two = [1, 1].map(|n| inside.acquire(Resource::Connection, n).unwrap());
    }

    #[test]
    fn account_of_an_address_is_dropped_with_its_last_permit() {
        let quotas = QuotaTable::new(Quotas::default());
        let address = quotas.address(ip(1), false);
        let call = address.acquire(Resource::Call, 1).unwrap();
        drop(address);
        assert_eq!(quotas.known().len(), 1, "its call has not ended");
        drop(call);
        assert_eq!(quotas.known().len(), 0);
    }
}
