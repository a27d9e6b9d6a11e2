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

use ejection::Health;
use fair_share::Held;
pub(crate) use fair_share::Shares;
pub(crate) use frames::{Frames, Peer};
use frames::{Reader, Ticket};
pub(crate) use interruption::{
    Again, Ended, LEAVES, LOST, MOVED, is_left_undone, is_passing, leaving, overloaded, unreachable,
};
use interruption::{broken, transport};
use outgoing::Outgoing;

/// The pauses between two attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// What one stream can be ahead: its credit, and the failure that ends it.
const FRAMES_AHEAD_MAX: usize = limits::STREAM_CREDIT as usize + 1;

/// What the links of one gateway share.
pub(crate) struct Board {
    /// How many of them have a connection.
    pub(crate) ups: watch::Sender<usize>,
    /// One of them became another than it was.
    pub(crate) changed: Notify,
    /// Streams that were ended because nobody read them.
    pub(crate) stalled: AtomicU64,
    /// How long a reader may take nothing while something waits for it.
    pub(crate) reader_stall: Duration,
    pub(crate) shares: Shares,
}

impl Board {
    pub(crate) fn new(reader_stall: Duration, shares: Shares) -> Self {
        let (ups, stalled) = (watch::Sender::new(0), AtomicU64::new(0));
        Self { ups, changed: Notify::new(), stalled, reader_stall, shares }
    }
}

/// Cheap to clone; all clones share the one connection.
#[derive(Clone)]
pub(crate) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Whether there is a connection.
    is_up: AtomicBool,
    board: Arc<Board>,
}

#[derive(Default)]
struct State {
    /// The gateway leaves.
    is_leaving: bool,
    /// The coordinator leaves: it said so on this connection.
    has_moved: bool,
    /// Nobody names it any more.
    is_unlisted: bool,
    health: Health,
    /// Counts connections, so that the sending half of a broken one cannot take calls of the next.
    epoch: u64,
    /// Never reused, also not across connections: a late drop or reply hits nobody else.
    last_id: u64,
    /// Every call that the coordinator has not answered.
    waiting: HashMap<u64, Open>,
    outbox: VecDeque<Call>,
    /// Of the sending half, when it found the outbox empty.
    sender: Option<Waker>,
}

/// How a link stands, for whoever has a call to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
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
struct Open {
    waiter: Waiter,
    _held: Held,
}

impl Open {
    fn is_read(&self) -> bool {
        matches!(self.waiter, Waiter::Many(_))
    }
}

enum Waiter {
    One(oneshot::Sender<Result<Answer, Ended>>),
    Many(Reader),
    /// The caller left at this time; the acknowledgement of the coordinator is pending.
    Left(Instant),
}

impl Link {
    /// Not connected; [`Link::run`] does that.
    pub(crate) fn new(board: Arc<Board>) -> Self {
        let shared = Shared { state: Mutex::default(), is_up: AtomicBool::new(false), board };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Calls that the coordinator has not answered, streams among them.
    pub(crate) fn calls(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// Whether somebody waits for one of them.
    pub(crate) fn is_waited_for(&self) -> bool {
        let state = self.shared.lock();
        state.waiting.values().any(|open| !matches!(open.waiter, Waiter::Left(_)))
    }

    pub(crate) fn standing(&self, now: Instant) -> Standing {
        let state = self.shared.lock();
        match state.health.ejected(now) {
            _ if !self.shared.is_up() => Standing::Down,
            _ if state.has_moved || state.is_unlisted => Standing::Leaving,
            Some(until) => Standing::Ejected(until),
            None => Standing::Up,
        }
    }

    /// Whether anybody still names it.
    pub(crate) fn set_listed(&self, is_listed: bool) {
        self.shared.lock().is_unlisted = !is_listed;
        self.shared.board.changed.notify_waiters();
    }

    pub(crate) fn is_listed(&self) -> bool {
        !self.shared.lock().is_unlisted
    }

    /// A call with one answer. Dropped before its end, it tells the coordinator so.
    pub(crate) async fn ask(&self, caller: Caller, body: call::Body) -> Result<Answer, Ended> {
        let (sender, receiver) = oneshot::channel();
        let mut ticket = self.register(caller, body, Waiter::One(sender))?;
        let answer = receiver.await;
        ticket.is_open = false;
        answer.unwrap_or(Err(Ended::Cut(LOST)))
    }

    /// A call with many answers.
    pub(crate) fn stream(
        &self,
        caller: Caller,
        body: call::Body,
        peer: &Peer,
    ) -> Result<Frames, Ended> {
        let (sender, frames) = mpsc::channel(FRAMES_AHEAD_MAX);
        let reader = Reader::new(sender, peer.clone());
        let ticket = self.register(caller, body, Waiter::Many(reader))?;
        Ok(Frames::new(frames, ticket))
    }

    fn register(&self, caller: Caller, body: call::Body, waiter: Waiter) -> Result<Ticket, Ended> {
        let held = self.shared.board.shares.hold(&caller)?;
        let mut state = self.shared.lock();
        // Asked under the lock: `fail_all` says no before it takes the lock, so it misses nobody.
        if state.is_leaving || !self.shared.is_up() {
            return Err(Ended::Unsent(Box::new((caller, body))));
        }
        if state.waiting.len() >= limits::LINK_CALLS_MAX {
            return Err(overloaded("too many calls are under way at this gateway").into());
        }
        if state.outbox.len() >= limits::OUTBOX_MAX {
            return Err(overloaded("the coordinator does not keep up").into());
        }
        state.last_id += 1;
        let id = state.last_id;
        state.waiting.insert(id, Open { waiter, _held: held });
        let sender = state.post(Call { id, caller: Some(caller), body: Some(body) });
        drop(state);
        wake(sender);
        Ok(Ticket { shared: Arc::clone(&self.shared), id, is_open: true })
    }

    /// Keeps the connection for as long as it is polled, and tells whenever it was lost.
    pub(crate) async fn run(self, coordinator: Channel, name: String, lost: impl Fn()) {
        let mut client = LinkClient::new(coordinator)
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX);
        let mut pause = BACKOFF_MIN;
        let mut was_told = false;
        loop {
            let (failure, was_up) = self.shared.session(&mut client, &name).await;
            self.shared.fail_all(LOST);
            lost();
            if was_up {
                (pause, was_told) = (BACKOFF_MIN, false);
            }
            if !was_told {
                let private = failure.private().map_or("", |p| p.for_log());
                tracing::warn!(%failure, private, at = name, "no connection to the coordinator");
                was_told = true;
            }
            // Half of it by chance: gateways that lost one coordinator must not return as one.
            tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    /// Ends streams whose readers are stuck.
    pub(crate) fn end_stuck(&self) {
        self.shared.end_stuck(Instant::now());
    }

    /// Ends every call, because the gateway leaves, and takes no more.
    pub(crate) fn leave(&self) {
        self.shared.lock().is_leaving = true;
        self.shared.fail_all(LEAVES);
    }

    /// Ends every call, because nobody looks after the connection any longer.
    pub(crate) fn give_up(&self) {
        self.shared.fail_all(LOST);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so there is nothing half-done to fear.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    fn set_up(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::AcqRel) != is_up {
            self.board.ups.send_modify(|ups| match is_up {
                true => *ups += 1,
                false => *ups -= 1,
            });
        }
        self.board.changed.notify_waiters();
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
                state.has_moved = true;
                drop(state);
                tracing::info!("a coordinator is about to leave");
                return self.board.changed.notify_waiters();
            }
            last => {
                let waiter = state.waiting.remove(&id).map(|open| open.waiter);
                let ending = end(last);
                match &ending {
                    Ok(_) => state.health.well(),
                    Err(failure) if is_passing(failure) => state.health.badly(Instant::now()),
                    Err(_) => state.health.well(),
                }
                drop(state);
                return finish(waiter, ending, extensions);
            }
        };
        state.health.well();
        let refused = match state.waiting.get_mut(&id).map(|open| &mut open.waiter) {
            // Sent under the lock: a clone of the sender would cost more than the send.
            Some(Waiter::Many(reader)) => !reader.takes(frame, extensions),
            Some(Waiter::One(_)) => true,
            Some(Waiter::Left(_)) | None => false,
        };
        if refused {
            // Either its reader is just leaving and will say so itself, or the coordinator sent
            // what nobody asked for. The second ends this call, and only this one.
            let (waiter, sender) = state.leave(id);
            drop(state);
            wake(sender);
            waiter.into_iter().for_each(|waiter| fail(waiter, broken().into()));
        }
    }

    /// Ends the streams that nobody has read for too long although something waits in them. Calls
    /// that were left long ago are forgotten: an older coordinator does not confirm all of them.
    fn end_stuck(&self, now: Instant) {
        let mut state = self.lock();
        let is_forgotten = |open: &Open| match open.waiter {
            Waiter::Left(at) => now.duration_since(at) >= limits::ABANDONED_CALL_TIMEOUT,
            Waiter::One(_) | Waiter::Many(_) => false,
        };
        state.waiting.retain(|_, open| !is_forgotten(open));
        let is_stuck = |open: &mut Open| match &mut open.waiter {
            Waiter::Many(reader) => reader.is_stuck(now, self.board.reader_stall),
            Waiter::One(_) | Waiter::Left(_) => false,
        };
        let stuck = state.waiting.iter_mut().filter_map(|(id, open)| is_stuck(open).then_some(*id));
        let stuck: Vec<_> = stuck.collect();
        let ended: Vec<_> = stuck.into_iter().map(|id| state.leave(id)).collect();
        drop(state);
        for (waiter, sender) in ended {
            wake(sender);
            if let Some(Waiter::Many(reader)) = waiter {
                self.board.stalled.fetch_add(1, Ordering::Relaxed);
                reader.let_go();
            }
        }
    }

    /// Ends all calls, says of what, and gives back what was not sent yet.
    fn fail_all(&self, what: &'static str) {
        self.set_up(false);
        let mut state = self.lock();
        state.epoch += 1;
        state.has_moved = false;
        let mut waiting = mem::take(&mut state.waiting);
        let unsent: Vec<_> = mem::take(&mut state.outbox)
            .into_iter()
            .filter_map(|Call { id, caller, body }| {
                // Credit has no caller, and is of a call that was sent.
                let caller = caller?;
                Some((waiting.remove(&id)?, caller, body?))
            })
            .collect();
        let waiting: Vec<_> = waiting.into_values().map(|open| open.waiter).collect();
        let sender = state.sender.take();
        // One break is one failure, however many calls it cost.
        if what == LOST && !waiting.is_empty() {
            state.health.badly(Instant::now());
        }
        drop(state);
        wake(sender);
        for (open, caller, body) in unsent {
            fail(open.waiter, Ended::Unsent(Box::new((caller, body))));
        }
        for waiter in waiting {
            fail(waiter, Ended::Cut(what));
        }
    }
}

impl State {
    /// Cancels a call. It stays in the in-flight count until the coordinator answers. Returns its
    /// waiter and the task to wake.
    fn leave(&mut self, id: u64) -> (Option<Waiter>, Option<Waker>) {
        let Some(open) = self.waiting.get_mut(&id) else { return (None, None) };
        match mem::replace(&mut open.waiter, Waiter::Left(Instant::now())) {
            Waiter::Left(since) => {
                open.waiter = Waiter::Left(since);
                (None, None)
            }
            waiter => (Some(waiter), self.post(dropped(id))),
        }
    }

    /// Puts a message in the outbox and gives the one to wake, once the lock is gone. What is not
    /// a new call is never refused: there are few of it per call, and calls are counted.
    #[must_use]
    fn post(&mut self, call: Call) -> Option<Waker> {
        self.outbox.push_back(call);
        self.sender.take()
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
fn end(last: reply::Body) -> Result<reply::Body, Failure> {
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
        (None | Some(Waiter::Left(_)), _) | (Some(Waiter::Many(_)), Ok(reply::Body::End(_))) => {}
        (Some(waiter), Err(failure)) => fail(waiter, failure.into()),
        (Some(Waiter::One(sender)), Ok(body)) => {
            // The caller may have left in this very moment; then nobody minds.
            let _ = sender.send(Ok(Answer { body, extensions }));
        }
        (Some(waiter @ Waiter::Many(_)), Ok(reply::Body::Moved(moved))) => {
            fail(waiter, Ended::Moved(moved.task_id));
        }
        (Some(waiter @ Waiter::Many(_)), Ok(_)) => fail(waiter, broken().into()),
    }
}

fn fail(waiter: Waiter, ended: Ended) {
    match waiter {
        Waiter::One(sender) => drop(sender.send(Err(ended))),
        Waiter::Many(reader) => reader.fail(ended),
        Waiter::Left(_) => {}
    }
}

#[cfg(test)]
mod tests;
