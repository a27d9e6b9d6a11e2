//! Fills a store with finished tasks without going through the mesh: for `faultline bench`, and for
//! tests that need a past.

use std::{path::Path, time::Duration};

use faultline_proto::{
    Failure,
    a2a::{Artifact, Message, Part, Role, TaskState, part::Content},
    id::TaskId,
    v1::{ArtifactWritten, Ended, Submitted, event},
};

use super::{Row, Store, Write, sqlite::Sqlite};
use crate::{
    core::now,
    error::StartError,
    task::{LOCAL, Millis, Task},
};

const BATCH: usize = 1000;

/// A task that has ended.
#[derive(Clone, Debug)]
pub struct Past {
    pub agent: String,
    pub principal: String,
    /// How long ago that was, and how long it had taken.
    pub ago: Duration,
    pub took: Duration,
    /// What it ended by; none: it completed.
    pub failure: Option<Failure>,
}

/// What `echo` has just done.
impl Default for Past {
    fn default() -> Self {
        let (agent, principal) = ("echo".to_owned(), LOCAL.to_owned());
        Self { agent, principal, ago: Duration::ZERO, took: Duration::ZERO, failure: None }
    }
}

/// Adds finished tasks to the SQLite store at `path`.
pub async fn fill(path: &Path, past: impl IntoIterator<Item = Past>) -> Result<(), StartError> {
    let store = Sqlite::open(path)?;
    let mut writes = past.into_iter().map(finished).peekable();
    while writes.peek().is_some() {
        let written = store.commit(writes.by_ref().take(BATCH).collect()).await;
        let failed = written.map_or(Some("the writer is gone".to_owned()), |written| {
            written.into_iter().find_map(Result::err).map(|e| e.to_string())
        });
        if let Some(error) = failed {
            return Err(StartError::Recover(error));
        }
    }
    Ok(())
}

pub(crate) fn finished(past: Past) -> Write {
    let parts = vec![Part { content: Some(Content::Text("hello".to_owned())), ..Part::default() }];
    let message = Message {
        message_id: "m1".to_owned(),
        role: Role::User as i32,
        parts: parts.clone(),
        ..Message::default()
    };
    let ended = now() - past.ago.as_millis() as Millis;
    let begun = ended - past.took.as_millis() as Millis;
    let submitted =
        Submitted { message: Some(message), principal: past.principal, ..Submitted::default() };
    let (mut task, first) =
        Task::submit(made_at(begun), &past.agent, "bench".to_owned(), submitted, begun);
    let artifact = Artifact { artifact_id: "echo".to_owned(), parts, ..Artifact::default() };
    let state = if past.failure.is_some() { TaskState::Failed } else { TaskState::Completed };
    let failure = past.failure.map(Failure::into_record);
    let bodies = [
        event::Body::Artifact(ArtifactWritten { artifact: Some(artifact), ..Default::default() }),
        event::Body::Ended(Ended { state: state as i32, failure, ..Default::default() }),
    ];
    let mut events = vec![first];
    events.extend(bodies.map(|body| task.apply_now(body, ended)));
    let events = (1..).zip(&events).map(|(seq, event)| super::encode(seq, event)).collect();
    Write::Insert { row: Row::from(&task), events, with: None }
}

/// An id of the time when it would have been made, as ids are counted by it.
fn made_at(time: Millis) -> TaskId {
    let mut bytes = *TaskId::new().as_bytes();
    bytes[..6].copy_from_slice(&time.to_be_bytes()[2..]);
    TaskId::from_bytes(bytes)
}
