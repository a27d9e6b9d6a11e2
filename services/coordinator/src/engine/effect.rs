//! Effects: the work that follows a step once the store has confirmed it (the outbox of group commit).

use faultline_proto::{
    a2a::SendMessageResponse,
    id::{TaskId, WorkerId},
    v1::{self, Ack, ToWorker},
};

use crate::{
    engine::active_task::{Done, Waiter},
    telemetry::spans::EndedSpans,
};

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
    /// Under the lock, so it must be quick and must not ask for it.
    Run(Box<dyn FnOnce() + Send>),
}

impl From<EndedSpans> for Effect {
    fn from(spans: EndedSpans) -> Self {
        Self::Run(Box::new(move || spans.send()))
    }
}
