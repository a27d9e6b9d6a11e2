//! A task that has not ended, in memory: its fold, who watches it and who waits for it. What is
//! shown to anybody is what the store has confirmed, never what is still on its way there.

use crate::calls::caller::CallKey;
use std::{sync::Arc, time::Duration};

use faultline_chassis::metrics::GaugeGuard;
use faultline_proto::{
    Failure,
    a2a::{self, SendMessageResponse, send_message_response::Payload},
    v1::Event,
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::AbortHandle,
    time::Instant,
};

use crate::{
    store::KeyRow,
    task::Task,
    telemetry::{metrics::AgentMeters, spans::Open},
};

pub(crate) struct ActiveTask {
    pub(crate) task: Task,
    /// When it became ours.
    pub(crate) owned_since: Instant,
    /// The last event the store has confirmed.
    pub(crate) published: u64,
    /// The last report of the current attempt the store has confirmed.
    pub(crate) acked: u32,
    /// The assignment of the current attempt was put on the worker's stream.
    pub(crate) assigned: bool,
    /// The answer may still turn out to be a bare message: nobody was told of a task.
    pub(crate) may_reply_without_task: bool,
    /// Under which it was sent, for as long as it may vanish: the key keeps the message then.
    pub(crate) key: Option<Box<KeyRow>>,
    /// How many of the answers the current attempt was told.
    pub(crate) answers_sent: usize,
    pub(crate) watchers: Vec<mpsc::Sender<Seen>>,
    pub(crate) waiters: Vec<Waiter>,
    /// Since when it waits for a slot.
    pub(crate) queued: Option<Instant>,
    /// Of its agent.
    pub(crate) meters: Arc<AgentMeters>,
    _active: GaugeGuard,
    /// Which of its spans are under way.
    pub(crate) open: Open,
}

/// A confirmed event on its way to a watcher.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) seq: u64,
    pub(crate) event: Arc<Event>,
}

/// Somebody who is answered later.
pub(crate) struct Waiter {
    pub(crate) until: Until,
    /// Names it, for a caller that gives up.
    pub(crate) call: Option<CallKey>,
    pub(crate) history: Option<i32>,
    /// The last event of the step that its caller asked for: should that be refused, it waits for
    /// what will never be. 0: it asked for none.
    pub(crate) depends_on_seq: u64,
    /// The last event that was there when it began to wait: what is older is no answer to it.
    pub(crate) min_seq: u64,
    /// The caller is an attempt of a task: it waits as long as the store takes.
    pub(crate) patient: bool,
    /// The task is cancelled so long after the caller gave up; `None`: it goes on.
    pub(crate) cancel_after: Option<Duration>,
    pub(crate) done: Done,
    /// Goes off when the caller's patience ends.
    pub(crate) _alarm: Option<Alarm>,
}

/// A task that is stopped when nobody needs it any more.
pub(crate) struct Alarm(pub(crate) AbortHandle);

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) type Done = Box<dyn FnOnce(Result<SendMessageResponse, Failure>) + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The agent has said anything: now it is known whether the answer is a task or a message.
    FirstReport,
    /// The task has ended or asks.
    Settled,
}

impl ActiveTask {
    pub(crate) fn new(task: Task, meters: Arc<AgentMeters>) -> Self {
        Self {
            owned_since: Instant::now(),
            published: task.seq,
            acked: task.reported,
            assigned: !task.worker.is_empty(),
            answers_sent: task.answers_known,
            open: Open::recalled(&task),
            task,
            may_reply_without_task: false,
            key: None,
            watchers: Vec::new(),
            waiters: Vec::new(),
            queued: None,
            _active: meters.active.guard(),
            meters,
        }
    }

    /// Passes confirmed events on. A watcher that does not keep up is let go; it reads on from the
    /// store and comes back.
    pub(crate) fn publish(&mut self, first: u64, events: Vec<Event>) {
        self.published = first + events.len() as u64 - 1;
        if self.watchers.is_empty() {
            return;
        }
        for (seq, event) in (first..).zip(events) {
            let seen = Seen { seq, event: Arc::new(event) };
            self.watchers.retain(|watcher| match watcher.try_send(seen.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    self.meters.lagged();
                    false
                }
                Err(TrySendError::Closed(_)) => false,
            });
        }
    }

    /// Does anybody still want to hear of it?
    pub(crate) fn is_followed(&self) -> bool {
        // Who has no call cannot give up: it belongs to a stream, which watches as well.
        let waits = self.waiters.iter().any(|waiter| waiter.call.is_some());
        waits || self.watchers.iter().any(|watcher| !watcher.is_closed())
    }

    /// Is what memory says what the store has confirmed?
    pub(crate) fn is_confirmed(&self) -> bool {
        self.published == self.task.seq
    }

    /// Takes out those who only waited for the first report.
    pub(crate) fn take_first_waiters(&mut self) -> Vec<Waiter> {
        let (first, later) = std::mem::take(&mut self.waiters)
            .into_iter()
            .partition(|waiter| waiter.until == Until::FirstReport);
        self.waiters = later;
        first
    }

    /// Answers everybody with the final task. The last one gets it without a copy.
    pub(crate) fn finish(self) {
        let mut waiters = self.waiters;
        let last = waiters.pop();
        for waiter in waiters {
            (waiter.done)(Ok(task_response(self.task.to_a2a(waiter.history, true))));
        }
        if let Some(waiter) = last {
            (waiter.done)(Ok(task_response(self.task.into_a2a(waiter.history))));
        }
    }
}

pub(crate) fn task_response(task: a2a::Task) -> SendMessageResponse {
    SendMessageResponse { payload: Some(Payload::Task(task)) }
}

pub(crate) fn message_response(message: a2a::Message) -> SendMessageResponse {
    SendMessageResponse { payload: Some(Payload::Message(message)) }
}
