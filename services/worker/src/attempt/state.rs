//! State of one attempt at one task: the assignment, the unacknowledged reports (flow control by
//! count and bytes), the received answers, the slot, and whether the agent has to stop. Depends
//! neither on the agent's code nor on the connection.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use faultline_chassis::limits;
use faultline_proto::{
    a2a,
    id::TaskId,
    v1::{self, report::Body},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::{sync::Notify, time::Instant};

pub(crate) use self::questions::ReceivedAnswer;
use self::span::Tracing;
use crate::attempt::{
    clock::Clock,
    coordinator_channel::CoordinatorChannel,
    metrics::AgentMetrics,
    outbox::Outbox,
    slot::{Slot, SlotUpdate},
};

mod questions;
mod span;

/// Bytes of unacknowledged reports above which the agent has to wait (backpressure).
const BYTES_AHEAD_MAX: usize = 2 * limits::MESSAGE_BYTES_MAX;

/// Identifies an attempt within the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) task_id: TaskId,
    pub(crate) attempt: u32,
}

impl Key {
    /// `None` if the id is malformed.
    pub(crate) fn read(task_id: &str, attempt: u32) -> Option<Self> {
        Some(Self { task_id: task_id.parse().ok()?, attempt })
    }
}

/// The names of an agent and of its worker.
pub(crate) struct AgentNames {
    pub(crate) agent: String,
    /// Part of the origin of failures.
    pub(crate) worker: String,
}

/// The reasons for which an attempt takes no report and no question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportRefused {
    /// The agent has to stop.
    Stopped,
    /// `limits::OPEN_QUESTIONS_MAX` questions are open.
    TooManyQuestions,
}

/// A checkpoint as it is stored: the agent's bytes and the counters of questions and delegations.
#[derive(Clone, PartialEq, prost::Message)]
struct CheckpointEnvelope {
    #[prost(uint32, tag = "1")]
    asks: u32,
    #[prost(bytes = "bytes", tag = "2")]
    bytes: Bytes,
    #[prost(uint32, tag = "3")]
    delegations: u32,
}

/// One attempt: created by the `AttemptTable` when the coordinator assigns a task, shared by the
/// agent's [`Context`](crate::Context), the runner and the connection, and dropped once its final
/// report is acknowledged or the coordinator does not resume it.
pub(crate) struct Attempt {
    pub(crate) key: Key,
    pub(crate) names: Arc<AgentNames>,
    pub(crate) context_id: String,
    pub(crate) message: a2a::Message,
    pub(crate) restored: Restored,
    /// The token that authenticates this attempt in calls to other agents.
    pub(crate) token: String,
    pub(crate) channel: Arc<CoordinatorChannel>,
    pub(crate) metrics: Arc<AgentMetrics>,
    /// The id of the task as text, used in every report.
    task_id: String,
    outbox: Arc<Outbox>,
    tracing: Mutex<Tracing>,
    state: Mutex<State>,
    /// Notified on every change of `state`.
    changed: Notify,
}

/// The checkpoint of an earlier attempt.
pub(crate) enum Restored {
    Nothing,
    Checkpoint(Bytes),
    /// The bytes were not written by this library.
    Unreadable,
}

/// The mutable part of an [`Attempt`], under its `state` lock. The agent adds reports and
/// questions, the connection adds acknowledgements, answers and stop requests.
#[derive(Default)]
struct State {
    /// Number of the connection that knows this attempt; reports go to no other.
    epoch: u64,
    /// Number of the newest report.
    reported: u32,
    /// Number of the newest report that was passed to the connection of `epoch`.
    sent: u32,
    /// The newest reports, up to number `reported`, until they are acknowledged.
    unacked: VecDeque<Bytes>,
    unacked_bytes: usize,
    /// The agent is being polled: its reports are sent together when it next waits.
    corked: bool,
    ended: bool,
    cancelled: bool,
    /// The agent is dropped at once.
    dropped: Option<DropReason>,
    answers: HashMap<String, ReceivedAnswer>,
    asks: u32,
    delegations: u32,
    /// Open questions by key, each with the number of futures that wait for its answer.
    open_questions: HashMap<String, u32>,
    slot: Slot,
    clock: Clock,
    reply: Option<a2a::Message>,
}

/// The reason for dropping an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The worker drains; the task is handed back.
    Released,
    /// The coordinator does not resume the attempt: it is over, and no report is sent.
    Forgotten,
}

/// The pending requests to stop the attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StopRequests {
    pub(crate) cancelled: bool,
    pub(crate) dropped: Option<DropReason>,
}

impl State {
    /// Nothing more can be reported. True after the end as well, because a clone of the context may
    /// outlive the attempt.
    fn must_stop(&self) -> bool {
        self.cancelled || self.dropped.is_some() || self.ended
    }

    fn has_room(&self) -> bool {
        self.unacked.len() < limits::UNACKED_REPORTS_MAX && self.unacked_bytes < BYTES_AHEAD_MAX
    }

    /// The number of the last acknowledged report.
    fn acked(&self) -> u32 {
        self.reported - self.unacked.len() as u32
    }

    fn ack(&mut self, number: u32) {
        while self.acked() < number
            && let Some(report) = self.unacked.pop_front()
        {
            self.unacked_bytes -= report.len();
        }
    }
}

/// A released slot, while the attempt waits for another agent.
pub(crate) struct ReleasedSlot<'a>(&'a Attempt);

impl ReleasedSlot<'_> {
    /// Requests the slot again and returns when the agent may compute.
    pub(crate) async fn reacquire(self) -> Result<(), ReportRefused> {
        let attempt = self.0;
        drop(self);
        attempt.wait_to_run(|_| true).await
    }
}

impl Drop for ReleasedSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let update = state.slot.end_wait();
        self.0.send_slot_update(&state, update);
    }
}

impl Attempt {
    pub(crate) fn new(
        key: Key,
        assign: v1::Assign,
        names: Arc<AgentNames>,
        outbox: Arc<Outbox>,
        channel: Arc<CoordinatorChannel>,
        metrics: Arc<AgentMetrics>,
    ) -> Self {
        let (saved, restored) = match assign.checkpoint.map(CheckpointEnvelope::decode) {
            None => (CheckpointEnvelope::default(), Restored::Nothing),
            Some(Ok(saved)) => {
                let bytes = saved.bytes.clone();
                (saved, Restored::Checkpoint(bytes))
            }
            Some(Err(_)) => (CheckpointEnvelope::default(), Restored::Unreadable),
        };
        let answers = assign.answers.into_iter();
        let state = State {
            epoch: outbox.epoch(),
            answers: answers.map(|a| (a.key.clone(), a.into())).collect(),
            asks: saved.asks,
            delegations: saved.delegations,
            clock: Clock::new(assign.remaining_ms, Instant::now()),
            ..State::default()
        };
        Self {
            key,
            names,
            context_id: assign.context_id,
            message: assign.message.unwrap_or_default(),
            tracing: Mutex::new(Tracing::new(&assign.traceparent, &assign.tracestate)),
            restored,
            token: assign.token,
            channel,
            metrics,
            task_id: assign.task_id,
            outbox,
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(crate) fn task_id(&self) -> &str {
        &self.task_id
    }

    // Called by the agent.

    /// Queues a report once the attempt is not too far ahead of its acknowledgements
    /// (backpressure).
    pub(crate) async fn report(&self, body: Body) -> Result<(), ReportRefused> {
        let mut body = Some(body);
        self.wait_to_run(|state| {
            let can_report = state.has_room();
            if can_report {
                self.report_now(state, body.take());
            }
            can_report
        })
        .await
    }

    /// Queues a report and sends it unless the agent is being polled.
    fn report_now(&self, state: &mut State, body: Option<Body>) {
        self.enqueue(state, body);
        // A report from a task that the agent spawned: no poll of the agent would send it.
        if !state.corked {
            self.send_pending(state);
        }
    }

    /// Waits until the agent may compute and `ready` agrees, or the agent has to stop.
    async fn wait_to_run(
        &self,
        mut ready: impl FnMut(&mut State) -> bool,
    ) -> Result<(), ReportRefused> {
        let done = self.until(|state| {
            if state.must_stop() {
                Some(Err(ReportRefused::Stopped))
            } else {
                (state.slot.may_run() && ready(state)).then_some(Ok(()))
            }
        });
        done.await
    }

    fn enqueue(&self, state: &mut State, body: Option<Body>) {
        state.reported += 1;
        let task_id = self.task_id.clone();
        let report =
            v1::Report { task_id, attempt: self.key.attempt, number: state.reported, body };
        let bytes = Bytes::from(report.encode_to_vec());
        state.unacked_bytes += bytes.len();
        state.unacked.push_back(bytes);
    }

    /// A checkpoint together with the counters.
    pub(crate) fn envelope(&self, bytes: Bytes) -> Bytes {
        let state = self.state.lock();
        let asks = state.asks;
        let delegations = state.delegations;
        drop(state);
        CheckpointEnvelope { asks, bytes, delegations }.encode_to_vec().into()
    }

    /// The default key of a delegation or a fan-out: its ordinal in the task.
    pub(crate) fn next_delegation(&self, kind: &str) -> String {
        let mut state = self.state.lock();
        state.delegations += 1;
        format!("{kind}-{}", state.delegations)
    }

    /// Releases the slot: the agent waits for another agent.
    pub(crate) fn release_slot(&self) -> ReleasedSlot<'_> {
        let mut state = self.state.lock();
        let update = state.slot.begin_wait();
        self.send_slot_update(&state, update);
        drop(state);
        // Waiters for the slot may run now.
        self.changed.notify_waiters();
        ReleasedSlot(self)
    }

    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.state.lock().clock.left(Instant::now())
    }

    pub(crate) fn set_reply(&self, message: a2a::Message) {
        self.state.lock().reply = Some(message);
    }

    /// The reply that the agent set, and whether the task is still unknown to its caller: neither
    /// this attempt nor an earlier one has reported anything.
    pub(crate) fn take_reply(&self) -> (Option<a2a::Message>, bool) {
        let mut state = self.state.lock();
        let is_unknown = state.reported == 0 && state.answers.is_empty();
        (state.reply.take(), is_unknown && matches!(self.restored, Restored::Nothing))
    }

    pub(crate) fn must_stop(&self) -> bool {
        self.state.lock().must_stop()
    }

    pub(crate) async fn stopping(&self) {
        self.until(|state| state.must_stop().then_some(())).await;
    }

    /// Waits until every report so far is durable.
    pub(crate) async fn settled(&self) -> Result<(), ReportRefused> {
        let reported = self.state.lock().reported;
        let settled = self.until(|state| {
            if state.must_stop() {
                Some(Err(ReportRefused::Stopped))
            } else {
                (state.acked() >= reported).then_some(Ok(()))
            }
        });
        settled.await
    }

    // Called by the runner.

    pub(crate) fn stop_requests(&self) -> StopRequests {
        let state = self.state.lock();
        StopRequests { cancelled: state.cancelled, dropped: state.dropped }
    }

    pub(crate) async fn cancelled(&self) {
        self.until(|state| state.cancelled.then_some(())).await;
    }

    pub(crate) async fn dropped(&self) {
        self.until(|state| state.dropped.map(|_| ())).await;
    }

    /// Holds reports back until [`uncork`](Self::uncork): they leave in one message.
    pub(crate) fn cork(&self) {
        self.state.lock().corked = true;
    }

    pub(crate) fn uncork(&self) {
        let mut state = self.state.lock();
        state.corked = false;
        self.send_pending(&mut state);
    }

    /// Queues the final report and sends everything that was held back. The final report ignores
    /// the flow control, and nothing follows it. `None`: the coordinator expects no final report.
    pub(crate) fn end(&self, body: Option<Body>) {
        let mut state = self.state.lock();
        state.ended = true;
        if body.is_some() {
            self.enqueue(&mut state, body);
            self.send_pending(&mut state);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Passes new reports to the connection. The lock on `state` keeps their order.
    fn send_pending(&self, state: &mut State) {
        let new = (state.reported - state.sent) as usize;
        if new == 0 {
            return;
        }
        let reports = state.unacked.iter().skip(state.unacked.len() - new).cloned();
        if self.outbox.push(state.epoch, reports) {
            state.sent = state.reported;
        }
    }

    /// Sends a slot update, if there is one. An update that is lost with its connection is sent
    /// again on the next.
    fn send_slot_update(&self, state: &State, update: SlotUpdate) {
        if let Some(released) = update
            && !state.must_stop()
        {
            let task_id = self.task_id.clone();
            let slot = v1::Slot { task_id, attempt: self.key.attempt, released };
            self.outbox.push_slot(state.epoch, slot);
        }
    }

    // Called by the connection.

    /// The entry of this attempt in the hello of a new connection.
    pub(crate) fn held_entry(&self) -> v1::Held {
        let waits = !self.state.lock().slot.is_held();
        v1::Held { task_id: self.task_id.clone(), attempt: self.key.attempt, waits }
    }

    /// Drops the durable reports. `true`: the attempt is over and fully acknowledged.
    pub(crate) fn ack(&self, number: u32) -> bool {
        let mut state = self.state.lock();
        state.ack(number);
        let is_over = state.ended && state.unacked.is_empty();
        drop(state);
        self.changed.notify_waiters();
        is_over
    }

    /// Continues on the connection of `epoch`; its coordinator has all reports up to `acked`.
    /// `true`: the attempt is over and fully acknowledged.
    pub(crate) fn resume(&self, epoch: u64, acked: u32) -> bool {
        let mut state = self.state.lock();
        state.ack(acked);
        state.epoch = epoch;
        state.sent = state.acked();
        self.send_slot_update(&state, state.slot.resend());
        self.send_pending(&mut state);
        drop(state);
        self.ack(acked)
    }

    pub(crate) fn cancel(&self) {
        self.state.lock().cancelled = true;
        self.changed.notify_waiters();
    }

    pub(crate) fn drop_agent(&self, why: DropReason) {
        self.state.lock().dropped = Some(why);
        self.changed.notify_waiters();
    }

    pub(crate) fn slot_granted(&self) {
        self.state.lock().slot.granted();
        self.changed.notify_waiters();
    }

    /// Waits until `ready` returns a value; `ready` runs again after every change.
    async fn until<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            // Registered before the check, so that no change between check and wait is lost.
            let changed = self.changed.notified();
            if let Some(found) = ready(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }
}
