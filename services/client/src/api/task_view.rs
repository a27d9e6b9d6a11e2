//! Fold of a task's events (event sourcing): the task as described so far. Determines the events
//! that a snapshot adds, and the events that a server repeats. Depends on no connection.

use faultline_proto::a2a::{
    Artifact, Part, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus,
    TaskStatusUpdateEvent, part::Content, stream_response::Payload,
};
use prost_types::Struct;

#[derive(Debug, Default)]
/// Owned by a [`Follow`](crate::Follow), which applies each event that it returns.
pub(crate) struct TaskView {
    task: Task,
}

impl TaskView {
    /// The view of a task without its earlier events.
    pub(crate) fn of(task_id: &str) -> Self {
        Self { task: Task { id: task_id.to_owned(), ..Task::default() } }
    }

    pub(crate) fn task(&self) -> &Task {
        &self.task
    }

    pub(crate) fn into_task(self) -> Task {
        self.task
    }

    pub(crate) fn state(&self) -> TaskState {
        self.task.status.as_ref().map(|status| status.state()).unwrap_or_default()
    }

    /// Whether there is nothing to compare a snapshot with.
    pub(crate) fn is_empty(&self) -> bool {
        self.task.status.is_none() && self.task.artifacts.is_empty()
    }

    pub(crate) fn apply(&mut self, response: &StreamResponse) {
        match &response.payload {
            Some(Payload::Task(task)) => self.task = task.clone(),
            Some(Payload::StatusUpdate(update)) => {
                self.set_ids(&update.task_id, &update.context_id);
                // An earlier status message becomes part of the history.
                let earlier = self.task.status.take().and_then(|status| status.message);
                let known = |id: &str| self.task.history.iter().any(|m| m.message_id == id);
                self.task.history.extend(earlier.filter(|earlier| !known(&earlier.message_id)));
                self.task.status = update.status.clone();
                merge(&mut self.task.metadata, update.metadata.as_ref());
            }
            Some(Payload::ArtifactUpdate(update)) => {
                self.set_ids(&update.task_id, &update.context_id);
                if let Some(artifact) = &update.artifact {
                    self.put_artifact(artifact, update.append);
                }
            }
            Some(Payload::Message(_)) | None => {}
        }
    }

    fn set_ids(&mut self, task_id: &str, context_id: &str) {
        if self.task.id.is_empty() {
            task_id.clone_into(&mut self.task.id);
        }
        if self.task.context_id.is_empty() {
            context_id.clone_into(&mut self.task.context_id);
        }
    }

    fn put_artifact(&mut self, artifact: &Artifact, append: bool) {
        let known = self.task.artifacts.iter_mut().find(|a| a.artifact_id == artifact.artifact_id);
        match known {
            Some(known) if append => known.parts.extend(artifact.parts.iter().cloned()),
            Some(known) => *known = artifact.clone(),
            None => self.task.artifacts.push(artifact.clone()),
        }
    }

    /// Whether a server without numbers repeats an event: the same message in the same state, or
    /// the same whole artifact.
    pub(crate) fn is_repeat(&self, response: &StreamResponse) -> bool {
        match &response.payload {
            Some(Payload::StatusUpdate(update)) => {
                let (Some(new), Some(old)) = (&update.status, &self.task.status) else {
                    return false;
                };
                new.state == old.state && new.message.is_some() && is_same_message(new, old)
            }
            Some(Payload::ArtifactUpdate(update)) if !update.append => {
                update.artifact.as_ref().is_some_and(|new| self.task.artifacts.contains(new))
            }
            _ => false,
        }
    }

    /// The events that lead from this view to the snapshot.
    pub(crate) fn missing_events(&self, snapshot: &Task) -> Vec<StreamResponse> {
        let mut events: Vec<_> = snapshot
            .artifacts
            .iter()
            .filter_map(|new| {
                let old = self.task.artifacts.iter().find(|a| a.artifact_id == new.artifact_id);
                let (artifact, append) =
                    old.map_or(Some((new.clone(), false)), |o| appended(o, new))?;
                Some(Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                    task_id: snapshot.id.clone(),
                    context_id: snapshot.context_id.clone(),
                    artifact: Some(artifact),
                    append,
                    ..TaskArtifactUpdateEvent::default()
                }))
            })
            .collect();
        let changed = match (&self.task.status, &snapshot.status) {
            (Some(old), Some(new)) => {
                new.state != old.state || !(is_same_message(new, old) || moved_to_history(new, old))
            }
            (old, new) => old.is_none() && new.is_some(),
        };
        if changed {
            events.push(Payload::StatusUpdate(TaskStatusUpdateEvent {
                task_id: snapshot.id.clone(),
                context_id: snapshot.context_id.clone(),
                status: snapshot.status.clone(),
                metadata: snapshot.metadata.clone(),
            }));
        }
        events.into_iter().map(|payload| StreamResponse { payload: Some(payload) }).collect()
    }
}

fn is_same_message(new: &TaskStatus, old: &TaskStatus) -> bool {
    let id = |status: &TaskStatus| status.message.as_ref().map(|m| m.message_id.clone());
    id(new) == id(old)
}

/// The same status without its message: servers move it to the history when the next message
/// arrives, before the status changes.
fn moved_to_history(new: &TaskStatus, old: &TaskStatus) -> bool {
    new.message.is_none() && (new.timestamp.is_none() || new.timestamp == old.timestamp)
}

fn merge(into: &mut Option<Struct>, metadata: Option<&Struct>) {
    if let Some(metadata) = metadata {
        let fields = metadata.fields.iter().map(|(key, value)| (key.clone(), value.clone()));
        into.get_or_insert_with(Struct::default).fields.extend(fields);
    }
}

/// The parts added to an artifact, with `true`; or the whole artifact if it did not just grow.
fn appended(old: &Artifact, new: &Artifact) -> Option<(Artifact, bool)> {
    let added = |parts| Some((Artifact { parts, ..new.clone() }, true));
    if let Some(rest) = new.parts.strip_prefix(old.parts.as_slice()) {
        return if rest.is_empty() { None } else { added(rest.to_vec()) };
    }
    // A server may join the chunks of a text into one part.
    let before = text(&old.parts);
    let after = text(&new.parts);
    match before.zip(after) {
        Some((before, after)) if before == after => None,
        Some((before, after)) if after.starts_with(&before) => {
            let rest = after[before.len()..].to_owned();
            added(vec![Part { content: Some(Content::Text(rest)), ..Part::default() }])
        }
        _ => Some((new.clone(), false)),
    }
}

/// The joined text, if all parts are text.
fn text(parts: &[Part]) -> Option<String> {
    let texts = parts.iter().map(|part| match &part.content {
        Some(Content::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use faultline_proto::json;

    use super::*;

    fn task(json: &str) -> Task {
        json::from_str(json).unwrap()
    }

    fn delivered(before: &str, snapshot: &str) -> Vec<String> {
        let mut view = TaskView::default();
        view.apply(&StreamResponse { payload: Some(Payload::Task(task(before))) });
        let snapshot = task(snapshot);
        let events = view.missing_events(&snapshot);
        events.iter().for_each(|event| view.apply(event));
        assert_eq!(view.missing_events(&snapshot), [], "an event would be repeated");
        events.iter().map(json::to_string).collect()
    }

    fn artifact(parts: &str) -> String {
        format!(
            r#"{{"id":"t","status":{{"state":"TASK_STATE_WORKING"}},
                "artifacts":[{{"artifactId":"a","parts":[{parts}]}}]}}"#
        )
    }

    #[test]
    fn snapshot_adds_only_new_parts() {
        let cut = artifact(r#"{"text":"one "},{"text":"tw"}"#);
        let parts = delivered(&cut, &artifact(r#"{"text":"one "},{"text":"tw"},{"text":"o"}"#));
        let merged = delivered(&cut, &artifact(r#"{"text":"one two"}"#));
        assert_eq!(parts, merged);
        assert_eq!(parts.len(), 1);
        assert!(parts[0].contains(r#""parts":[{"text":"o"}]"#), "{}", parts[0]);
        assert!(parts[0].contains(r#""append":true"#), "{}", parts[0]);
        assert_eq!(delivered(&cut, &cut), [""; 0]);
        assert_eq!(delivered(&cut, &artifact(r#"{"text":"one tw"}"#)), [""; 0]);
    }

    #[test]
    fn replaced_artifact_is_delivered_whole() {
        let events = delivered(&artifact(r#"{"text":"one"}"#), &artifact(r#"{"text":"two"}"#));
        assert!(events.len() == 1 && !events[0].contains("append"), "{events:?}");
        let events = delivered(r#"{"id":"t"}"#, &artifact(r#"{"text":"one"}"#));
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn status_is_new_by_state_or_message() {
        let status = |state: &str, id: &str| {
            format!(
                r#"{{"id":"t","status":{{"state":"TASK_STATE_{state}",
                    "message":{{"messageId":"{id}"}}}}}}"#
            )
        };
        let working = status("WORKING", "m-1");
        assert_eq!(delivered(&working, &working), [""; 0]);
        assert_eq!(delivered(&working, &status("WORKING", "m-2")).len(), 1);
        assert_eq!(delivered(&working, &status("COMPLETED", "m-1")).len(), 1);
    }

    #[test]
    fn question_that_moved_to_the_history_is_not_repeated() {
        let at = |time: &str, message: &str| {
            format!(
                r#"{{"id":"t","status":{{"state":"TASK_STATE_INPUT_REQUIRED"{message},
                    "timestamp":"2026-11-18T10:00:0{time}Z"}}}}"#
            )
        };
        let asked = at("1", r#","message":{"messageId":"m"}"#);
        assert_eq!(delivered(&asked, &at("1", "")), [""; 0]);
        assert_eq!(delivered(&asked, &at("2", "")).len(), 1, "another question, without a message");
        assert_eq!(delivered(&asked, &at("1", r#","message":{"messageId":"n"}"#)).len(), 1);
        let timeless = r#"{"id":"t","status":{"state":"TASK_STATE_INPUT_REQUIRED"}}"#;
        assert_eq!(delivered(&asked, timeless), [""; 0]);
    }

    #[test]
    fn repeated_event_is_recognised_by_its_ids() {
        let mut view = TaskView::default();
        let read = |json: &str| json::from_str::<StreamResponse>(json).unwrap();
        let message = read(
            r#"{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_WORKING",
                "message":{"messageId":"m"}}}}"#,
        );
        let made = read(
            r#"{"artifactUpdate":{"taskId":"t","artifact":{"artifactId":"a",
                "parts":[{"text":"x"}]}}}"#,
        );
        let more = read(
            r#"{"artifactUpdate":{"taskId":"t","append":true,"artifact":{"artifactId":"a",
                "parts":[{"text":"x"}]}}}"#,
        );
        for event in [&message, &made] {
            assert!(!view.is_repeat(event));
            view.apply(event);
            assert!(view.is_repeat(event));
        }
        assert!(!view.is_repeat(&more), "the same text may be appended twice");
        view.apply(&more);
        assert_eq!(view.task().artifacts[0].parts.len(), 2);
    }
}
