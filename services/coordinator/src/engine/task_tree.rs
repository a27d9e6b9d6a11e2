//! The tree of delegated tasks that live: bounds the descendants of a task, and ends children with
//! their parent. A task without parent and children is not in the tree.

use std::collections::{HashMap, VecDeque};

use faultline_chassis::limits;
use faultline_proto::{id::TaskId, v1::Parent};

use crate::{
    calls::caller::CallingAttempt,
    engine::core::State,
    error::Error,
    task::{Millis, a2a_view::cancelled},
};

/// The live tasks with parents or children, by id. Part of the state and changed under its lock.
#[derive(Default)]
pub(crate) struct TaskTree(HashMap<TaskId, Node>);

#[derive(Default)]
struct Node {
    parent: Option<TaskId>,
    children: Vec<Child>,
    /// Live tasks below this one, at any depth.
    descendants: usize,
    /// The task has ended. The node stays while live descendants count above it.
    is_gone: bool,
}

#[derive(Clone, Copy)]
struct Child {
    id: TaskId,
    detached: bool,
}

impl TaskTree {
    /// Adds a live child, with its own descendants.
    fn join(&mut self, parent: TaskId, id: TaskId, detached: bool) {
        let child = self.0.entry(id).or_default();
        if child.parent.is_some() {
            return;
        }
        child.parent = Some(parent);
        let more = 1 + child.descendants;
        self.0.entry(parent).or_default().children.push(Child { id, detached });
        self.count(parent, |descendants| descendants + more);
    }

    /// Adds a detached child whose parent has ended already.
    fn join_gone(&mut self, parent: TaskId, id: TaskId) {
        self.join(parent, id, true);
        if let Some(node) = self.0.get_mut(&parent) {
            node.is_gone = true;
        }
    }

    /// Removes an ended task and returns the children that end with it. Detached children and their
    /// descendants still count at the ancestors, so that the bound holds.
    fn leave(&mut self, id: TaskId) -> Vec<TaskId> {
        let Some(node) = self.0.get(&id).filter(|node| !node.is_gone) else { return Vec::new() };
        let ending = node.children.iter().filter(|child| !child.detached);
        let ending: Vec<_> = ending.map(|child| child.id).collect();
        let size = |id: &TaskId| 1 + self.0.get(id).map_or(0, |node| node.descendants);
        let gone = ending.iter().map(size).sum::<usize>();
        for child in &ending {
            if let Some(node) = self.0.get_mut(child) {
                node.parent = None;
            }
        }
        let Some(node) = self.0.get_mut(&id) else { return ending };
        node.is_gone = true;
        node.children.retain(|child| child.detached);
        node.descendants = node.descendants.saturating_sub(gone);
        let parent = node.parent;
        if let Some(parent) = parent.and_then(|parent| self.0.get_mut(&parent)) {
            // A detached child does not end with its parent.
            parent.children.retain(|child| child.id != id);
        }
        if let Some(parent) = parent {
            self.count(parent, |descendants| descendants.saturating_sub(1 + gone));
        }
        self.forget_empty(id);
        ending
    }

    /// Live tasks below the topmost known ancestor, or below the task itself.
    fn below_root(&self, id: TaskId) -> usize {
        let mut at = self.0.get(&id);
        while let Some(above) = at.and_then(|node| self.0.get(&node.parent?)) {
            at = Some(above);
        }
        at.map_or(0, |root| root.descendants)
    }

    fn count(&mut self, from: TaskId, change: impl Fn(usize) -> usize) {
        let mut at = Some(from);
        while let Some(node) = at.and_then(|id| self.0.get_mut(&id)) {
            node.descendants = change(node.descendants);
            at = node.parent;
        }
    }

    /// Removes nodes without children: ended tasks, and from there upwards ancestors without a
    /// parent.
    fn forget_empty(&mut self, id: TaskId) {
        let mut at = Some(id);
        while let Some(id) = at {
            let empty =
                |node: &&Node| node.descendants == 0 && (node.is_gone || node.parent.is_none());
            let Some(parent) = self.0.get(&id).filter(empty).map(|node| node.parent) else {
                return;
            };
            self.0.remove(&id);
            at = parent;
        }
    }

    /// Whether the task is known and not known to have ended.
    fn lives(&self, id: &TaskId) -> bool {
        self.0.get(id).is_some_and(|node| !node.is_gone)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl State {
    /// Whether this attempt may delegate. Checked under the same lock as the delegation.
    pub(crate) fn check_current(&self, calling: &CallingAttempt) -> Result<(), Error> {
        match self.tasks.get(&calling.task) {
            Some(active) if active.pending().is_current(calling.attempt) => Ok(()),
            _ => Err(self.not_current()),
        }
    }

    /// The error for an attempt that is not current here. With peers it is retryable, and
    /// `Core::authenticate_attempt_with_store` decides.
    pub(crate) fn not_current(&self) -> Error {
        if self.is_shared { Error::NotOwner } else { Error::AttemptOver }
    }

    /// Peers may own tasks that are not here.
    pub(crate) fn may_be_remote(&self) -> bool {
        self.is_shared && !self.registry.peer_load.is_empty()
    }

    /// The parentage of a new child, within the bounds of depth and count.
    pub(crate) fn parentage(&self, calling: &CallingAttempt) -> Result<Parent, Error> {
        let Some(active) = self.tasks.get(&calling.task) else { return Err(Error::AttemptOver) };
        let depth = active.pending().depth() + 1;
        if depth > limits::DELEGATION_DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        if self.task_tree.below_root(calling.task) >= limits::DESCENDANTS_MAX {
            return Err(Error::TooManyDescendants);
        }
        Ok(Parent {
            task_id: calling.task.to_string(),
            key: calling.key.clone(),
            depth,
            detached: calling.detached,
        })
    }

    /// Adds a task that was created or read from the store to the tree.
    pub(crate) fn join_task_tree(&mut self, id: TaskId, now: Millis) {
        let parent = self.tasks.get(&id).and_then(|active| active.pending().parent.as_ref());
        let Some(parent) = parent else { return };
        let detached = parent.detached;
        let lives =
            |id: &TaskId| self.tasks.get(id).is_some_and(|active| !active.pending().is_final());
        let parent = parent.task_id.parse::<TaskId>().ok();
        match parent.filter(lives) {
            Some(parent) => self.task_tree.join(parent, id, detached),
            // A peer may own the parent. If the parent has ended, the next comparison finds that.
            None if self.is_shared => {
                parent.into_iter().for_each(|parent| self.task_tree.join(parent, id, detached));
            }
            None if detached => {
                parent.into_iter().for_each(|parent| self.task_tree.join_gone(parent, id));
            }
            // The parent has ended, so the child ends too.
            None => {
                self.cancel_child(id, now);
                self.end_children(id, now);
            }
        }
    }

    /// Whether a peer owns this task and it has relatives here.
    pub(crate) fn is_remote_relative(&self, id: &TaskId) -> bool {
        self.task_tree.lives(id) && !self.tasks.contains(id)
    }

    pub(crate) fn remote_relatives(&self) -> Vec<TaskId> {
        let all = self.task_tree.0.keys().filter(|id| self.is_remote_relative(id));
        all.copied().collect()
    }

    /// Ends the children of a relative that ended at a peer.
    pub(crate) fn on_remote_relative_ended(&mut self, id: TaskId, now: Millis) {
        if self.is_remote_relative(&id) {
            self.end_children(id, now);
        }
    }

    /// Adds all tasks that were read from the store, in any order.
    pub(crate) fn rebuild_task_tree(&mut self, now: Millis) {
        let ids: Vec<_> = self.tasks.ids().collect();
        ids.into_iter().for_each(|id| self.join_task_tree(id, now));
    }

    /// Ends the children of a task that has just ended. Their ends are queued behind its end and
    /// committed in the same transaction.
    pub(crate) fn end_children(&mut self, id: TaskId, now: Millis) {
        let mut ending = VecDeque::from(self.task_tree.leave(id));
        while let Some(id) = ending.pop_front() {
            if self.cancel_child(id, now) {
                self.queue.bind_last();
            }
            ending.extend(self.task_tree.leave(id));
        }
        self.enqueue_deferred_cancels(now);
    }

    /// False: the child has ended already.
    fn cancel_child(&mut self, id: TaskId, now: Millis) -> bool {
        let Some(active) = self.tasks.get(&id) else { return false };
        let failure = cancelled("parent", "the calling task ended", None);
        let failure = active.pending().complete_failure(failure, "coordinator");
        let decided = active.pending().decide_cancel(failure);
        let Ok(body) = decided else { return false };
        self.end_alone(id, body, "parent", now);
        self.note_end(id, now);
        true
    }
}

#[cfg(test)]
mod tests;
