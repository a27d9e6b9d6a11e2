//! The pool of links to the coordinators. It balances calls (power of two choices by calls in
//! flight, with outlier ejection of at most half the members) and repeats those that are safe to
//! repeat when a coordinator breaks or leaves. HTTP is not known here.

mod frame_stream;
mod resume_backoff;
mod resume_state;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use faultline_chassis::{Members, limits, members};
use faultline_proto::{
    Failure,
    v1::{Caller, Moved, Wait, call, reply},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) use frame_stream::FrameStream;
use resume_backoff::ResumeBackoff;

use crate::coordinators::link::{
    self, Answer, CONNECTION_LOST, COORDINATOR_LEFT, CallError, CallShares, GATEWAY_LEAVES, Link,
    LinkStatus, RetrySafety, SharedLinkState, is_transient, is_undone_when_moved,
};

/// How long a call waits for a link before it fails: long enough for a coordinator that restarts,
/// short enough for a caller that could use another gateway.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// The interval at which the pool checks whether a removed coordinator has calls left.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

/// The pool. Clones share it.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

/// The state of the pool. `members` changes in `Pool::update_members` only, and its lock is never
/// held across an await; everything else is atomic or immutable. It lives as long as the service.
struct Inner {
    /// The addresses of the coordinators, resolved again and again.
    addresses: Members,
    members: Mutex<Vec<Member>>,
    all_links: Arc<SharedLinkState>,
    /// One permit for each stream that may be open.
    streams: Arc<Semaphore>,
    /// How long a call or stream may look for another coordinator.
    resume: Duration,
    /// Cancelled when the gateway drains: from then on nothing is resumed at another coordinator.
    draining: CancellationToken,
    /// Set when the gateway takes no more calls.
    is_leaving: AtomicBool,
    /// Streams that resumed at another coordinator.
    resumed: AtomicU64,
    /// Streams for which no other coordinator was found in time.
    given_up: AtomicU64,
}

/// One coordinator and the link to it.
struct Member {
    address: members::Member,
    link: Link,
    /// The task that keeps the connection.
    _running: Option<AbortOnDropHandle<()>>,
}

/// Closes all links when [`Pool::run`] ends or is dropped; other clones of the pool may live
/// longer.
struct CloseOnDrop<'a>(&'a Pool);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let members: Vec<_> = self.0.members().drain(..).collect();
        members.into_iter().for_each(|member| member.link.close());
    }
}

/// The number of links by status.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    pub(crate) up: usize,
    pub(crate) down: usize,
    pub(crate) ejected: usize,
    pub(crate) leaving: usize,
}

impl Pool {
    /// A pool without connections; [`Pool::run`] makes them.
    pub(crate) fn new(
        addresses: Members,
        reader_stall: Duration,
        resume: Duration,
        shares: CallShares,
    ) -> Self {
        Self(Arc::new(Inner {
            addresses,
            members: Mutex::default(),
            all_links: Arc::new(SharedLinkState::new(reader_stall, shares)),
            streams: Arc::new(Semaphore::new(limits::STREAMS_MAX)),
            resume,
            draining: CancellationToken::new(),
            is_leaving: AtomicBool::new(false),
            resumed: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }))
    }

    pub(crate) fn is_up(&self) -> bool {
        *self.0.all_links.up_links.borrow() > 0
    }

    /// Watches the number of links that are up.
    pub(crate) fn up_links(&self) -> watch::Receiver<usize> {
        self.0.all_links.up_links.subscribe()
    }

    /// A weak reference, for gauges.
    pub(crate) fn downgrade(&self) -> impl Fn() -> Option<Self> + use<> {
        let inner = Arc::downgrade(&self.0);
        move || inner.upgrade().map(Self)
    }

    /// Calls in flight, streams included.
    pub(crate) fn in_flight(&self) -> usize {
        self.members().iter().map(|member| member.link.in_flight()).sum()
    }

    pub(crate) fn open_streams(&self) -> usize {
        limits::STREAMS_MAX - self.0.streams.available_permits()
    }

    pub(crate) fn stalled(&self) -> u64 {
        self.0.all_links.stalled.load(Ordering::Relaxed)
    }

    /// Streams that resumed at another coordinator, and streams that found none in time.
    pub(crate) fn resumes(&self) -> (u64, u64) {
        (self.0.resumed.load(Ordering::Relaxed), self.0.given_up.load(Ordering::Relaxed))
    }

    pub(crate) fn link_counts(&self) -> LinkCounts {
        let now = Instant::now();
        let mut counts = LinkCounts::default();
        for member in self.members().iter() {
            *match member.link.status(now) {
                LinkStatus::Up => &mut counts.up,
                LinkStatus::Down => &mut counts.down,
                LinkStatus::Ejected(_) => &mut counts.ejected,
                LinkStatus::Leaving => &mut counts.leaving,
            } += 1;
        }
        counts
    }

    /// A call with one answer, with the retries that are safe. Dropping the future cancels the call
    /// at the coordinator.
    pub(crate) async fn call(&self, caller: Caller, body: call::Body) -> Result<Answer, Failure> {
        let retry_safety = RetrySafety::of(&caller, &body);
        let undone_when_moved = is_undone_when_moved(&body);
        let may_retry = retry_safety.gateway_may_retry();
        let needs_copy = may_retry || undone_when_moved && self.has_alternative();
        let mut copy = needs_copy.then(|| (caller.clone(), body.clone()));
        let task_wait = TaskWait::of(&caller, &body);
        let mut next = (caller, body);
        let mut until = Instant::now() + CONNECT_WAIT;
        let mut interrupted_by = None;
        let mut refused_by = None;
        loop {
            let unreached =
                |failure| interrupted_by.map_or(failure, |what| retry_safety.failure(what));
            let link = self.wait_for_link(until, refused_by.as_ref()).await.map_err(unreached)?;
            match link.call(next.0, next.1).await {
                // The coordinator leaves and did nothing: another one gets the call.
                Ok(Answer { body: reply::Body::Moved(moved), .. }) if moved.task_id.is_empty() => {
                    next = copy.take().ok_or_else(|| {
                        if undone_when_moved {
                            unreached(link::unreachable())
                        } else {
                            retry_safety.failure(COORDINATOR_LEFT)
                        }
                    })?;
                    refused_by = Some(link);
                }
                Ok(Answer { body: reply::Body::Moved(moved), extensions }) => {
                    let Some(task_wait) = task_wait else {
                        return Err(retry_safety.failure(CONNECTION_LOST));
                    };
                    return self.wait_for_task(task_wait, moved, extensions, retry_safety).await;
                }
                Ok(answer) => return Ok(answer),
                Err(CallError::Failed(failure))
                    if is_transient(&failure) && self.has_other_up(&link) =>
                {
                    next = copy.take().filter(|_| may_retry).ok_or(failure)?;
                    refused_by = Some(link);
                }
                Err(CallError::Failed(failure)) => return Err(failure),
                Err(CallError::NotSent(_)) if until <= Instant::now() => {
                    return Err(unreached(link::unreachable()));
                }
                Err(CallError::NotSent(unsent)) => next = *unsent,
                Err(CallError::Interrupted(what)) => {
                    let copy = copy.take().filter(|_| may_retry && !self.is_draining());
                    next = copy.ok_or_else(|| retry_safety.failure(what))?;
                    until = Instant::now() + CONNECT_WAIT;
                    interrupted_by = Some(what);
                }
                // Only streams end this way; a call with one answer gets `Moved` as its answer.
                Err(CallError::Moved(_)) => return Err(retry_safety.failure(COORDINATOR_LEFT)),
            }
        }
    }

    /// Waits at other coordinators for the end of a task whose coordinator left.
    async fn wait_for_task(
        &self,
        task_wait: TaskWait,
        moved: Moved,
        mut extensions: Vec<String>,
        retry_safety: RetrySafety,
    ) -> Result<Answer, Failure> {
        let TaskWait { mut caller, history_length, since } = task_wait;
        let mut backoff = ResumeBackoff::new(self.0.resume);
        let lost = |what: &str| retry_safety.failure(what).with_task(&moved.task_id, "");
        let timeout = Duration::from_millis(caller.timeout_ms.into());
        loop {
            let Some(pause) = backoff.next_pause() else { return Err(lost(CONNECTION_LOST)) };
            if self.pause(pause).await.is_err() {
                return Err(lost(GATEWAY_LEAVES));
            }
            let Ok(link) = self.wait_for_link(backoff.deadline(), None).await else {
                return Err(lost(CONNECTION_LOST));
            };
            if !timeout.is_zero() {
                let left = timeout.saturating_sub(since.elapsed()).max(Duration::from_millis(1));
                caller.timeout_ms = left.as_millis() as u32;
            }
            let task_id = moved.task_id.clone();
            let body = call::Body::Wait(Wait { task_id, history_length });
            backoff.on_resumed();
            match link.call(caller.clone(), body).await {
                Ok(Answer { body: reply::Body::Moved(_), .. }) => {}
                Ok(answer) => {
                    if extensions.is_empty() {
                        extensions = answer.extensions;
                    }
                    return Ok(Answer { body: answer.body, extensions });
                }
                Err(CallError::Failed(failure)) if !is_transient(&failure) => return Err(failure),
                Err(_) if self.is_draining() => return Err(lost(GATEWAY_LEAVES)),
                Err(_) => {}
            }
        }
    }

    /// A call with a stream of answers, which resumes at other coordinators.
    pub(crate) async fn stream(
        &self,
        caller: Caller,
        body: call::Body,
    ) -> Result<FrameStream, Failure> {
        FrameStream::open(self, caller, body).await
    }

    /// A link that takes calls, awaited until a deadline. `except` only if there is no other.
    async fn wait_for_link(&self, until: Instant, except: Option<&Link>) -> Result<Link, Failure> {
        loop {
            // Registered before the check, so that no change between check and wait is lost.
            let changed = self.0.all_links.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.0.is_leaving.load(Ordering::Relaxed) {
                return Err(link::leaving());
            }
            if let Some(link) = self.choose(except) {
                return Ok(link);
            }
            if timeout_at(until, changed).await.is_err() {
                // A coordinator that leaves is better than none: it hands unfinished calls over.
                return self.leaving_link().ok_or_else(link::unreachable);
            }
        }
    }

    /// Whether another coordinator could repeat a call. Otherwise the call needs no copy for that.
    fn has_alternative(&self) -> bool {
        self.members().len() > 1
    }

    fn has_other_up(&self, link: &Link) -> bool {
        let now = Instant::now();
        let is_other = |other: &Link| !other.is_same(link) && other.status(now) == LinkStatus::Up;
        self.members().iter().any(|member| is_other(&member.link))
    }

    /// Power of two choices: the less busy of two random links that are up. `except` only if there
    /// is no other.
    fn choose(&self, except: Option<&Link>) -> Option<Link> {
        let now = Instant::now();
        let members = self.members();
        let mut fit = Vec::new();
        let mut ejected = Vec::new();
        for member in members.iter() {
            match member.link.status(now) {
                LinkStatus::Up => fit.push(&member.link),
                LinkStatus::Ejected(until) => ejected.push((until, &member.link)),
                LinkStatus::Leaving | LinkStatus::Down => {}
            }
        }
        // At most half of the members are ejected: when more fail, the cause is not theirs.
        let listed = members.iter().filter(|member| member.link.is_listed()).count();
        ejected.sort_unstable_by_key(|(until, _)| *until);
        let readmitted = ejected.len().saturating_sub(listed / 2);
        fit.extend(ejected.iter().take(readmitted).map(|(_, link)| *link));
        if fit.is_empty() {
            fit.extend(ejected.first().map(|(_, link)| *link));
        }
        if let Some(except) = except
            && fit.iter().any(|link| !link.is_same(except))
        {
            fit.retain(|link| !link.is_same(except));
        }
        match fit.len() {
            0 => None,
            1 => Some(fit[0].clone()),
            many => {
                let one = rand::random_range(0..many);
                let other = (one + rand::random_range(1..many)) % many;
                let less = if fit[one].in_flight() <= fit[other].in_flight() { one } else { other };
                Some(fit[less].clone())
            }
        }
    }

    /// A link to a coordinator that leaves: it still takes calls.
    fn leaving_link(&self) -> Option<Link> {
        let now = Instant::now();
        let members = self.members();
        let left = members.iter().find(|member| member.link.status(now) == LinkStatus::Leaving);
        left.map(|member| member.link.clone())
    }

    /// Sleeps; fails as soon as the gateway drains.
    async fn pause(&self, pause: Duration) -> Result<(), ()> {
        self.0
            .draining
            .run_until_cancelled(sleep(pause))
            .await
            .filter(|()| !self.is_draining())
            .ok_or(())
    }

    fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Keeps a link to every coordinator while it is polled.
    pub(crate) async fn run(self) {
        let _resolving = AbortOnDropHandle::new(tokio::spawn(self.0.addresses.clone().run()));
        let _close = CloseOnDrop(&self);
        let mut listed = self.0.addresses.watch();
        loop {
            let now = listed.borrow_and_update().clone();
            let has_removals = self.update_members(&now);
            tokio::select! {
                changed = listed.changed() => if changed.is_err() { return },
                () = sleep(REMOVAL_POLL), if has_removals => {}
            }
        }
    }

    /// Adds members for new addresses, and removes members whose address is gone once they have no
    /// calls left. `true`: some members still wait for that.
    fn update_members(&self, addresses: &[members::Member]) -> bool {
        let mut members = self.members();
        for member in members.iter() {
            let is_listed = addresses.contains(&member.address);
            if member.link.is_listed() != is_listed {
                member.link.set_listed(is_listed);
            }
        }
        for address in addresses {
            if !members.iter().any(|member| member.address == *address) {
                let link = Link::new(Arc::clone(&self.0.all_links));
                let channel = self.0.addresses.channel(address);
                let known = self.0.addresses.clone();
                let running =
                    link.clone().run(channel, address.to_string(), move || known.refresh());
                let running = Some(AbortOnDropHandle::new(tokio::spawn(running)));
                members.push(Member { address: address.clone(), link, _running: running });
            }
        }
        let removed =
            members.extract_if(.., |member| !member.link.is_listed() && !member.link.has_waiters());
        let removed: Vec<_> = removed.collect();
        let has_removals = members.iter().any(|member| !member.link.is_listed());
        drop(members);
        removed.into_iter().for_each(|member| member.link.close());
        has_removals
    }

    /// Ends streams whose clients do not read (backpressure without an end), while it is polled.
    pub(crate) async fn end_stalled_streams(self) {
        loop {
            sleep(self.0.all_links.reader_stall / 12).await;
            let links: Vec<_> = self.members().iter().map(|member| member.link.clone()).collect();
            links.iter().for_each(Link::end_stalled_streams);
        }
    }

    /// From now on nothing is resumed at another coordinator: clients do better at another gateway.
    pub(crate) fn drain(&self) {
        self.0.draining.cancel();
    }

    /// Ends every call with the failure that the gateway leaves, and takes no more calls.
    pub(crate) fn shut_down(&self) {
        self.0.is_leaving.store(true, Ordering::Relaxed);
        self.drain();
        let links: Vec<_> = self.members().iter().map(|member| member.link.clone()).collect();
        links.iter().for_each(Link::shut_down);
        self.0.all_links.changed.notify_waiters();
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        // No code that can panic runs under the lock, so a poisoned lock has consistent data.
        self.0.members.lock()
    }
}

/// The data to wait at another coordinator for the task of a blocking send.
struct TaskWait {
    caller: Caller,
    history_length: Option<i32>,
    since: Instant,
}

impl TaskWait {
    /// `None` for calls that do not wait for a task.
    fn of(caller: &Caller, body: &call::Body) -> Option<Self> {
        let call::Body::Send(request) = body else { return None };
        let configuration = request.configuration.as_ref();
        if configuration.is_some_and(|c| c.return_immediately) {
            return None;
        }
        let history_length = configuration.and_then(|c| c.history_length);
        Some(Self { caller: caller.clone(), history_length, since: Instant::now() })
    }
}

#[cfg(test)]
mod tests;
