//! Event stream that outlives its connection: reconnects with exponential backoff and continues
//! after the last event, by its number or, without numbers, by comparing a snapshot with the
//! delivered events. After too many failed reconnects the task is polled.

use std::{collections::VecDeque, time::Duration};

use faultline_proto::{
    Failure,
    a2a::{Message, SendMessageRequest, StreamResponse, Task, TaskState, stream_response::Payload},
    reason,
};
use tokio::time::{Instant, sleep_until};

use crate::{
    Answer, Client, Draft, TraceContext,
    api::{error::Error, task_view::TaskView},
    protocol::{
        task_outcome::{is_final, is_waiting},
        wire_error,
    },
    transport::{
        events::{Event, Events},
        retry::{Fault, backoff},
    },
};

/// The longest `retry_after` delay that a follower waits for. A longer one is returned as an error,
/// because an earlier attempt would be rejected again.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The reconnect policy of event streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// Subscriptions in a row without a new event, before the task is polled instead.
    pub max: u32,
    /// Pause before the first reconnect; doubled before each further one.
    pub backoff: Duration,
    /// The longest pause, unless the server asks for a longer one.
    pub backoff_max: Duration,
    /// Interval for polling the task afterwards. `None`: no polling.
    pub poll: Option<Duration>,
    /// Limit for polls without a response.
    pub patience: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            max: 3,
            backoff: Duration::from_millis(500),
            backoff_max: Duration::from_secs(10),
            poll: Some(Duration::from_secs(1)),
            patience: Duration::from_secs(30),
        }
    }
}

/// The events of one task, each once, across reconnects. Driven by its caller through
/// [`next`](Self::next); it holds no task or lock of its own.
#[derive(Debug)]
pub struct Follow {
    client: Client,
    /// The message that starts the task, while it may be sent again: it has an idempotency key and
    /// no response yet.
    resend: Option<SendMessageRequest>,
    /// The id of a message that answers a question: until the task shows that message, its question
    /// is stale.
    answer: Option<String>,
    state: StreamState,
    /// Events that were read and not yet returned.
    ready: VecDeque<Event>,
    view: TaskView,
    message: Option<Message>,
    /// The number of the last event, or zero.
    last: u64,
    /// Subscriptions since the last new event.
    attempts: u32,
}

#[derive(Debug)]
/// The connection of a [`Follow`].
enum StreamState {
    /// No request was sent yet.
    Unopened,
    Live {
        events: Events,
        /// The first event may be a snapshot of events that were already returned.
        is_fresh: bool,
    },
    Broken {
        resume_at: Instant,
    },
    Polled {
        next_at: Instant,
        /// Time of the last response.
        answered: Instant,
    },
    Ended,
}

impl Follow {
    fn new(mut client: Client, state: StreamState, view: TaskView) -> Self {
        // One trace for all connections.
        client.trace.get_or_insert_with(TraceContext::root);
        Self {
            client,
            resend: None,
            answer: None,
            state,
            ready: VecDeque::new(),
            view,
            message: None,
            last: 0,
            attempts: 0,
        }
    }

    /// Sends a message and follows its task.
    pub(crate) async fn sent(client: Client, request: SendMessageRequest) -> Result<Self, Error> {
        let message = request.message.as_ref();
        let answer = message.filter(|m| !m.task_id.is_empty()).map(|m| m.message_id.clone());
        let mut follow = Self::new(client, StreamState::Ended, TaskView::default());
        follow.answer = answer;
        let keyed = crate::protocol::draft::idempotency_key(&request).map(|_| request.clone());
        follow.send(request).await?;
        follow.resend = keyed.filter(|_| follow.client.streams());
        Ok(follow)
    }

    /// Answers the question of the task and continues. Events that were already returned are not
    /// repeated.
    pub async fn answer(&mut self, draft: impl Into<Draft>) -> Result<(), Error> {
        let mut request = SendMessageRequest::from(draft.into());
        let message = request.message.get_or_insert_default();
        self.task_id().clone_into(&mut message.task_id);
        self.answer = Some(message.message_id.clone());
        self.send(request).await
    }

    async fn send(&mut self, mut request: SendMessageRequest) -> Result<(), Error> {
        if self.client.streams() {
            let events = self.client.send_streaming(request).await?;
            // A new task has no earlier events.
            let is_fresh = !self.view.is_empty();
            self.state = StreamState::Live { events, is_fresh };
            return Ok(());
        }
        request.configuration.get_or_insert_default().return_immediately = true;
        match self.client.send(request).await? {
            Answer::Task(task) => {
                self.state = self.poll_from_now();
                self.take_snapshot(task, 0);
            }
            Answer::Message(message) => {
                let payload = Some(Payload::Message(message));
                self.emit(Event { seq: 0, response: StreamResponse { payload } });
            }
        }
        Ok(())
    }

    /// Follows an existing task, from a snapshot or from one of its events.
    pub(crate) fn task(client: Client, id: &str, after: Option<u64>) -> Self {
        let mut follow = Self::new(client, StreamState::Unopened, TaskView::of(id));
        // Zero is the beginning, like a subscription without a number.
        follow.last = after.unwrap_or(0);
        follow
    }

    /// Continues through another client of the same agent, for example without the headers of the
    /// first one.
    pub fn through(mut self, client: Client) -> Self {
        self.client = client;
        self
    }

    /// The id of the task; empty before its first event, and for a bare message.
    pub fn task_id(&self) -> &str {
        &self.view.task().id
    }

    /// The task as its events describe it so far, with joined artifacts.
    pub fn task_so_far(&self) -> &Task {
        self.view.task()
    }

    /// The number of the last event, from which another follower can continue.
    pub fn last_seq(&self) -> u64 {
        self.last
    }

    /// The next event; `None` after the last one. An error ends the stream: the server rejected the
    /// call, or was unreachable for too long. Cancel-safe: the future may be dropped and called
    /// again without losing an event.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                let Err(broken) = check(&event.response) else { return Some(Ok(event)) };
                // Such a task would never end.
                self.ready.clear();
                self.state = StreamState::Ended;
                return Some(Err(broken.into()));
            }
            if matches!(self.state, StreamState::Ended) {
                return None;
            }
            if let Err(error) = self.advance().await {
                self.state = StreamState::Ended;
                return Some(Err(error));
            }
        }
    }

    /// Reads the stream to the end of the task, or to its first question: the answer, or an error.
    pub async fn finish(self) -> Result<Answer, Error> {
        self.drive(false).await
    }

    /// The same, through questions that other callers answer.
    pub(crate) async fn finish_through_questions(self) -> Result<Answer, Error> {
        self.drive(true).await
    }

    async fn drive(mut self, through_questions: bool) -> Result<Answer, Error> {
        while let Some(event) = self.next().await {
            event?;
            if self.asks() && !through_questions {
                break;
            }
        }
        if let Some(message) = self.message {
            return Ok(Answer::Message(message));
        }
        let seen = self.view.into_task();
        if self.client.ended(&seen).is_none() {
            return Ok(Answer::Task(seen));
        }
        // The stored task has the earlier messages as well.
        let whole = self.client.task(&seen.id).await.unwrap_or_else(|_| seen.clone());
        let ended = self.client.ended(&whole).or_else(|| self.client.ended(&seen));
        ended.map_or(Ok(Answer::Task(whole)), |ended| Err(ended.into()))
    }

    /// One step towards the next event.
    async fn advance(&mut self) -> Result<(), Error> {
        match &mut self.state {
            StreamState::Ended => Ok(()),
            StreamState::Unopened => self.open().await,
            StreamState::Live { events, is_fresh } => {
                let next = events.next().await;
                // Changed after the await, so that the future can be dropped safely.
                let is_fresh = std::mem::take(is_fresh);
                match next {
                    Some(Ok(event)) => {
                        self.on_event(event, is_fresh);
                        Ok(())
                    }
                    Some(Err(failure)) => self.on_break(Fault::lost(failure)),
                    // The server may end a stream while the task waits for its caller.
                    None if self.waits() => {
                        self.state = StreamState::Ended;
                        Ok(())
                    }
                    None => self.on_break(Fault::lost(wire_error::unavailable(
                        "the stream ended before its task did",
                    ))),
                }
            }
            StreamState::Broken { resume_at } => {
                sleep_until(*resume_at).await;
                self.resume().await
            }
            StreamState::Polled { next_at, .. } => {
                sleep_until(*next_at).await;
                self.poll().await
            }
        }
    }

    async fn open(&mut self) -> Result<(), Error> {
        if !self.client.transport.subscribes() {
            self.state = self.poll_from_now();
            return Ok(());
        }
        match self.client.subscribe(self.task_id(), self.after()).await {
            Ok(events) => self.state = StreamState::Live { events, is_fresh: true },
            Err(Error::Call(failure)) if failure.row() == &reason::UNSUPPORTED_OPERATION => {
                self.state = self.poll_from_now();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn resume(&mut self) -> Result<(), Error> {
        let opened = match (&self.resend, self.task_id()) {
            (Some(request), "") => self.client.send_streaming_once(request.clone()).await,
            (_, id) => self.client.subscribe_once(id, self.after()).await,
        };
        match opened {
            Ok(events) => {
                self.state = StreamState::Live { events, is_fresh: true };
                Ok(())
            }
            Err(fault) => self.on_break(fault),
        }
    }

    /// Reconnects, polls, or returns the failure.
    fn on_break(&mut self, fault: Fault) -> Result<(), Error> {
        let failure = fault.failure.clone();
        let unknown = self.task_id().is_empty();
        // The task has ended, or the server accepts no second subscription: poll.
        if failure.row() == &reason::UNSUPPORTED_OPERATION && !unknown {
            self.state = self.poll_from_now();
            return Ok(());
        }
        if !fault.may_retry(true) || (unknown && self.resend.is_none()) {
            return Err(failure.into());
        }
        let policy = self.client.reconnect;
        let delay = failure.retry_after().unwrap_or_default();
        if delay > RETRY_AFTER_MAX {
            return Err(if unknown { failure.into() } else { self.lost(failure) });
        }
        let subscribes = unknown || self.client.transport.subscribes();
        if self.attempts < policy.max && subscribes {
            let pause = backoff(policy.backoff, policy.backoff_max, self.attempts);
            self.attempts += 1;
            self.state = StreamState::Broken { resume_at: Instant::now() + pause.max(delay) };
            return Ok(());
        }
        if unknown {
            // The send has an idempotency key; without one it would not have been repeated.
            return Err(failure.with_repeat_by_key().into());
        }
        if policy.poll.is_none() {
            return Err(self.lost(failure));
        }
        let now = Instant::now();
        self.state = StreamState::Polled { next_at: now + delay, answered: now };
        Ok(())
    }

    async fn poll(&mut self) -> Result<(), Error> {
        let StreamState::Polled { answered, .. } = self.state else { return Ok(()) };
        let policy = self.client.reconnect;
        let next_at = |now: Instant| now + policy.poll.unwrap_or(Duration::from_secs(1));
        match self.client.task_once(self.task_id()).await {
            Ok(task) => {
                let now = Instant::now();
                self.state = StreamState::Polled { next_at: next_at(now), answered: now };
                self.take_snapshot(task, 0);
                // A stream would end here as well.
                if self.view.state() == TaskState::InputRequired && self.waits() {
                    self.state = StreamState::Ended;
                }
                Ok(())
            }
            Err(fault) if !fault.may_retry(true) => Err(fault.failure.into()),
            Err(fault) => {
                let delay = fault.failure.retry_after().unwrap_or_default();
                if answered.elapsed() >= policy.patience || delay > RETRY_AFTER_MAX {
                    return Err(self.lost(fault.failure));
                }
                let now = Instant::now();
                let next_at = next_at(now).max(now + delay);
                self.state = StreamState::Polled { next_at, answered };
                Ok(())
            }
        }
    }

    fn poll_from_now(&self) -> StreamState {
        let now = Instant::now();
        StreamState::Polled { next_at: now, answered: now }
    }

    fn lost(&self, last: Failure) -> Error {
        Error::Reconnect { task_id: self.task_id().to_owned(), attempts: self.attempts, last }
    }

    fn after(&self) -> Option<u64> {
        Some(self.last).filter(|seq| *seq > 0)
    }

    /// The task waits, and not for an answer that was already sent.
    fn waits(&self) -> bool {
        is_waiting(self.view.state()) && self.answer.is_none()
    }

    /// Whether all events were returned and the task waits for its caller: see [`Follow::answer`].
    pub fn asks(&self) -> bool {
        self.ready.is_empty() && self.waits()
    }

    fn on_event(&mut self, event: Event, is_fresh: bool) {
        if let Some(Payload::Task(task)) = event.response.payload {
            // A server with numbers sends no snapshot after `last-event-id`.
            if is_fresh || event.seq == 0 || event.seq > self.last {
                self.take_snapshot(task, event.seq);
            }
            return;
        }
        let is_old = match event.seq {
            0 => self.view.is_repeat(&event.response),
            seq => seq <= self.last,
        };
        if !is_old {
            self.emit(event);
        }
    }

    fn take_snapshot(&mut self, task: Task, seq: u64) {
        let missing = if self.view.is_empty() {
            vec![StreamResponse { payload: Some(Payload::Task(task)) }]
        } else {
            self.view.missing_events(&task)
        };
        for response in missing {
            self.emit(Event { seq, response });
        }
        self.last = seq.max(self.last);
    }

    fn emit(&mut self, event: Event) {
        self.view.apply(&event.response);
        self.attempts = 0;
        self.last = event.seq.max(self.last);
        match &event.response.payload {
            Some(Payload::Message(message)) => self.message = Some(message.clone()),
            // The task has received the answer once its history contains it or its state changes.
            Some(Payload::Task(task)) => {
                let taken = |id: &String| task.history.iter().any(|m| m.message_id == *id);
                self.answer = self.answer.take().filter(|id| !taken(id));
            }
            Some(Payload::StatusUpdate(_)) => self.answer = None,
            Some(Payload::ArtifactUpdate(_)) | None => {}
        }
        let is_last = event.is_last() || is_final(self.view.state());
        self.ready.push_back(event);
        if is_last {
            self.state = StreamState::Ended;
        }
    }
}

/// Checks that an event has content, a task has an id and a status has a state.
fn check(response: &StreamResponse) -> Result<(), Failure> {
    let status = match &response.payload {
        None => {
            return Err(wire_error::invalid_response(
                "the server sent an event without any content",
            ));
        }
        Some(Payload::Task(task)) if task.id.is_empty() => {
            return Err(wire_error::invalid_response("the server's task has no id"));
        }
        Some(Payload::Task(task)) => task.status.as_ref(),
        Some(Payload::StatusUpdate(update)) => update.status.as_ref(),
        Some(Payload::ArtifactUpdate(_) | Payload::Message(_)) => return Ok(()),
    };
    if status.is_none_or(|status| status.state() == TaskState::Unspecified) {
        Err(wire_error::invalid_response("the server's task is in no state that A2A knows"))
    } else {
        Ok(())
    }
}
