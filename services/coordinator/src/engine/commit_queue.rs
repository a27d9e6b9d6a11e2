//! The group-commit queue: writes in order, and the effects of each write once it is durable.
//! Contains no task logic and no store access.

use faultline_chassis::limits;
use faultline_proto::{id::TaskId, v1::Event};

use crate::{engine::effect::Effect, store::Write};

/// The events and effects of one write, or of no write, that are published once everything queued
/// before them is durable.
///
/// Queued under the state lock. It lives until its batch is confirmed and published, or refused.
pub(crate) struct PostCommit {
    /// False: an entry without a write, which only waits for the writes before it.
    pub(crate) wrote: bool,
    /// The write belongs to the same transaction as the write before it.
    pub(crate) same_transaction_as_previous: bool,
    /// The task, its first new event and all new events, for watchers.
    pub(crate) task: Option<(TaskId, u64, Vec<Event>)>,
    /// The entry is valid only if the queued writes of this task before it are confirmed.
    pub(crate) depends_on_task: Option<TaskId>,
    pub(crate) effects: Vec<Effect>,
}

impl PostCommit {
    fn concerns(&self, id: TaskId) -> bool {
        self.depends_on_task == Some(id) || self.task.as_ref().is_some_and(|task| task.0 == id)
    }
}

#[derive(Default)]
pub(crate) struct CommitQueue {
    pub(crate) writes: Vec<Write>,
    pub(crate) post_commits: Vec<PostCommit>,
}

impl CommitQueue {
    /// Takes out the entries of a task that build on a refused write.
    pub(crate) fn withdraw(&mut self, id: TaskId) -> Vec<PostCommit> {
        let is_its = |post_commit: &PostCommit| post_commit.concerns(id);
        if !self.post_commits.iter().any(is_its) {
            return Vec::new();
        }
        let mut writes = std::mem::take(&mut self.writes).into_iter();
        let mut withdrawn = Vec::new();
        for post_commit in std::mem::take(&mut self.post_commits) {
            let write = if post_commit.wrote { writes.next() } else { None };
            if is_its(&post_commit) {
                withdrawn.push(post_commit);
                continue;
            }
            self.writes.extend(write);
            self.post_commits.push(post_commit);
        }
        withdrawn
    }

    /// The number of writes for the next batch, bounded by count and bytes.
    pub(crate) fn fitting(&self) -> usize {
        let (mut writes, mut bytes) = (self.writes.iter(), 0);
        let fits = |post_commit: &&PostCommit| {
            let before = bytes;
            if post_commit.wrote {
                bytes += writes.next().map_or(0, Write::bytes);
            }
            before == 0 || bytes <= limits::STORE_BATCH_BYTES_MAX
        };
        self.post_commits.iter().take(limits::STORE_BATCH_MAX).take_while(fits).count()
    }

    /// Puts the last write into the same transaction as the write before it.
    pub(crate) fn bind_last(&mut self) {
        if let Some(last) = self.post_commits.last_mut() {
            last.same_transaction_as_previous = true;
        }
    }
}
