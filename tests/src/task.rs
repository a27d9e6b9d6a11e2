//! Reads tasks and stream frames as JSON, and folds the frames of a stream into the task.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Frame;

pub const COMPLETED: &str = "TASK_STATE_COMPLETED";
pub const FAILED: &str = "TASK_STATE_FAILED";
pub const CANCELED: &str = "TASK_STATE_CANCELED";
pub const REJECTED: &str = "TASK_STATE_REJECTED";
pub const SUBMITTED: &str = "TASK_STATE_SUBMITTED";
pub const WORKING: &str = "TASK_STATE_WORKING";
pub const INPUT_REQUIRED: &str = "TASK_STATE_INPUT_REQUIRED";
pub const AUTH_REQUIRED: &str = "TASK_STATE_AUTH_REQUIRED";

pub fn is_final(state: &str) -> bool {
    [COMPLETED, FAILED, CANCELED, REJECTED].contains(&state)
}

pub fn id(task: &Value) -> &str {
    task["id"].as_str().unwrap_or_else(|| panic!("not a task: {task}"))
}

pub fn state(task: &Value) -> &str {
    task["status"]["state"].as_str().unwrap_or_else(|| panic!("a task without a state: {task}"))
}

/// A stored failure in its public form: without the worker of its origin.
pub fn public(failure: &Value) -> Value {
    let mut failure = failure.clone();
    if let Some(origin) = failure["origin"].as_object_mut() {
        origin.remove("worker");
    }
    failure
}

/// The text of each artifact of a task, by id.
pub fn artifacts(task: &Value) -> BTreeMap<String, String> {
    let artifacts = task["artifacts"].as_array().into_iter().flatten();
    artifacts.map(|a| (artifact_id(a), text(a))).collect()
}

/// The text of a message or an artifact.
pub fn text(parts_of: &Value) -> String {
    let parts = parts_of["parts"].as_array().into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect()
}

fn artifact_id(artifact: &Value) -> String {
    artifact["artifactId"].as_str().expect("an artifact has an id").to_owned()
}

/// The task as a fold of the frames of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fold {
    pub id: String,
    pub artifacts: BTreeMap<String, String>,
    /// Every state of the stream, without consecutive repeats.
    pub states: Vec<String>,
}

impl Fold {
    pub fn of<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> Self {
        let mut fold = Self::default();
        frames.into_iter().for_each(|frame| fold.add(frame));
        fold
    }

    pub fn add(&mut self, frame: &Frame) {
        let body = &frame.body;
        if let Some(task) = body.get("task") {
            self.id = id(task).to_owned();
            self.artifacts = artifacts(task);
            self.enter(state(task));
        } else if let Some(update) = body.get("statusUpdate") {
            self.enter(state(update));
        } else if let Some(update) = body.get("artifactUpdate") {
            let id = artifact_id(&update["artifact"]);
            let text = text(&update["artifact"]);
            match update["append"].as_bool() {
                Some(true) => self.artifacts.entry(id).or_default().push_str(&text),
                _ => drop(self.artifacts.insert(id, text)),
            }
        } else {
            panic!("not a frame of a task: {body}");
        }
    }

    fn enter(&mut self, state: &str) {
        if self.states.last().is_none_or(|last| last != state) {
            self.states.push(state.to_owned());
        }
    }

    /// The final states of the stream: one at most.
    pub fn finals(&self) -> Vec<&str> {
        self.states.iter().map(String::as_str).filter(|s| is_final(s)).collect()
    }
}
