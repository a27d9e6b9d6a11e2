//! The way to the coordinator: one long-lived stream that carries every call of this gateway. It
//! owns the numbering of calls, who waits for which, and coming back after a break. It knows
//! nothing of HTTP, and of the calls it carries only whether one answer follows or many.

mod cut;
mod frames;

use std::{
    collections::{HashMap, VecDeque},
    mem,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use faultline_chassis::{client::Channel, limits};
use faultline_proto::{
    Failure, reason,
    v1::{
        Call, Caller, Drop as Dropped, Origin, Plane, Reply, call, link_client::LinkClient, reply,
    },
};
use futures::Stream;
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    time::{Instant, timeout},
};

use cut::{Again, LOST};
pub(crate) use frames::FrameStream;
use frames::{Reader, Ticket};

/// How long a call waits for a connection before it fails: long enough for a coordinator that
/// restarts, short enough for a caller that would rather go elsewhere.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pauses between two attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// When it may be different: what a caller is told that came at a bad moment.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// What one stream can be ahead: its credit, and the failure that ends it.
const FRAMES_AHEAD_MAX: usize = limits::STREAM_CREDIT as usize + 1;

/// Cheap to clone; all clones share the one connection.
#[derive(Clone)]
pub(crate) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Whether there is a connection.
    ups: watch::Sender<bool>,
    /// One permit for each stream that may be open.
    streams: Arc<Semaphore>,
    /// Streams that were ended because nobody read them.
    stalled: AtomicU64,
    /// How long a reader may take nothing while something waits for it.
    reader_stall: Duration,
}

#[derive(Default)]
struct State {
    is_leaving: bool,
    /// Counts connections, so that the sending half of a broken one cannot take calls of the next.
    epoch: u64,
    /// Never reused, also not across connections: a late drop or reply hits nobody else.
    last_id: u64,
    waiting: HashMap<u64, Waiting>,
    outbox: VecDeque<Call>,
    /// Of the sending half, when it found the outbox empty.
    sender: Option<Waker>,
}

/// What came back, and the extensions that are in force for the call.
pub(crate) struct Answer {
    pub(crate) body: reply::Body,
    pub(crate) extensions: Vec<String>,
}

/// One call under way.
struct Waiting {
    waiter: Waiter,
    /// What its caller can do should the connection break.
    again: Again,
}

enum Waiter {
    One(oneshot::Sender<Result<Answer, Failure>>),
    Many(Reader),
}

impl Link {
    /// Not connected; [`Link::run`] does that.
    pub(crate) fn new(reader_stall: Duration) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            ups: watch::Sender::new(false),
            streams: Arc::new(Semaphore::new(limits::STREAMS_MAX)),
            stalled: AtomicU64::new(0),
            reader_stall,
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn is_up(&self) -> bool {
        *self.shared.ups.borrow()
    }

    /// Finds it again for as long as it is used.
    pub(crate) fn downgrade(&self) -> impl Fn() -> Option<Self> + use<> {
        let shared = Arc::downgrade(&self.shared);
        move || shared.upgrade().map(|shared| Self { shared })
    }

    /// Calls under way, streams among them.
    pub(crate) fn calls(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    pub(crate) fn open_streams(&self) -> usize {
        limits::STREAMS_MAX - self.shared.streams.available_permits()
    }

    pub(crate) fn stalled(&self) -> u64 {
        self.shared.stalled.load(Ordering::Relaxed)
    }

    /// A call with one answer. Dropped before its end, it tells the coordinator so.
    pub(crate) async fn ask(&self, caller: Caller, body: call::Body) -> Result<Answer, Failure> {
        self.ready().await?;
        let (sender, receiver) = oneshot::channel();
        let mut ticket = self.register(caller, body, Waiter::One(sender))?;
        let answer = receiver.await;
        ticket.is_open = false;
        answer.unwrap_or_else(|_| Err(Again::Unknown.failure(LOST)))
    }

    /// A call with many answers.
    pub(crate) async fn stream(
        &self,
        caller: Caller,
        body: call::Body,
    ) -> Result<FrameStream, Failure> {
        self.ready().await?;
        let place = Arc::clone(&self.shared.streams).try_acquire_owned();
        let place = place.map_err(|_| {
            let most = limits::STREAMS_MAX;
            overloaded(&format!("{most} streams are open at this gateway, and more may not be"))
        })?;
        let (sender, frames) = mpsc::channel(FRAMES_AHEAD_MAX);
        let reader = Reader::new(sender);
        let stall = reader.stall();
        let ticket = self.register(caller, body, Waiter::Many(reader))?;
        Ok(FrameStream::new(frames, ticket, stall, place))
    }

    async fn ready(&self) -> Result<(), Failure> {
        if self.is_up() {
            return Ok(());
        }
        let mut ups = self.shared.ups.subscribe();
        match timeout(PATIENCE, ups.wait_for(|up| *up)).await {
            Ok(_) => Ok(()),
            Err(_) if self.shared.lock().is_leaving => Err(leaving()),
            Err(_) => Err(unreachable()),
        }
    }

    fn register(
        &self,
        caller: Caller,
        body: call::Body,
        waiter: Waiter,
    ) -> Result<Ticket, Failure> {
        let mut state = self.shared.lock();
        if state.is_leaving {
            return Err(leaving());
        }
        // Asked under the lock: `fail_all` says no before it takes the lock, so it misses nobody.
        if !self.is_up() {
            return Err(unreachable());
        }
        if state.waiting.len() >= limits::LINK_CALLS_MAX {
            return Err(overloaded("too many calls are under way at this gateway"));
        }
        if state.outbox.len() >= limits::OUTBOX_MAX {
            return Err(overloaded("the coordinator does not keep up"));
        }
        state.last_id += 1;
        let id = state.last_id;
        let again = Again::of(&caller, &body);
        state.waiting.insert(id, Waiting { waiter, again });
        let sender = state.post(Call { id, caller: Some(caller), body: Some(body) });
        drop(state);
        wake(sender);
        Ok(Ticket { shared: Arc::clone(&self.shared), id, is_open: true })
    }

    /// Keeps the connection for as long as it is polled.
    pub(crate) async fn run(self, coordinator: Channel) {
        let mut client = LinkClient::new(coordinator)
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX);
        let mut pause = BACKOFF_MIN;
        let mut was_told = false;
        loop {
            let (failure, was_up) = self.shared.session(&mut client).await;
            self.shared.fail_all(LOST);
            if was_up {
                (pause, was_told) = (BACKOFF_MIN, false);
            }
            if !was_told {
                let private = failure.private().map_or("", |p| p.for_log());
                tracing::warn!(%failure, private, "no connection to the coordinator");
                was_told = true;
            }
            // Half of it by chance: gateways that lost one coordinator must not return as one.
            tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    /// Ends streams whose readers are stuck, for as long as it is polled.
    pub(crate) async fn watch_readers(self) {
        loop {
            tokio::time::sleep(self.shared.reader_stall / 12).await;
            self.shared.end_stuck(Instant::now());
        }
    }

    /// Whether there is a connection, and whenever that changes.
    pub(crate) fn ups(&self) -> watch::Receiver<bool> {
        self.shared.ups.subscribe()
    }

    /// Ends every call with a failure that says the gateway leaves, and takes no more.
    pub(crate) fn leave(&self) {
        self.shared.lock().is_leaving = true;
        self.shared.fail_all("the gateway is leaving");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so there is nothing half-done to fear.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One connection from its first byte to its last. Also says whether it ever was up.
    async fn session(self: &Arc<Self>, client: &mut LinkClient<Channel>) -> (Failure, bool) {
        let epoch = self.lock().epoch;
        let outgoing = Outgoing { shared: Arc::clone(self), epoch, batch: VecDeque::new() };
        let opened = timeout(limits::CONNECT_TIMEOUT, client.open(outgoing)).await;
        let mut replies = match opened {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return (Failure::from(status), false),
            Err(_) => return (unreachable(), false),
        };
        self.ups.send_replace(true);
        tracing::info!("connected to the coordinator");
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
            last => {
                let waiting = state.waiting.remove(&id);
                drop(state);
                return finish(waiting.map(|waiting| waiting.waiter), last, extensions);
            }
        };
        let refused = match state.waiting.get_mut(&id).map(|waiting| &mut waiting.waiter) {
            // Sent under the lock: a clone of the sender would cost more than the send.
            Some(Waiter::Many(reader)) => !reader.takes(frame, extensions),
            Some(Waiter::One(_)) => true,
            None => false,
        };
        if refused {
            // Either its reader is just leaving and will say so itself, or the coordinator sent
            // what nobody asked for. The second ends this call, and only this one.
            let waiting = state.waiting.remove(&id);
            let sender = state.post(dropped(id));
            drop(state);
            wake(sender);
            waiting.into_iter().for_each(|waiting| fail(waiting.waiter, broken()));
        }
    }

    /// Ends the streams that nobody has read for too long although something waits in them.
    fn end_stuck(&self, now: Instant) {
        let mut state = self.lock();
        let stuck = |_: &u64, waiting: &mut Waiting| match &mut waiting.waiter {
            Waiter::Many(reader) => reader.is_stuck(now, self.reader_stall),
            Waiter::One(_) => false,
        };
        let ended: Vec<_> = state.waiting.extract_if(stuck).collect();
        let senders: Vec<_> = ended.iter().map(|(id, _)| state.post(dropped(*id))).collect();
        drop(state);
        senders.into_iter().for_each(wake);
        for (_, waiting) in ended {
            match waiting.waiter {
                Waiter::Many(reader) => {
                    self.stalled.fetch_add(1, Ordering::Relaxed);
                    reader.let_go();
                }
                Waiter::One(_) => {}
            }
        }
    }

    /// The last word to who did not read.
    fn stuck_reader(&self) -> Failure {
        overloaded(&format!(
            "nothing of this stream was read for {:?}, so it ends here; the task goes on: resume \
             with SubscribeToTask and Last-Event-ID",
            self.reader_stall
        ))
    }

    /// Ends all calls, says of what, and forgets what was not sent yet.
    fn fail_all(&self, what: &str) {
        self.ups.send_replace(false);
        let mut state = self.lock();
        state.epoch += 1;
        state.outbox.clear();
        let waiting = mem::take(&mut state.waiting);
        let sender = state.sender.take();
        drop(state);
        wake(sender);
        for Waiting { waiter, again } in waiting.into_values() {
            fail(waiter, again.failure(what));
        }
    }
}

impl State {
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

fn finish(waiter: Option<Waiter>, last: reply::Body, extensions: Vec<String>) {
    match (waiter, last) {
        (None, _) | (Some(Waiter::Many(_)), reply::Body::End(_)) => {}
        (Some(waiter), reply::Body::Failure(record)) => {
            let mut failure = Failure::from_record(*record);
            if failure.origin.is_none() {
                let service = "coordinator".to_owned();
                failure = failure.born_at(Origin { service, ..Origin::default() });
            }
            fail(waiter, failure);
        }
        (Some(Waiter::One(sender)), last) => {
            // The caller may have left in this very moment; then nobody minds.
            let _ = sender.send(Ok(Answer { body: last, extensions }));
        }
        (Some(waiter @ Waiter::Many(_)), _) => fail(waiter, broken()),
    }
}

fn fail(waiter: Waiter, failure: Failure) {
    match waiter {
        Waiter::One(sender) => drop(sender.send(Err(failure))),
        Waiter::Many(reader) => reader.fail(failure),
    }
}

/// The sending half of one connection: empties the outbox whenever the transport has room.
struct Outgoing {
    shared: Arc<Shared>,
    epoch: u64,
    /// Taken out of the outbox together, so that the lock is taken once for many.
    batch: VecDeque<Call>,
}

impl Stream for Outgoing {
    type Item = Call;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Call>> {
        if let Some(call) = self.batch.pop_front() {
            return Poll::Ready(Some(call));
        }
        let this = &mut *self;
        let mut state = this.shared.lock();
        if state.epoch != this.epoch {
            return Poll::Ready(None);
        }
        mem::swap(&mut state.outbox, &mut this.batch);
        match this.batch.pop_front() {
            Some(call) => Poll::Ready(Some(call)),
            None => {
                state.sender = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn unreachable() -> Failure {
    transport("the coordinator cannot be reached; nothing was sent")
}

fn leaving() -> Failure {
    transport("the gateway is leaving; nothing was sent")
}

fn transport(text: &str) -> Failure {
    Failure::new(&reason::UNAVAILABLE)
        .because(text)
        .with_retryable(true)
        .with_retry_after(RETRY_AFTER)
        .with_plane(Plane::Transport)
}

fn overloaded(text: &str) -> Failure {
    Failure::new(&reason::OVERLOADED).because(text).with_retry_after(RETRY_AFTER)
}

fn broken() -> Failure {
    Failure::new(&reason::INTERNAL).because("the coordinator answered out of turn")
}

#[cfg(test)]
mod tests;
