//! A task with the tasks that it delegated, loaded one `Inspect` call at a time. The order is by
//! priority: first the path to the origin of a failure, then tasks that failed, run or wait, then
//! the rest. The number of tasks and the depth are bounded. Must not depend on the output.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use faultline_client::{Client, Error};
use faultline_proto::{
    a2a::TaskState,
    json,
    v1::{Child, InspectRequest, InspectResponse},
};
use serde_json::Value;

/// Bound on the tasks that are loaded, the root included.
const TASKS_MAX: usize = 200;
/// Bound on the depth below the root, which is the depth limit of delegation.
const DEPTH_MAX: usize = faultline_chassis::limits::DELEGATION_DEPTH_MAX as usize;

/// One task and the tasks that it delegated. `load` builds it once; nothing changes it later.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskTree {
    pub(crate) task: InspectResponse,
    pub(crate) subtasks: Vec<Subtask>,
}

#[derive(Clone, Debug)]
pub(crate) enum Subtask {
    Loaded(Box<TaskTree>),
    /// Beyond the bounds, or the call for it failed.
    NotLoaded(Child),
}

/// A task to load: its priority (0 is first), its depth, the order of discovery, its id.
type QueueEntry = Reverse<(u8, usize, usize, String)>;

/// Loads a task and its descendants. Only a failure to load the task itself is an error.
pub(crate) async fn load(client: &Client, task_id: &str) -> Result<TaskTree, Error> {
    let root = inspect(client, task_id).await?;
    let on_failure_path = |id: &str| {
        root.failure.as_ref().is_some_and(|f| f.causes.iter().any(|cause| cause.task_id == id))
    };
    let mut found: HashMap<String, InspectResponse> = HashMap::new();
    let mut queue = BinaryHeap::new();
    let mut count = 0;
    let mut look = |task: &InspectResponse, depth: usize, queue: &mut BinaryHeap<QueueEntry>| {
        for child in task.children.iter().filter(|_| depth <= DEPTH_MAX) {
            let rank = match child.state() {
                _ if on_failure_path(&child.task_id) => 0,
                TaskState::Completed => 2,
                _ => 1,
            };
            count += 1;
            queue.push(Reverse((rank, depth, count, child.task_id.clone())));
        }
    };
    look(&root, 1, &mut queue);
    while let Some(Reverse((_, depth, _, id))) = queue.pop().filter(|_| found.len() + 1 < TASKS_MAX)
    {
        // A task that cannot be loaded is left out: it may belong to another caller or be deleted.
        let Ok(mut task) = inspect(client, &id).await else { continue };
        look(&task, depth + 1, &mut queue);
        // The tree shows outcomes; `faultline get` shows artifacts and messages.
        if let Some(task) = &mut task.task {
            task.artifacts.clear();
            task.history.clear();
        }
        found.insert(id, task);
    }
    Ok(TaskTree::assemble(root, &mut found))
}

async fn inspect(client: &Client, task_id: &str) -> Result<InspectResponse, Error> {
    client.mesh("Inspect", &InspectRequest { task_id: task_id.to_owned() }).await
}

impl TaskTree {
    /// Builds the tree from the loaded tasks.
    fn assemble(task: InspectResponse, found: &mut HashMap<String, InspectResponse>) -> Self {
        let subtasks = task.children.iter().map(|child| match found.remove(&child.task_id) {
            Some(seen) => Subtask::Loaded(Box::new(Self::assemble(seen, found))),
            None => Subtask::NotLoaded(child.clone()),
        });
        Self { subtasks: subtasks.collect(), task }
    }

    pub(crate) fn id(&self) -> &str {
        self.task.task.as_ref().map_or("", |task| task.id.as_str())
    }

    pub(crate) fn state(&self) -> TaskState {
        let status = self.task.task.as_ref().and_then(|task| task.status.as_ref());
        status.map_or(TaskState::Unspecified, |status| status.state())
    }

    /// The direct subtasks that were loaded.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = &TaskTree> {
        self.subtasks.iter().filter_map(|below| match below {
            Subtask::Loaded(tree) => Some(tree.as_ref()),
            Subtask::NotLoaded(_) => None,
        })
    }

    /// The number of tasks in the whole tree that were not loaded.
    pub(crate) fn count_not_loaded(&self) -> usize {
        let here = self.subtasks.iter().filter(|b| matches!(b, Subtask::NotLoaded(_))).count();
        here + self.loaded().map(TaskTree::count_not_loaded).sum::<usize>()
    }

    /// The task with this id, at any depth.
    pub(crate) fn find(&self, id: &str) -> Option<&TaskTree> {
        if self.id() == id { Some(self) } else { self.loaded().find_map(|tree| tree.find(id)) }
    }

    /// The JSON of `Inspect`, with the JSON of each loaded child under its key `inspect`.
    pub(crate) fn to_json(&self) -> Value {
        let text = json::to_string(&self.task);
        let mut whole: Value = serde_json::from_str(&text).expect("ProtoJSON is JSON");
        let children = whole.get_mut("children").and_then(Value::as_array_mut);
        for (child, below) in children.into_iter().flatten().zip(&self.subtasks) {
            if let Subtask::Loaded(tree) = below {
                child["inspect"] = tree.to_json();
            }
        }
        whole
    }
}
