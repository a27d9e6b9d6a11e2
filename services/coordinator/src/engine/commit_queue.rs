//! What waits to be written, in order, and what follows of each step once it is durable. Knows
//! neither what a step means nor how it is written.

use faultline_chassis::limits;
use faultline_proto::{id::TaskId, v1::Event};

use crate::{engine::effect::Effect, store::Write};

/// What follows once a write, and everything queued before it, is durable.
pub(crate) struct PostCommit {
    /// False: it only waits for what was queued before it.
    pub(crate) wrote: bool,
    /// Goes into the same commit as the one before it.
    pub(crate) same_transaction_as_previous: bool,
    /// The task and its new events, for watchers.
    pub(crate) task: Option<(TaskId, u64, Vec<Event>)>,
    /// It tells of steps of this task that were queued before it: without them it is not so.
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
    /// Takes out the steps of a task, which are built on one that was refused.
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

    /// How many of them go into one commit: as many as there may be, unless they are large.
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

    /// What was queued last goes into the same commit as what was queued before it.
    pub(crate) fn bind_last(&mut self) {
        if let Some(last) = self.post_commits.last_mut() {
            last.same_transaction_as_previous = true;
        }
    }
}
