//! The way to one coordinator: one long-lived stream that carries many calls. It owns the numbering
//! of calls, who waits for which, and coming back after a break. It knows nothing of HTTP and of
//! other coordinators, and of the calls it carries only whether one answer follows or many.

mod ejection;
mod fair_share;
mod frames;
mod interruption;
mod outgoing;

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use faultline_chassis::{client::Channel, limits};
use faultline_proto::{
    Failure,
    v1::{Call, Caller, Drop as Dropped, Origin, Reply, call, link_client::LinkClient, reply},
};
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

/// The pauses between two attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// What one stream can be ahead: its credit, and the failure that ends it.
const FRAMES_AHEAD_MAX: usize = limits::STREAM_CREDIT as usize + 1;

/// What the links of one gateway share.
pub(crate) struct SharedLinkState {
    /// How many of them have a connection.
    pub(crate) up_links: watch::Sender<usize>,
    /// One of them became another than it was.
    pub(crate) changed: Notify,
    /// Streams that were ended because nobody read them.
    pub(crate) stalled: AtomicU64,
    /// How long a reader may take nothing while something waits for it.
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

/// Cheap to clone; all clones share the one connection.
#[derive(Clone)]
pub(crate) struct Link {
    inner: Arc<LinkInner>,
}

struct LinkInner {
    state: Mutex<State>,
    /// Whether there is a connection.
    is_up: AtomicBool,
    all_links: Arc<SharedLinkState>,
}

#[derive(Default)]
struct State {
    /// The gateway leaves.
    is_leaving: bool,
    /// The coordinator leaves: it said so on this connection.
    coordinator_leaves: bool,
    /// Nobody names it any more.
    is_unlisted: bool,
    outlier: OutlierState,
    /// Counts connections, so that the sending half of a broken one cannot take calls of the next.
    epoch: u64,
    /// Never reused, also not across connections: a late drop or reply hits nobody else.
    last_id: u64,
    /// Every call that the coordinator has not answered.
    pending: HashMap<u64, PendingCall>,
    outbox: VecDeque<Call>,
    /// Of the sending half, when it found the outbox empty.
    writer: Option<Waker>,
}

/// How a link stands, for whoever has a call to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkStatus {
    Up,
    /// It failed too often, and is left alone until then.
    Ejected(Instant),
    /// Connected, but only for the calls that are under way.
    Leaving,
    Down,
}

/// What came back, and the extensions that are in force for the call.
pub(crate) struct Answer {
    pub(crate) body: reply::Body,
    pub(crate) extensions: Vec<String>,
}

/// A call that the coordinator has not answered, and the part of a share that it takes.
struct PendingCall {
    waiter: Waiter,
    _share: HeldShare,
}

impl PendingCall {
    fn is_stream(&self) -> bool {
        matches!(self.waiter, Waiter::Stream(_))
    }
}

enum Waiter {
    Unary(oneshot::Sender<Result<Answer, CallError>>),
    Stream(StreamBuffer),
    /// The caller left at this time; the acknowledgement of the coordinator is pending.
    Abandoned(Instant),
}

impl Link {
    /// Not connected; [`Link::run`] does that.
    pub(crate) fn new(all_links: Arc<SharedLinkState>) -> Self {
        let inner = LinkInner { state: Mutex::default(), is_up: AtomicBool::new(false), all_links };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Calls that the coordinator has not answered, streams among them.
    pub(crate) fn in_flight(&self) -> usize {
        self.inner.lock().pending.len()
    }

    /// Whether somebody waits for one of them.
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

    /// Whether anybody still names it.
    pub(crate) fn set_listed(&self, is_listed: bool) {
        self.inner.lock().is_unlisted = !is_listed;
        self.inner.all_links.changed.notify_waiters();
    }

    pub(crate) fn is_listed(&self) -> bool {
        !self.inner.lock().is_unlisted
    }

    /// A call with one answer. Dropped before its end, it tells the coordinator so.
    pub(crate) async fn call(&self, caller: Caller, body: call::Body) -> Result<Answer, CallError> {
        let (sender, receiver) = oneshot::channel();
        let mut guard = self.register(caller, body, Waiter::Unary(sender))?;
        let answer = receiver.await;
        guard.is_armed = false;
        answer.unwrap_or(Err(CallError::Interrupted(CONNECTION_LOST)))
    }

    /// A call with many answers.
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
        // Asked under the lock: `fail_all` says no before it takes the lock, so it misses nobody.
        if state.is_leaving || !self.inner.is_up() {
            return Err(CallError::NotSent(Box::new((caller, body))));
        }
        if state.pending.len() >= limits::LINK_CALLS_MAX {
            return Err(overloaded("too many calls are under way at this gateway").into());
        }
        if state.outbox.len() >= limits::OUTBOX_MAX {
            return Err(overloaded("the coordinator does not keep up").into());
        }
        state.last_id += 1;
        let id = state.last_id;
        state.pending.insert(id, PendingCall { waiter, _share: share });
        let sender = state.enqueue(Call { id, caller: Some(caller), body: Some(body) });
        drop(state);
        wake(sender);
        Ok(CallGuard { inner: Arc::clone(&self.inner), id, is_armed: true })
    }

    /// Keeps the connection for as long as it is polled, and tells whenever it was lost.
    pub(crate) async fn run(self, coordinator: Channel, name: String, lost: impl Fn()) {
        let mut client = LinkClient::new(coordinator)
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX);
        let mut pause = BACKOFF_MIN;
        let mut is_logged = false;
        loop {
            let (failure, was_up) = self.inner.session(&mut client, &name).await;
            self.inner.fail_all(CONNECTION_LOST);
            lost();
            if was_up {
                (pause, is_logged) = (BACKOFF_MIN, false);
            }
            if !is_logged {
                let private = failure.private().map_or("", |p| p.for_log());
                tracing::warn!(%failure, private, at = name, "no connection to the coordinator");
                is_logged = true;
            }
            // Half of it by chance: gateways that lost one coordinator must not return as one.
            tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    /// Ends streams whose readers are stuck.
    pub(crate) fn end_stalled_streams(&self) {
        self.inner.end_stalled_streams(Instant::now());
    }

    /// Ends every call, because the gateway leaves, and takes no more.
    pub(crate) fn shut_down(&self) {
        self.inner.lock().is_leaving = true;
        self.inner.fail_all(GATEWAY_LEAVES);
    }

    /// Ends every call, because nobody looks after the connection any longer.
    pub(crate) fn close(&self) {
        self.inner.fail_all(CONNECTION_LOST);
    }
}

impl LinkInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so there is nothing half-done to fear.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// One connection from its first byte to its last. Also says whether it ever was up.
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

    /// Hands one reply to whoever waits for it. One for an unknown id is late: its reader left.
    fn deliver(&self, reply: Reply) {
        let Reply { id, body: Some(body), extensions } = reply else { return };
        let mut state = self.lock();
        let frame = match body {
            reply::Body::Frame(frame) => frame,
            reply::Body::Moved(_) if id == 0 => {
                state.coordinator_leaves = true;
                drop(state);
                tracing::info!("a coordinator is about to leave");
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
            // Sent under the lock: a clone of the sender would cost more than the send.
            Some(Waiter::Stream(reader)) => !reader.push(frame, extensions),
            Some(Waiter::Unary(_)) => true,
            Some(Waiter::Abandoned(_)) | None => false,
        };
        if refused {
            // Either its reader is just leaving and will say so itself, or the coordinator sent
            // what nobody asked for. The second ends this call, and only this one.
            let (waiter, sender) = state.cancel(id);
            drop(state);
            wake(sender);
            waiter.into_iter().for_each(|waiter| fail(waiter, broken().into()));
        }
    }

    /// Ends the streams that nobody has read for too long although something waits in them. Calls
    /// that were left long ago are forgotten: an older coordinator does not confirm all of them.
    fn end_stalled_streams(&self, now: Instant) {
        let mut state = self.lock();
        let is_forgotten = |open: &PendingCall| match open.waiter {
            Waiter::Abandoned(at) => now.duration_since(at) >= limits::ABANDONED_CALL_TIMEOUT,
            Waiter::Unary(_) | Waiter::Stream(_) => false,
        };
        state.pending.retain(|_, open| !is_forgotten(open));
        let is_stalled = |open: &mut PendingCall| match &mut open.waiter {
            Waiter::Stream(reader) => reader.is_stalled(now, self.all_links.reader_stall),
            Waiter::Unary(_) | Waiter::Abandoned(_) => false,
        };
        let stuck =
            state.pending.iter_mut().filter_map(|(id, open)| is_stalled(open).then_some(*id));
        let stuck: Vec<_> = stuck.collect();
        let ended: Vec<_> = stuck.into_iter().map(|id| state.cancel(id)).collect();
        drop(state);
        for (waiter, sender) in ended {
            wake(sender);
            if let Some(Waiter::Stream(reader)) = waiter {
                self.all_links.stalled.fetch_add(1, Ordering::Relaxed);
                reader.reset();
            }
        }
    }

    /// Ends all calls, says of what, and gives back what was not sent yet.
    fn fail_all(&self, what: &'static str) {
        self.set_up(false);
        let mut state = self.lock();
        state.epoch += 1;
        state.coordinator_leaves = false;
        let mut pending = mem::take(&mut state.pending);
        let unsent: Vec<_> = mem::take(&mut state.outbox)
            .into_iter()
            .filter_map(|Call { id, caller, body }| {
                // Credit has no caller, and is of a call that was sent.
                let caller = caller?;
                Some((pending.remove(&id)?, caller, body?))
            })
            .collect();
        let waiters: Vec<_> = pending.into_values().map(|call| call.waiter).collect();
        let sender = state.writer.take();
        // One break is one failure, however many calls it cost.
        if what == CONNECTION_LOST && !waiters.is_empty() {
            state.outlier.on_failure(Instant::now());
        }
        drop(state);
        wake(sender);
        for (open, caller, body) in unsent {
            fail(open.waiter, CallError::NotSent(Box::new((caller, body))));
        }
        for waiter in waiters {
            fail(waiter, CallError::Interrupted(what));
        }
    }
}

impl State {
    /// Cancels a call. It stays in the in-flight count until the coordinator answers. Returns its
    /// waiter and the task to wake.
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

    /// Puts a message in the outbox and gives the one to wake, once the lock is gone. What is not
    /// a new call is never refused: there are few of it per call, and calls are counted.
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

/// The last reply to a call, or the failure that it is.
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
            // The caller may have left in this very moment; then nobody minds.
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
