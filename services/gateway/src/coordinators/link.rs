//! The link to one coordinator: one long-lived stream that multiplexes many calls, with numbered
//! calls, credit-based flow control for streams, and reconnection with exponential backoff and
//! jitter. HTTP and other coordinators are not known here.

mod ejection;
mod fair_share;
mod frames;
mod interruption;
mod outgoing;

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use faultline_chassis::{backoff::Backoff, client::Channel, limits};
use faultline_proto::{
    Failure,
    v1::{Call, Caller, Drop as Dropped, Origin, Reply, call, link_client::LinkClient, reply},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, timeout},
};

use ejection::OutlierState;
pub(crate) use fair_share::CallShares;
use fair_share::HeldShare;
use frames::{CallGuard, StreamBuffer};
pub(crate) use frames::{Frames, Peer};
pub(crate) use interruption::{
    CONNECTION_LOST, COORDINATOR_LEFT, CallError, GATEWAY_LEAVES, RetrySafety, is_transient,
    is_undone_when_moved, leaving, overloaded, unreachable,
};
use interruption::{broken, transport};
use outgoing::Outgoing;

/// Backoff between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Buffered frames of one stream: its credit, and the failure that ends it.
const FRAMES_AHEAD_MAX: usize = limits::STREAM_CREDIT as usize + 1;

/// State that all links of a gateway share. Links update it; the pool waits for changes. Its parts
/// synchronize themselves.
pub(crate) struct SharedLinkState {
    /// The number of links with a connection.
    pub(crate) up_links: watch::Sender<usize>,
    /// Notified when the status of a link changes.
    pub(crate) changed: Notify,
    /// Streams that were ended because their client did not read.
    pub(crate) stalled: AtomicU64,
    /// How long a client may read nothing while a frame waits for it.
    pub(crate) reader_stall: Duration,
    pub(crate) shares: CallShares,
}

impl SharedLinkState {
    pub(crate) fn new(reader_stall: Duration, shares: CallShares) -> Self {
        let up_links = watch::Sender::new(0);
        let stalled = AtomicU64::new(0);
        Self { up_links, changed: Notify::new(), stalled, reader_stall, shares }
    }
}

/// One link. Clones share its connection.
#[derive(Clone)]
pub(crate) struct Link {
    inner: Arc<LinkInner>,
}

/// The shared part of the clones of a link, and of its session.
struct LinkInner {
    state: Mutex<State>,
    /// Whether there is a connection. Written by the session only; cleared before `state` is
    /// locked.
    is_up: AtomicBool,
    all_links: Arc<SharedLinkState>,
}

/// The state of a link, under the lock of [`LinkInner`], which is never held across an await.
/// Callers register and cancel calls; the session delivers replies and fails calls. It lives as
/// long as the member of the pool.
#[derive(Default)]
struct State {
    /// The gateway leaves: no new calls.
    is_leaving: bool,
    /// The coordinator has announced on this connection that it leaves.
    coordinator_leaves: bool,
    /// The address of the coordinator is gone.
    is_unlisted: bool,
    outlier: OutlierState,
    /// The number of the connection, so that the sender of an old one takes no calls of the next.
    epoch: u64,
    /// Never reused, not even across connections: a late drop or reply cannot hit another call.
    last_id: u64,
    /// Every call that the coordinator has not answered.
    pending: HashMap<u64, PendingCall>,
    /// Messages that wait for the transport.
    outbox: VecDeque<Call>,
    /// The waker of the sender, set when it found the outbox empty.
    writer: Option<Waker>,
}

/// The status of a link, for the choice of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkStatus {
    Up,
    /// Outlier ejection after consecutive failures, until this time.
    Ejected(Instant),
    /// Connected, for calls in flight only.
    Leaving,
    Down,
}

/// A reply, and the extensions that are active for the call.
pub(crate) struct Answer {
    pub(crate) body: reply::Body,
    pub(crate) extensions: Vec<String>,
}

/// A call in flight, with its place in the share of its caller.
struct PendingCall {
    waiter: Waiter,
    _share: HeldShare,
}

impl PendingCall {
    fn is_stream(&self) -> bool {
        matches!(self.waiter, Waiter::Stream(_))
    }
}

/// The receiver of the replies to a call.
enum Waiter {
    Unary(oneshot::Sender<Result<Answer, CallError>>),
    Stream(StreamBuffer),
    /// The caller left at this time; the acknowledgement of the coordinator is pending.
    Abandoned(Instant),
}

impl Link {
    /// A link without a connection; [`Link::run`] makes it.
    pub(crate) fn new(all_links: Arc<SharedLinkState>) -> Self {
        let inner = LinkInner { state: Mutex::default(), is_up: AtomicBool::new(false), all_links };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Calls that the coordinator has not answered, streams included.
    pub(crate) fn in_flight(&self) -> usize {
        self.inner.lock().pending.len()
    }

    /// Whether a caller still waits for one of the calls.
    pub(crate) fn has_waiters(&self) -> bool {
        let state = self.inner.lock();
        state.pending.values().any(|open| !matches!(open.waiter, Waiter::Abandoned(_)))
    }

    pub(crate) fn status(&self, now: Instant) -> LinkStatus {
        let state = self.inner.lock();
        match state.outlier.ejected_until(now) {
            _ if !self.inner.is_up() => LinkStatus::Down,
            _ if state.coordinator_leaves || state.is_unlisted => LinkStatus::Leaving,
            Some(until) => LinkStatus::Ejected(until),
            None => LinkStatus::Up,
        }
    }

    /// Sets whether the address of the coordinator is still among the addresses of the pool.
    pub(crate) fn set_listed(&self, is_listed: bool) {
        self.inner.lock().is_unlisted = !is_listed;
        self.inner.all_links.changed.notify_waiters();
    }

    pub(crate) fn is_listed(&self) -> bool {
        !self.inner.lock().is_unlisted
    }

    /// A call with one answer. Dropping the future cancels the call at the coordinator.
    pub(crate) async fn call(&self, caller: Caller, body: call::Body) -> Result<Answer, CallError> {
        let (sender, receiver) = oneshot::channel();
        let mut guard = self.register(caller, body, Waiter::Unary(sender))?;
        let answer = receiver.await;
        guard.is_armed = false;
        answer.unwrap_or(Err(CallError::Interrupted(CONNECTION_LOST)))
    }

    /// A call with a stream of answers.
    pub(crate) fn stream(
        &self,
        caller: Caller,
        body: call::Body,
        peer: &Peer,
    ) -> Result<Frames, CallError> {
        let (sender, frames) = mpsc::channel(FRAMES_AHEAD_MAX);
        let reader = StreamBuffer::new(sender, peer.clone());
        let guard = self.register(caller, body, Waiter::Stream(reader))?;
        Ok(Frames::new(frames, guard))
    }

    fn register(
        &self,
        caller: Caller,
        body: call::Body,
        waiter: Waiter,
    ) -> Result<CallGuard, CallError> {
        let share = self.inner.all_links.shares.acquire(&caller)?;
        let mut state = self.inner.lock();
        // Checked under the lock: `fail_all` clears `is_up` before it locks, so it misses no call.
        if state.is_leaving || !self.inner.is_up() {
            return Err(CallError::NotSent(Box::new((caller, body))));
        }
        if state.pending.len() >= limits::LINK_CALLS_MAX {
            return Err(overloaded("too many calls are in flight at this gateway").into());
        }
        if state.outbox.len() >= limits::OUTBOX_MAX {
            return Err(overloaded("the coordinator does not keep up").into());
        }
        state.last_id += 1;
        let id = state.last_id;
        state.pending.insert(id, PendingCall { waiter, _share: share });
        let writer = state.enqueue(Call { id, caller: Some(caller), body: Some(body) });
        drop(state);
        wake(writer);
        Ok(CallGuard { inner: Arc::clone(&self.inner), id, is_armed: true })
    }

    /// Keeps the connection while it is polled, and calls `lost` after each loss.
    pub(crate) async fn run(self, coordinator: Channel, name: String, lost: impl Fn()) {
        let mut client = LinkClient::new(coordinator)
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX);
        let mut pauses = BACKOFF.start();
        let mut is_logged = false;
        loop {
            let (failure, was_up) = self.inner.session(&mut client, &name).await;
            self.inner.fail_all(CONNECTION_LOST);
            lost();
            if was_up {
                pauses.reset();
                is_logged = false;
            }
            if !is_logged {
                let private = failure.private().map_or("", |p| p.for_log());
                tracing::warn!(%failure, private, at = name, "no connection to the coordinator");
                is_logged = true;
            }
            // Jitter: gateways that lost one coordinator must not reconnect at the same time.
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }

    /// Ends streams whose clients do not read.
    pub(crate) fn end_stalled_streams(&self) {
        self.inner.end_stalled_streams(Instant::now());
    }

    /// Ends every call with the failure that the gateway leaves, and takes no more calls.
    pub(crate) fn shut_down(&self) {
        self.inner.lock().is_leaving = true;
        self.inner.fail_all(GATEWAY_LEAVES);
    }

    /// Ends every call, because the link is removed from the pool.
    pub(crate) fn close(&self) {
        self.inner.fail_all(CONNECTION_LOST);
    }
}

impl LinkInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so a poisoned lock has consistent data.
        self.state.lock()
    }

    fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    fn set_up(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::AcqRel) != is_up {
            self.all_links.up_links.send_modify(|count| {
                if is_up {
                    *count += 1;
                } else {
                    *count -= 1;
                }
            });
        }
        self.all_links.changed.notify_waiters();
    }

    /// One connection from start to end. Returns the reason of its end, and whether it was up.
    async fn session(
        self: &Arc<Self>,
        client: &mut LinkClient<Channel>,
        name: &str,
    ) -> (Failure, bool) {
        let opened = timeout(limits::CONNECT_TIMEOUT, client.open(Outgoing::new(self))).await;
        let mut replies = match opened {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return (Failure::from(status), false),
            Err(_) => return (unreachable(), false),
        };
        self.set_up(true);
        tracing::info!(at = name, "connected to the coordinator");
        loop {
            match replies.message().await {
                Ok(Some(reply)) => self.deliver(reply),
                Ok(None) => return (transport("the coordinator closed the link"), true),
                Err(status) => return (Failure::from(status), true),
            }
        }
    }

    /// Delivers one reply to its call. A reply with an unknown id is late: its caller has left.
    fn deliver(&self, reply: Reply) {
        let Reply { id, body: Some(body), extensions } = reply else { return };
        let mut state = self.lock();
        let frame = match body {
            reply::Body::Frame(frame) => frame,
            reply::Body::Moved(_) if id == 0 => {
                state.coordinator_leaves = true;
                drop(state);
                tracing::info!("coordinator announces that it leaves");
                return self.all_links.changed.notify_waiters();
            }
            last => {
                let waiter = state.pending.remove(&id).map(|open| open.waiter);
                let ending = parse_last_reply(last);
                match &ending {
                    Ok(_) => state.outlier.on_success(),
                    Err(failure) if is_transient(failure) => {
                        state.outlier.on_failure(Instant::now())
                    }
                    Err(_) => state.outlier.on_success(),
                }
                drop(state);
                return finish(waiter, ending, extensions);
            }
        };
        state.outlier.on_success();
        let refused = match state.pending.get_mut(&id).map(|open| &mut open.waiter) {
            // Sent under the lock: cloning the sender would cost more than the send.
            Some(Waiter::Stream(reader)) => !reader.push(frame, extensions),
            Some(Waiter::Unary(_)) => true,
            Some(Waiter::Abandoned(_)) | None => false,
        };
        if refused {
            // Either the client is just leaving, or the coordinator ignored the credit or sent a
            // frame to a call with one answer. Only this call ends.
            let (waiter, writer) = state.cancel(id);
            drop(state);
            wake(writer);
            waiter.into_iter().for_each(|waiter| fail(waiter, broken().into()));
        }
    }

    /// Ends streams with waiting frames that their clients have not read for too long. Calls that
    /// were cancelled long ago are removed: an older coordinator does not acknowledge all of them.
    fn end_stalled_streams(&self, now: Instant) {
        let mut state = self.lock();
        let is_expired = |open: &PendingCall| match open.waiter {
            Waiter::Abandoned(at) => now.duration_since(at) >= limits::ABANDONED_CALL_TIMEOUT,
            Waiter::Unary(_) | Waiter::Stream(_) => false,
        };
        state.pending.retain(|_, open| !is_expired(open));
        let is_stalled = |open: &mut PendingCall| match &mut open.waiter {
            Waiter::Stream(reader) => reader.is_stalled(now, self.all_links.reader_stall),
            Waiter::Unary(_) | Waiter::Abandoned(_) => false,
        };
        let stalled =
            state.pending.iter_mut().filter_map(|(id, open)| is_stalled(open).then_some(*id));
        let stalled: Vec<_> = stalled.collect();
        let ended: Vec<_> = stalled.into_iter().map(|id| state.cancel(id)).collect();
        drop(state);
        for (waiter, writer) in ended {
            wake(writer);
            if let Some(Waiter::Stream(reader)) = waiter {
                self.all_links.stalled.fetch_add(1, Ordering::Relaxed);
                reader.reset();
            }
        }
    }

    /// Ends all calls with a reason; calls that were not sent yet are returned to their callers.
    fn fail_all(&self, what: &'static str) {
        self.set_up(false);
        let mut state = self.lock();
        state.epoch += 1;
        state.coordinator_leaves = false;
        let mut pending = mem::take(&mut state.pending);
        let unsent: Vec<_> = mem::take(&mut state.outbox)
            .into_iter()
            .filter_map(|Call { id, caller, body }| {
                // Credit has no caller; its call was sent.
                let caller = caller?;
                Some((pending.remove(&id)?, caller, body?))
            })
            .collect();
        let waiters: Vec<_> = pending.into_values().map(|call| call.waiter).collect();
        let writer = state.writer.take();
        // A lost connection counts as one failure, for any number of calls.
        if what == CONNECTION_LOST && !waiters.is_empty() {
            state.outlier.on_failure(Instant::now());
        }
        drop(state);
        wake(writer);
        for (open, caller, body) in unsent {
            fail(open.waiter, CallError::NotSent(Box::new((caller, body))));
        }
        for waiter in waiters {
            fail(waiter, CallError::Interrupted(what));
        }
    }
}

impl State {
    /// Cancels a call. It stays in flight until the coordinator acknowledges it. Returns its waiter
    /// and the waker of the sender.
    fn cancel(&mut self, id: u64) -> (Option<Waiter>, Option<Waker>) {
        let Some(open) = self.pending.get_mut(&id) else { return (None, None) };
        match mem::replace(&mut open.waiter, Waiter::Abandoned(Instant::now())) {
            Waiter::Abandoned(since) => {
                open.waiter = Waiter::Abandoned(since);
                (None, None)
            }
            waiter => (Some(waiter), self.enqueue(dropped(id))),
        }
    }

    /// Queues a message, and returns the waker to call after the lock is released. Only new calls
    /// have a limit: other messages are few per call.
    #[must_use]
    fn enqueue(&mut self, call: Call) -> Option<Waker> {
        self.outbox.push_back(call);
        self.writer.take()
    }
}

fn dropped(id: u64) -> Call {
    Call { id, caller: None, body: Some(call::Body::Drop(Dropped {})) }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The last reply to a call as a result. A failure without an origin is from the coordinator.
fn parse_last_reply(last: reply::Body) -> Result<reply::Body, Failure> {
    let reply::Body::Failure(record) = last else { return Ok(last) };
    let failure = Failure::from_record(*record);
    if failure.origin.is_some() {
        return Err(failure);
    }
    let service = "coordinator".to_owned();
    Err(failure.born_at(Origin { service, ..Origin::default() }))
}

fn finish(waiter: Option<Waiter>, last: Result<reply::Body, Failure>, extensions: Vec<String>) {
    match (waiter, last) {
        (None | Some(Waiter::Abandoned(_)), _)
        | (Some(Waiter::Stream(_)), Ok(reply::Body::End(_))) => {}
        (Some(waiter), Err(failure)) => fail(waiter, failure.into()),
        (Some(Waiter::Unary(sender)), Ok(body)) => {
            // The send fails if the caller leaves at this moment, which is harmless.
            let _ = sender.send(Ok(Answer { body, extensions }));
        }
        (Some(waiter @ Waiter::Stream(_)), Ok(reply::Body::Moved(moved))) => {
            fail(waiter, CallError::Moved(moved.task_id));
        }
        (Some(waiter @ Waiter::Stream(_)), Ok(_)) => fail(waiter, broken().into()),
    }
}

fn fail(waiter: Waiter, ended: CallError) {
    match waiter {
        Waiter::Unary(sender) => drop(sender.send(Err(ended))),
        Waiter::Stream(reader) => reader.fail(ended),
        Waiter::Abandoned(_) => {}
    }
}

#[cfg(test)]
mod tests;
