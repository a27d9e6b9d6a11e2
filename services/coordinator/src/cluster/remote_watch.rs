//! Watches of tasks that another coordinator owns. After a notification or a periodic look, the new
//! events are read from the store and passed on in order, each once, like events of local tasks.

use crate::engine::effect::WriteResult;
use crate::engine::remote_watch::RemoteWatch;
use crate::task::confirmed::Confirmed;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::TaskState,
    id::TaskId,
    reason,
    v1::{Event, event},
};
use futures::{StreamExt, stream};
use prost::Message;
use tokio::sync::mpsc::{self};

use crate::{
    engine::{
        active_task::{ActiveTask, Seen, Until, Waiter, message_response, task_response},
        core::{Core, State},
        effect::Effect,
    },
    error::Error,
    store::{Notice, Scope, Write},
    task::{Task, is_final, is_waiting},
};

/// Events read in one query.
const PAGE: usize = 256;
/// Tasks refreshed concurrently.
const AT_ONCE: usize = 16;

impl State {
    /// Watches a remote task: confirmed events, starting after `after` or earlier.
    pub(crate) fn follow(&mut self, id: TaskId, after: u64) -> mpsc::Receiver<Seen> {
        let (watcher, events) = mpsc::channel(limits::SUBSCRIBER_EVENTS_MAX);
        let followed = self.remote_watches.entry(id).or_insert_with(|| RemoteWatch::new(after));
        followed.watchers.retain(|w| !w.is_closed());
        followed.watchers.push(watcher);
        self.remote_dirty.insert(id);
        events
    }

    /// Waits for a remote task to end or ask. It had done neither when it was read.
    pub(crate) fn wait_for_remote_task(&mut self, task: &Task, waiter: Waiter) {
        let (id, seq) = (task.id, task.seq);
        let waiter = Waiter { min_seq: seq, ..waiter };
        match self.tasks.get_mut(&id) {
            Some(active) => {
                active.waiters.push(waiter);
                self.answer_settled(id);
            }
            None => {
                let followed =
                    self.remote_watches.entry(id).or_insert_with(|| RemoteWatch::new(seq));
                followed.waiters.push(waiter);
                followed.context_id.clone_from(&task.context_id);
                self.remote_dirty.insert(id);
            }
        }
    }

    /// Converts a task that a peer has taken into a remote watch, so that its waiters keep waiting.
    /// The watchers read on from the store by themselves.
    pub(crate) fn convert_to_remote_watch(&mut self, id: TaskId, active: ActiveTask) {
        if active.waiters.is_empty() {
            return;
        }
        let published = active.published;
        let followed = self.remote_watches.entry(id).or_insert_with(|| RemoteWatch::new(published));
        followed.confirmed = followed.confirmed.max(published);
        followed.may_reply_without_task = active.may_reply_without_task;
        followed.context_id.clone_from(&active.pending().context_id);
        followed.key = active.key;
        followed.waiters.extend(active.waiters);
        self.remote_dirty.insert(id);
    }

    /// A write from the time when the task was owned here turned out to be durable.
    pub(crate) fn confirm_remote(&mut self, id: TaskId, last: u64) {
        if let Some(followed) = self.remote_watches.get_mut(&id) {
            followed.confirmed = followed.confirmed.max(last);
            self.remote_dirty.insert(id);
        }
    }

    /// Ends the remote watch of a task that is now owned here, and moves its waiters to the task.
    pub(crate) fn take_remote_watch(&mut self, id: TaskId) {
        let Some(followed) = self.remote_watches.remove(&id) else { return };
        let Some(active) = self.tasks.get_mut(&id) else { return };
        active.waiters.extend(followed.waiters);
        active.may_reply_without_task =
            followed.may_reply_without_task && active.pending().reported == 0;
        active.key = followed.key.filter(|_| active.may_reply_without_task);
        // The channels of the watchers are closed, so they join again.
        self.answer_settled(id);
    }

    /// False: the watch has no watcher or waiter left and was removed.
    fn is_still_watched(&mut self, id: &TaskId) -> bool {
        let matters = self.remote_watches.get(id).is_some_and(RemoteWatch::matters);
        if !matters {
            self.remote_watches.remove(id);
        }
        matters
    }

    /// Answers the waiters whose condition holds already.
    pub(crate) fn answer_settled(&mut self, id: TaskId) {
        let Some(active) = self.tasks.get_mut(&id) else { return };
        let begun = active.pending().reported > 0;
        let (settled, seq) = (is_waiting(active.pending().state), active.pending().seq);
        let waiters = std::mem::take(&mut active.waiters);
        let done = |waiter: &Waiter| {
            waiter.min_seq <= seq && (settled || begun && waiter.until == Until::FirstReport)
        };
        let (over, later): (Vec<_>, Vec<_>) = waiters.into_iter().partition(done);
        active.waiters = later;
        for waiter in over {
            waiter.call.map(|call| self.calls.remove(&call));
            let Some(active) = self.tasks.get(&id) else { return };
            let task = active.response_on_commit(waiter.history);
            self.after_writes_of(id, Effect::Reply(Box::new(waiter), Box::new(task)));
        }
    }

    /// Whether the task has a watcher or a waiter here, wherever it is owned.
    pub(crate) fn is_followed_here(&self, id: TaskId) -> bool {
        let active = self.tasks.get(&id).is_some_and(|active| active.is_followed());
        active || self.remote_watches.get(&id).is_some_and(RemoteWatch::is_followed)
    }

    /// Whether the notification loop has anything to do.
    pub(crate) fn has_cluster_work(&self) -> bool {
        self.is_shared
            && (!self.remote_dirty.is_empty()
                || !self.remote_to_cancel.is_empty()
                || self.has_spare_capacity)
    }

    /// Marks the watched tasks among these as changed.
    pub(crate) fn mark_remote_dirty(&mut self, ids: &[TaskId]) {
        let known = ids.iter().filter(|id| self.remote_watches.contains_key(id));
        self.remote_dirty.extend(known.copied());
    }
}

impl Core {
    /// Passes on the new events of all changed remote watches.
    pub(crate) async fn refresh_remote_watches(self: &Arc<Self>) {
        let (watched, awaited) = {
            let mut state = self.lock();
            let mut ids = std::mem::take(&mut state.remote_dirty);
            ids.retain(|id| state.is_still_watched(id));
            let ids = ids.into_iter();
            let is_watched = |id: &TaskId| !state.remote_watches[id].watchers.is_empty();
            ids.partition::<Vec<_>, _>(is_watched)
        };
        // Waiters need no events before the one that they wait for.
        let settled = match self.settled(awaited).await {
            Ok(settled) => settled,
            Err(error) => return tracing::debug!(%error, "watched remote tasks cannot be read"),
        };
        stream::iter(watched.into_iter().map(|id| (id, true)))
            .chain(stream::iter(settled.into_iter().map(|id| (id, false))))
            .for_each_concurrent(AT_ONCE, |(id, is_watched)| async move {
                let caught_up = if is_watched {
                    self.catch_up(id).await
                } else {
                    self.answer_followed(id).await
                };
                if let Err(error) = caught_up {
                    // The next look comes soon.
                    tracing::debug!(task.id = %id, %error, "watched remote task cannot be read");
                }
            })
            .await;
    }

    /// The tasks among these whose waiters may be answered.
    async fn settled(&self, ids: Vec<TaskId>) -> Result<Vec<TaskId>, Error> {
        if ids.is_empty() {
            return Ok(ids);
        }
        let rows = self.store.rows(ids.clone()).await?;
        let found: HashMap<_, _> = rows.into_iter().map(|row| (row.id, row)).collect();
        let state = self.lock();
        let is_settled = |id: &TaskId| {
            // A task without a row is gone, which the waiters must learn.
            let Some(row) = found.get(id) else { return true };
            let settled = is_final(row.state) || is_waiting(row.state);
            let first = |waiter: &Waiter| waiter.until == Until::FirstReport;
            let waits_for_first =
                || state.remote_watches.get(id).is_some_and(|f| f.waiters.iter().any(first));
            settled || row.reported > 0 && waits_for_first()
        };
        Ok(ids.into_iter().filter(is_settled).collect())
    }

    async fn catch_up(self: &Arc<Self>, id: TaskId) -> Result<(), Error> {
        loop {
            let seq = {
                let mut state = self.lock();
                let Some(followed) = state.remote_watches.get(&id) else { return Ok(()) };
                if !followed.matters() {
                    state.remote_watches.remove(&id);
                    return Ok(());
                }
                followed.seq
            };
            let stored = self.store.events(id, seq, PAGE).await?;
            if stored.is_empty() && self.store.rows(vec![id]).await?.is_empty() {
                // Watchers read the store themselves and find that the task is gone.
                if let Some(followed) = self.lock().remote_watches.get_mut(&id) {
                    followed.watchers.clear();
                }
                return self.answer_followed(id).await;
            }
            let more = stored.len() == PAGE;
            let mut events = Vec::with_capacity(stored.len());
            for event in stored {
                let damaged = |e: prost::DecodeError| Error::Store { detail: e.to_string() };
                events.push((event.seq, Arc::new(Event::decode(event.body).map_err(damaged)?)));
            }
            let has_waiters = {
                let mut state = self.lock();
                let Some(followed) = state.remote_watches.get_mut(&id) else { return Ok(()) };
                events.iter().for_each(|(seq, event)| followed.publish(*seq, event));
                let ended = |event: &Arc<Event>| matches!(event.body, Some(event::Body::Ended(_)));
                if events.iter().any(|(_, event)| ended(event)) {
                    // The task has ended: the watchers have its last event.
                    followed.watchers.clear();
                }
                !followed.waiters.is_empty()
            };
            if !more {
                return if has_waiters { self.answer_followed(id).await } else { Ok(()) };
            }
        }
    }

    /// Answers the waiters whose condition holds now.
    async fn answer_followed(self: &Arc<Self>, id: TaskId) -> Result<(), Error> {
        let Some(stored) = self.store.task(id, Scope::default()).await? else {
            let gone = Failure::from(Error::TaskNotFound(id.to_string()));
            let waiters = self.take_waiters(id, |_| true);
            waiters.into_iter().for_each(|waiter| (waiter.done)(Err(gone.clone().into())));
            return Ok(());
        };
        let task = stored.task;
        let settled = task.is_final() || is_waiting(task.state);
        let begun = settled || task.reported > 0;
        if settled && self.answer_with_message(&task).await {
            return Ok(());
        }
        let waiters = self.take_waiters(id, |waiter| match waiter.until {
            _ if waiter.min_seq > task.seq => false,
            Until::Settled => settled,
            Until::FirstReport => begun,
        });
        for waiter in waiters {
            (waiter.done)(Ok(task_response(Confirmed::of(&task).to_a2a(waiter.history, true))));
        }
        Ok(())
    }

    fn take_waiters(&self, id: TaskId, over: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let mut state = self.lock();
        let Some(followed) = state.remote_watches.get_mut(&id) else { return Vec::new() };
        let waiters = std::mem::take(&mut followed.waiters);
        let confirmed = followed.confirmed;
        let over = |waiter: &Waiter| waiter.depends_on_seq <= confirmed && over(waiter);
        let (over, later): (Vec<_>, Vec<_>) = waiters.into_iter().partition(over);
        followed.waiters = later;
        followed.may_reply_without_task &= over.is_empty();
        if !followed.matters() {
            state.remote_watches.remove(&id);
        }
        for waiter in &over {
            waiter.call.map(|call| state.calls.remove(&call));
        }
        over
    }

    /// Answers with the bare message of the agent, if the owner stored it as the end of a task
    /// because its waiter was here. No caller has seen a task, so the task is erased.
    async fn answer_with_message(self: &Arc<Self>, task: &Task) -> bool {
        let may_reply_without_task = {
            let state = self.lock();
            state
                .remote_watches
                .get(&task.id)
                .is_some_and(|followed| followed.may_reply_without_task)
        };
        let Some(message) = task.bare_message().filter(|_| may_reply_without_task) else {
            return false;
        };
        let (receipt, erased) = tokio::sync::oneshot::channel();
        self.change(|state| {
            let key =
                state.remote_watches.get_mut(&task.id).and_then(|followed| followed.key.take());
            let key = key.map(|mut key| {
                key.reply = Some(message.encode_to_vec().into());
                key
            });
            let erase = Write::Erase { id: task.id, from: task.version, key };
            state.commit_write(erase, vec![Effect::Receipt(receipt)]);
        });
        if !matches!(erased.await, Ok(WriteResult::Done)) {
            return false;
        }
        for waiter in self.take_waiters(task.id, |_| true) {
            (waiter.done)(Ok(message_response(message.clone())));
        }
        true
    }

    /// Answers the waiters of a leaving coordinator with the id of their task, to be read
    /// elsewhere.
    pub(crate) fn redirect_waiters(&self) {
        let (active, followed) = {
            let mut state = self.lock();
            let active: Vec<_> = state
                .tasks
                .iter_mut()
                .map(|(id, active)| (id, active.published, std::mem::take(&mut active.waiters)))
                .collect();
            let followed = state.remote_watches.drain();
            let followed: Vec<_> =
                followed.map(|(id, followed)| (id, followed.confirmed, followed.waiters)).collect();
            state.calls.clear();
            (active, followed)
        };
        for (id, confirmed, waiters) in active.into_iter().chain(followed) {
            for waiter in waiters {
                let stored = waiter.depends_on_seq <= confirmed;
                let error = if stored { moved(id) } else { Error::unanswered().into() };
                (waiter.done)(Err(error.into()));
            }
        }
    }

    /// Whether the coordinator has left. An atomic, because it is also read under the state lock.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Tells the owner that the task is watched here, so that its cancel-on-disconnect does not
    /// fire.
    pub(crate) fn notify_watched(&self, id: TaskId) {
        if let Some(cluster) = self.store.cluster() {
            cluster.tell(Notice::Followed(id));
        }
    }
}

/// The failure of a waiter that cannot be served here although its task is stored.
pub(crate) fn unserved(error: Error, id: TaskId) -> Failure {
    match error {
        Error::Leaving => moved(id),
        other => other.into(),
    }
}

/// The task continues at another coordinator, where the caller can read it.
fn moved(id: TaskId) -> Failure {
    Failure::new(&reason::UNAVAILABLE)
        .because("the coordinator is leaving, and the task goes on: read it with GetTask")
        .with_task(id, "")
        .with_retryable(true)
        .with_retry_after(limits::MOVED_RETRY_AFTER)
}

impl Task {
    /// The bare message, if the events contain nothing else.
    fn bare_message(&self) -> Option<&faultline_proto::a2a::Message> {
        let alone = self.state == TaskState::Completed && self.artifact_bytes() == 0;
        self.status_message.as_ref().filter(|_| alone && self.reported == 1 && self.attempt == 1)
    }
}
