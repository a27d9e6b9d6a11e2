//! The way to the coordinators: a link to each, and every call on one of them. It owns the choice,
//! and what is made again when a coordinator breaks or leaves: reads, sends that have a key, sends
//! whose task goes on elsewhere, streams, and whatever one that left says it has not done. It knows
//! nothing of HTTP.

mod frame_stream;
mod resume_backoff;
mod resume_state;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use faultline_chassis::{Members, limits, members};
use faultline_proto::{
    Failure,
    v1::{Caller, Moved, Wait, call, reply},
};
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

/// How long a call waits for a connection before it fails: long enough for a coordinator that
/// restarts, short enough for a caller that would rather go elsewhere.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// Between two looks whether a coordinator that nobody names any more has calls left.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    addresses: Members,
    members: Mutex<Vec<Member>>,
    all_links: Arc<SharedLinkState>,
    /// One permit for each stream that may be open.
    streams: Arc<Semaphore>,
    /// How long another coordinator is looked for when one is lost.
    resume: Duration,
    /// The gateway finishes what it has: whoever loses a coordinator now finds another gateway.
    draining: CancellationToken,
    is_leaving: AtomicBool,
    resumed: AtomicU64,
    /// Streams for which no other coordinator was found in time.
    given_up: AtomicU64,
}

/// A coordinator and the way to it.
struct Member {
    address: members::Member,
    link: Link,
    /// Keeps the connection.
    _running: Option<AbortOnDropHandle<()>>,
}

/// Whoever keeps the links. Without it there are none, although others may still ask for them.
struct CloseOnDrop<'a>(&'a Pool);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let members: Vec<_> = self.0.members().drain(..).collect();
        members.into_iter().for_each(|member| member.link.close());
    }
}

/// Pool by how they stand.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    pub(crate) up: usize,
    pub(crate) down: usize,
    pub(crate) ejected: usize,
    pub(crate) leaving: usize,
}

impl Pool {
    /// Not connected; [`Pool::run`] does that.
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

    /// How many links are up, and whenever that changes.
    pub(crate) fn up_links(&self) -> watch::Receiver<usize> {
        self.0.all_links.up_links.subscribe()
    }

    /// Finds it again for as long as it is used.
    pub(crate) fn downgrade(&self) -> impl Fn() -> Option<Self> + use<> {
        let inner = Arc::downgrade(&self.0);
        move || inner.upgrade().map(Self)
    }

    /// Calls under way, streams among them.
    pub(crate) fn in_flight(&self) -> usize {
        self.members().iter().map(|member| member.link.in_flight()).sum()
    }

    pub(crate) fn open_streams(&self) -> usize {
        limits::STREAMS_MAX - self.0.streams.available_permits()
    }

    pub(crate) fn stalled(&self) -> u64 {
        self.0.all_links.stalled.load(Ordering::Relaxed)
    }

    /// Streams that went on elsewhere, and those that did not although they should have.
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

    /// A call with one answer. Dropped before its end, it tells the coordinator so.
    pub(crate) async fn call(&self, caller: Caller, body: call::Body) -> Result<Answer, Failure> {
        let again = RetrySafety::of(&caller, &body);
        let left_undone = is_undone_when_moved(&body);
        let is_repeated = again.gateway_may_retry();
        let is_spared = is_repeated || left_undone && self.has_alternative();
        let mut spare = is_spared.then(|| (caller.clone(), body.clone()));
        let moving = TaskWait::of(&caller, &body);
        let mut next = (caller, body);
        let mut until = Instant::now() + CONNECT_WAIT;
        let mut was_cut = None;
        let mut refused_by = None;
        loop {
            let unreached = |failure| was_cut.map_or(failure, |what| again.failure(what));
            let link = self.wait_for_link(until, refused_by.as_ref()).await.map_err(unreached)?;
            match link.call(next.0, next.1).await {
                // Nothing was done: it came too late for that one.
                Ok(Answer { body: reply::Body::Moved(moved), .. }) if moved.task_id.is_empty() => {
                    next = spare.take().ok_or_else(|| {
                        if left_undone {
                            unreached(link::unreachable())
                        } else {
                            again.failure(COORDINATOR_LEFT)
                        }
                    })?;
                    refused_by = Some(link);
                }
                Ok(Answer { body: reply::Body::Moved(moved), extensions }) => {
                    let Some(moving) = moving else { return Err(again.failure(CONNECTION_LOST)) };
                    return self.wait(moving, moved, extensions, again).await;
                }
                Ok(answer) => return Ok(answer),
                Err(CallError::Failed(failure))
                    if is_transient(&failure) && self.has_other_up(&link) =>
                {
                    next = spare.take().filter(|_| is_repeated).ok_or(failure)?;
                    refused_by = Some(link);
                }
                Err(CallError::Failed(failure)) => return Err(failure),
                Err(CallError::NotSent(_)) if until <= Instant::now() => {
                    return Err(unreached(link::unreachable()));
                }
                Err(CallError::NotSent(unsent)) => next = *unsent,
                Err(CallError::Interrupted(what)) => {
                    let spared = spare.take().filter(|_| is_repeated && !self.is_draining());
                    next = spared.ok_or_else(|| again.failure(what))?;
                    until = Instant::now() + CONNECT_WAIT;
                    was_cut = Some(what);
                }
                // Only streams end so; a call with one answer has it as its answer.
                Err(CallError::Moved(_)) => return Err(again.failure(COORDINATOR_LEFT)),
            }
        }
    }

    /// Waits for the end of a task whose coordinator left, where it goes on.
    async fn wait(
        &self,
        moving: TaskWait,
        moved: Moved,
        mut extensions: Vec<String>,
        again: RetrySafety,
    ) -> Result<Answer, Failure> {
        let TaskWait { mut caller, history_length, since } = moving;
        let mut backoff = ResumeBackoff::new(self.0.resume);
        let lost = |what: &str| again.failure(what).with_task(&moved.task_id, "");
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

    /// A call with many answers.
    pub(crate) async fn stream(
        &self,
        caller: Caller,
        body: call::Body,
    ) -> Result<FrameStream, Failure> {
        FrameStream::open(self, caller, body).await
    }

    /// One that takes a call, which is waited for until then. Not `but`, if there is another.
    async fn wait_for_link(&self, until: Instant, but: Option<&Link>) -> Result<Link, Failure> {
        loop {
            // Made before looking, so that no change falls between the look and the wait.
            let changed = self.0.all_links.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.0.is_leaving.load(Ordering::Relaxed) {
                return Err(link::leaving());
            }
            if let Some(link) = self.choose(but) {
                return Ok(link);
            }
            if timeout_at(until, changed).await.is_err() {
                // One that leaves is better than none: what it cannot finish, it hands over.
                return self.leaving_link().ok_or_else(link::unreachable);
            }
        }
    }

    /// Whether there is anywhere to go for what one of them has not done. Else nothing has to be
    /// kept for that.
    fn has_alternative(&self) -> bool {
        self.members().len() > 1
    }

    fn has_other_up(&self, link: &Link) -> bool {
        let now = Instant::now();
        let is_other = |other: &Link| !other.is_same(link) && other.status(now) == LinkStatus::Up;
        self.members().iter().any(|member| is_other(&member.link))
    }

    /// Among those that are up, the less busy of two. Not `but`, if there is another.
    fn choose(&self, but: Option<&Link>) -> Option<Link> {
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
        // Half of them at most: when more fail, it is not their own fault.
        let listed = members.iter().filter(|member| member.link.is_listed()).count();
        ejected.sort_unstable_by_key(|(until, _)| *until);
        let pardoned = ejected.len().saturating_sub(listed / 2);
        fit.extend(ejected.iter().take(pardoned).map(|(_, link)| *link));
        if fit.is_empty() {
            fit.extend(ejected.first().map(|(_, link)| *link));
        }
        if let Some(but) = but
            && fit.iter().any(|link| !link.is_same(but))
        {
            fit.retain(|link| !link.is_same(but));
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

    fn leaving_link(&self) -> Option<Link> {
        let now = Instant::now();
        let members = self.members();
        let left = members.iter().find(|member| member.link.status(now) == LinkStatus::Leaving);
        left.map(|member| member.link.clone())
    }

    /// Waits, unless the gateway drains.
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

    /// Keeps a link to every coordinator there is, for as long as it is polled.
    pub(crate) async fn run(self) {
        let _following = AbortOnDropHandle::new(tokio::spawn(self.0.addresses.clone().run()));
        let _close = CloseOnDrop(&self);
        let mut listed = self.0.addresses.watch();
        loop {
            let now = listed.borrow_and_update().clone();
            let is_parting = self.update_members(&now);
            tokio::select! {
                changed = listed.changed() => if changed.is_err() { return },
                () = sleep(REMOVAL_POLL), if is_parting => {}
            }
        }
    }

    /// Gives every member a link, and takes it from those that are none and have no calls left.
    /// Says whether there are others yet.
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
        let parted =
            members.extract_if(.., |member| !member.link.is_listed() && !member.link.has_waiters());
        let parted: Vec<_> = parted.collect();
        let is_parting = members.iter().any(|member| !member.link.is_listed());
        drop(members);
        parted.into_iter().for_each(|member| member.link.close());
        is_parting
    }

    /// Ends streams whose readers are stuck, for as long as it is polled.
    pub(crate) async fn end_stalled_streams(self) {
        loop {
            sleep(self.0.all_links.reader_stall / 12).await;
            let links: Vec<_> = self.members().iter().map(|member| member.link.clone()).collect();
            links.iter().for_each(Link::end_stalled_streams);
        }
    }

    /// From now on what loses its coordinator is not taken to another one: the client had better
    /// go to another gateway, which does not leave.
    pub(crate) fn drain(&self) {
        self.0.draining.cancel();
    }

    /// Ends every call with a failure that says the gateway leaves, and takes no more.
    pub(crate) fn shut_down(&self) {
        self.0.is_leaving.store(true, Ordering::Relaxed);
        self.drain();
        let links: Vec<_> = self.members().iter().map(|member| member.link.clone()).collect();
        links.iter().for_each(Link::shut_down);
        self.0.all_links.changed.notify_waiters();
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        // No code that can panic runs under the lock, so there is nothing half-done to fear.
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What it takes to wait elsewhere for the task of a send.
struct TaskWait {
    caller: Caller,
    history_length: Option<i32>,
    since: Instant,
}

impl TaskWait {
    /// Of a send that waits for its task; others are answered where they were made.
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
