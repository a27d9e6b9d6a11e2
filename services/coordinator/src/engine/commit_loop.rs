//! The commit loop (group commit) and its failures. A failed batch discards the in-memory state,
//! which is read again from the store. A conflict (optimistic concurrency) rolls back one task. A
//! store without a writer ends the coordinator.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    clock::now,
    engine::{
        active_task::{CallError, Waiter},
        commit_queue::{CommitQueue, PostCommit},
        core::{Closed, Core, State},
        effect::{Effect, WriteResult},
        store_outage,
    },
    error::Error,
    store::{WriteError, Written},
};

/// Pause before the store is read again.
const READ_PAUSE: Duration = Duration::from_secs(1);

impl Core {
    /// Group commit: the queued writes are committed in one batch, and the previous batch is
    /// published while the disk works. Returns only if the writer of the store is gone.
    pub(crate) async fn write(self: &Arc<Self>) {
        let (mut confirmed, mut clock) = (Vec::new(), store_outage::clock());
        loop {
            if let Some(lapsed) = self.take_lapse() {
                self.publish(std::mem::take(&mut confirmed));
                self.recover_from(lapsed, Vec::new()).await;
                continue;
            }
            let CommitQueue { writes, mut post_commits } = self.take_batch();
            if post_commits.is_empty() {
                self.publish(std::mem::take(&mut confirmed));
                if self.go_idle() {
                    self.work.notified().await;
                }
                continue;
            }
            let (expected, since) = (writes.len(), Instant::now());
            let answer = (expected > 0).then(|| self.store.commit(writes));
            self.publish(std::mem::take(&mut confirmed));
            let written = match answer {
                Some(answer) => self.await_store(&mut clock, answer, &mut post_commits).await,
                None => Ok(Written::new()),
            };
            let Ok(written) = written else {
                // The writer is gone: after a recovery, new calls would be accepted and never
                // written.
                tracing::error!("the writer of the store is gone: the coordinator ends");
                return self.forget(&gone(), post_commits);
            };
            if expected > 0 {
                self.meters.commits.record(since.elapsed());
                self.meters.batches.record_size(expected);
            }
            if let Some(error) = failure_of(&written, expected) {
                self.recover_from(error, post_commits).await;
                continue;
            }
            let (mut written, mut refused) = (written.into_iter(), HashSet::new());
            for post_commit in post_commits {
                let is_so = !post_commit.depends_on_task.is_some_and(|id| refused.contains(&id));
                if post_commit.wrote && written.next() != Some(Ok(())) {
                    // In order: the remote change comes after the confirmed writes before it.
                    self.publish(std::mem::take(&mut confirmed));
                    refused.extend(post_commit.task.as_ref().map(|task| task.0));
                    self.undo_refused(post_commit).await;
                } else if post_commit.wrote || is_so {
                    confirmed.push(post_commit);
                } else {
                    answer_all(post_commit.effects, Vec::new(), &CallError::Conflict);
                }
            }
        }
    }

    /// Rolls back a task whose write lost a race with another coordinator (optimistic concurrency).
    /// The callers of the refused writes get a conflict, and the task is read again; other waiters
    /// keep waiting, also if another coordinator now owns the task.
    async fn undo_refused(self: &Arc<Self>, refused: PostCommit) {
        self.meters.conflicts.add(1);
        let failure = CallError::Conflict;
        answer_all(refused.effects, Vec::new(), &failure);
        let Some((id, first, _)) = refused.task else { return };
        tracing::warn!(task.id = %id, "write conflict: the step was rolled back");
        let found = loop {
            match self.find(id, first.saturating_sub(1)).await {
                Ok(found) => break found,
                Err(error) => {
                    tracing::error!(task.id = %id, %error, "task cannot be read after a rollback");
                    tokio::time::sleep(READ_PAUSE).await;
                }
            }
        };
        let (withdrawn, lost) = self.change(|state| {
            let withdrawn = state.queue.withdraw(id);
            let mut lost = state.take_dependent_waiters(id, first);
            lost.extend(state.rollback(id, found, now()));
            (withdrawn, lost)
        });
        let effects = withdrawn.into_iter().flat_map(|post_commit| post_commit.effects).collect();
        answer_all(effects, lost, &failure);
    }

    fn publish(&self, confirmed: Vec<PostCommit>) {
        self.touch(|state| state.publish(confirmed));
    }

    /// Marks the commit loop as idle. False: a write was queued meanwhile.
    fn go_idle(&self) -> bool {
        let mut state = self.lock();
        state.busy = false;
        state.queue.post_commits.is_empty()
    }

    fn take_batch(&self) -> CommitQueue {
        let batch = {
            let mut state = self.lock();
            state.busy = true;
            let queue = &mut state.queue;
            let count = queue.fitting();
            let same_transaction_as_previous = queue.post_commits[count..]
                .iter()
                .take_while(|f| f.same_transaction_as_previous)
                .count();
            let count = count + same_transaction_as_previous;
            let post_commits: Vec<_> = queue.post_commits.drain(..count).collect();
            let writes = post_commits.iter().filter(|f| f.wrote).count();
            CommitQueue { writes: queue.writes.drain(..writes).collect(), post_commits }
        };
        self.room.notify_waiters();
        batch
    }

    /// Recovers from a failed batch. The in-memory state is ahead of the store and is discarded,
    /// every waiting call gets an unknown outcome, and the store is read as after a restart.
    async fn recover_from(self: &Arc<Self>, error: WriteError, lost: Vec<PostCommit>) {
        tracing::error!(%error, "store failed: state is discarded and read again");
        self.forget(&error, lost);
        // The recovery begins a new lease.
        self.take_lapse();
        let recovery = async {
            while let Err(error) = self.recover().await {
                tracing::error!(%error, "the store cannot be read");
                tokio::time::sleep(READ_PAUSE).await;
            }
        };
        self.await_store(&mut store_outage::clock(), recovery, &mut []).await;
    }

    /// Discards the in-memory state, refuses new calls, and answers waiting calls: with their task
    /// if it is stored, otherwise with an unknown outcome.
    fn forget(&self, error: &WriteError, lost: Vec<PostCommit>) {
        self.meters.store_failures.add(1);
        let failure = CallError::from(Error::StoreSilent { detail: error.to_string() });
        let mut lost_waiters = Vec::new();
        let (queue, mut active) = {
            let mut state = self.lock();
            let meters = Arc::clone(&self.meters);
            let fresh =
                State::new(state.tokens.clone(), Arc::clone(&self.config), meters, state.is_shared);
            let mut old = std::mem::replace(&mut *state, fresh);
            state.next_session = old.next_session;
            state.closed = old.closed.or(Some(Closed::StoreFailed));
            state.feed = old.feed;
            state.feed.lose();
            state.remote_watches = std::mem::take(&mut old.remote_watches);
            state.early_disconnects = std::mem::take(&mut old.early_disconnects);
            if state.is_shared {
                // These tasks are stored, so their callers can follow them at their new owner.
                for (id, mut active) in old.tasks.take_stored() {
                    // The outcome of these waiters' own writes is unknown.
                    let unknown = |waiter: &mut Waiter| waiter.depends_on_seq > active.published;
                    lost_waiters.extend(active.waiters.extract_if(.., unknown));
                    state.convert_to_remote_watch(id, active);
                }
            }
            let known =
                old.calls.into_iter().filter(|(_, id)| state.remote_watches.contains_key(id));
            state.calls = known.collect();
            (old.queue, old.tasks)
        };
        let effects = lost.into_iter().chain(queue.post_commits).flat_map(|f| f.effects).collect();
        for active in active.values_mut() {
            let (answered, unknown) = active.take_timed_out_waiters();
            active.answers(answered).for_each(|(done, answer)| done(answer));
            lost_waiters.extend(unknown);
        }
        lost_waiters.extend(active.into_values().flat_map(|active| active.waiters));
        answer_all(effects, lost_waiters, &failure);
    }

    /// Reads every task that has not ended, and accepts calls.
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<(), Error> {
        let (tasks, offers) = (self.store.recover().await?, self.store.agents(None).await?);
        let unfinished = self.store.unfinished_pushes().await?;
        let now = now();
        self.change(|state| {
            offers.into_iter().for_each(|known| state.registry.restore(known));
            for task in tasks {
                state.load(task, now);
            }
            state.rebuild_task_tree(now);
            state.since = Instant::now();
            self.deliver_unfinished(state, unfinished);
            state.closed = state.closed.filter(|why| *why == Closed::Leaving);
            state.is_away = false;
        });
        Ok(())
    }

    /// Waits until nothing is on its way to the store, up to a bound.
    pub(crate) async fn flushed(&self) {
        for _ in 0..200 {
            let idle = {
                let state = self.lock();
                state.queue.post_commits.is_empty() && !state.busy
            };
            if idle {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Answers every call that waits for a write that was not made.
fn answer_all(effects: Vec<Effect>, waiters: Vec<Waiter>, error: &CallError) {
    for effect in effects {
        match effect {
            Effect::Answer(done, _) | Effect::Reject(done, _) => done(Err(error.clone())),
            Effect::Reply(waiter, _) => (waiter.done)(Err(error.clone())),
            Effect::Receipt(receipt) => drop(receipt.send(match error {
                CallError::Conflict => WriteResult::Conflict,
                CallError::Failed(failure) => WriteResult::Unknown(failure.clone()),
            })),
            _ => {}
        }
    }
    for waiter in waiters {
        (waiter.done)(Err(error.clone()));
    }
}

fn gone() -> WriteError {
    WriteError::Unavailable("the store's writer is gone".to_owned())
}

/// Why the whole batch failed, if it did. A conflict concerns its own write only.
fn failure_of(written: &Written, expected: usize) -> Option<WriteError> {
    if written.len() != expected {
        return Some(WriteError::Unavailable("the store answered something else".to_owned()));
    }
    let mut errors = written.iter().filter_map(|w| w.as_ref().err());
    errors.find(|e| **e != WriteError::Conflict).cloned()
}

#[cfg(test)]
mod tests;
