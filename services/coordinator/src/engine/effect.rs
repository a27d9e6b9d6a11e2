//! Effects: the work that follows a write once the store has confirmed it (the outbox of group
//! commit).

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

/// Work that waits for a commit. Queued under the state lock with its write, performed by `publish`
/// in the order of the queue when the write and everything before it are durable, and dropped if
/// the store refuses the write.
pub(crate) enum Effect {
    /// Sends a message to a worker.
    Tell(WorkerId, Box<ToWorker>),
    /// Sends an assignment to a worker. The attempt then counts as handed over.
    Assign(WorkerId, Box<v1::Assign>),
    /// Acknowledges the reports of a worker.
    Ack(WorkerId, Ack),
    /// Answers a call.
    Answer(Done, Box<SendMessageResponse>),
    /// Answers a waiter that was registered with the write.
    Reply(Box<Waiter>, Box<SendMessageResponse>),
    /// Notifies the operators' views that the task changed or is gone.
    Note(TaskId),
    /// Rejects a call because of a state that was not durable when the call was decided.
    Reject(Done, Box<Failure>),
    /// Reports the outcome of the write to the code that queued it.
    Receipt(oneshot::Sender<WriteResult>),
    /// Runs after the state lock is released.
    Run(Box<dyn FnOnce() + Send>),
}

impl From<EndedSpans> for Effect {
    fn from(spans: EndedSpans) -> Self {
        Self::Run(Box::new(move || spans.send()))
    }
}

/// The outcome of a write.
#[derive(Debug)]
pub(crate) enum WriteResult {
    Done,
    /// Another coordinator changed the row first (optimistic concurrency): nothing was written.
    Conflict,
    /// The store failed: the write may be stored or not.
    Unknown(Failure),
}
