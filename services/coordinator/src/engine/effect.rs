//! Effects: the work that follows a step once the store has confirmed it (the outbox of group commit).

use faultline_proto::{
    Failure,
    a2a::SendMessageResponse,
    id::{TaskId, WorkerId},
    v1::{self, Ack, ToWorker},
};

use tokio::sync::oneshot;

use crate::{
    engine::active_task::{Done, Waiter},
    telemetry::spans::EndedSpans,
};

/// Work that waits for a commit. It is carried out in the order of the queue, once the write it
/// belongs to and everything before it are durable, and dropped if that write is refused.
pub(crate) enum Effect {
    Tell(WorkerId, Box<ToWorker>),
    /// The same, and the attempt counts as handed over.
    Assign(WorkerId, Box<v1::Assign>),
    Ack(WorkerId, Ack),
    Answer(Done, Box<SendMessageResponse>),
    /// The same for a caller whose own step was queued before.
    Reply(Box<Waiter>, Box<SendMessageResponse>),
    /// Operators who watch are told that the task changed, or is gone.
    Note(TaskId),
    /// Rejects a call because of a state that was not durable when the call was decided.
    Reject(Done, Box<Failure>),
    /// Tells the task that queued the write how it ended.
    Receipt(oneshot::Sender<WriteResult>),
    /// Runs after the state lock is released.
    Run(Box<dyn FnOnce() + Send>),
}

impl From<EndedSpans> for Effect {
    fn from(spans: EndedSpans) -> Self {
        Self::Run(Box::new(move || spans.send()))
    }
}

/// How a write ended.
#[derive(Debug)]
pub(crate) enum WriteResult {
    Done,
    /// Another coordinator changed the row first (optimistic concurrency): nothing was written.
    Conflict,
    /// The store failed: it may have been written or not.
    Unknown(Failure),
}
