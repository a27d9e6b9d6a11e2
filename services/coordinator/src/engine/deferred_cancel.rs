//! Deferred cancels: when a task of a remote agent is cancelled and no worker can deliver the
//! cancel, the cancel becomes a task of its own, in the same commit as the end. It waits for the
//! next worker that offers the agent, is retried, and survives a restart like any task.

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{Message, Part, Role, part::Content},
    id::{TaskId, WorkerId},
};
use prost_types::{Struct, Value, value::Kind};

use crate::{
    engine::{core::State, dispatch::NewTask},
    policy::retry::RetryRules,
    task::{Millis, Task},
};

/// The principal of deferred cancels, which only operators see. The prefix is reserved
/// (`access::check_principal`): a caller of this name could have its tasks run again.
const PRINCIPAL: &str = "faultline.dev/stops";
/// Metadata that marks a deferred cancel for the agent. The checkpoint names the work to stop.
const STOP_KEY: &str = "faultline.dev/stop";

/// Whether the task is a deferred cancel.
pub(crate) fn is_stop(task: &Task) -> bool {
    task.principal == PRINCIPAL
}

/// Retry rules of a deferred cancel: retried within its time budget, with exponential backoff.
pub(crate) fn rules(usual: RetryRules) -> RetryRules {
    RetryRules { retries: u32::MAX, cap: limits::DEFERRED_CANCEL_BACKOFF_MAX, ..usual }
}

impl State {
    /// Notes a task that is about to end from outside. Without a worker that can be told, its
    /// cancel is deferred.
    pub(crate) fn note_undelivered_cancel(&mut self, id: TaskId) {
        let Some(active) = self.tasks.get(&id) else { return };
        let task = active.pending();
        let worker = task.worker.parse::<WorkerId>().ok();
        let worker = worker.and_then(|worker| self.registry.workers.get(&worker));
        let delivers = self.registry.agents.get(task.runner());
        let delivers = delivers.is_some_and(|agent| agent.offer.delivers_stops);
        let is_told = worker.is_some_and(|worker| worker.is_attached());
        if delivers && !is_told && task.checkpoint.is_some() && !is_stop(task) {
            self.undelivered_cancels.push(id);
        }
    }

    /// Queues the deferred cancels behind the ends that they belong to, in the same transaction.
    pub(crate) fn enqueue_deferred_cancels(&mut self, now: Millis) {
        for id in std::mem::take(&mut self.undelivered_cancels) {
            let Some(active) = self.tasks.get(&id) else { continue };
            let agent = active.pending().runner().to_owned();
            let trace = active.pending().run_trace();
            let checkpoint = active.pending().checkpoint.clone();
            tracing::info!(task = %id, agent, "cancel is deferred until a worker offers the agent");
            let stop = NewTask {
                id: TaskId::new(),
                principal: PRINCIPAL.to_owned(),
                agent,
                context_id: active.pending().context_id.clone(),
                message: order(id),
                trace,
                parent: None,
                limit: Some(limits::DEFERRED_CANCEL_RETENTION),
                may_message: false,
                checkpoint,
            };
            self.submit(stop, None, now, |_| {});
        }
    }
}

fn order(stopped: TaskId) -> Message {
    let value = Value { kind: Some(Kind::StringValue(stopped.to_string())) };
    let text = format!("stop what was started for task {stopped}");
    Message {
        message_id: uuid::Uuid::now_v7().to_string(),
        role: Role::User as i32,
        parts: vec![Part { content: Some(Content::Text(text)), ..Part::default() }],
        metadata: Some(Struct { fields: [(STOP_KEY.to_owned(), value)].into() }),
        ..Message::default()
    }
}
