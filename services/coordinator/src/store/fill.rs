//! Fills a store with finished tasks without going through the mesh, for `faultline bench`.

use std::path::Path;

use faultline_proto::{
    a2a::{Artifact, Message, Part, Role, TaskState, part::Content},
    id::TaskId,
    v1::{ArtifactWritten, Ended, Submitted, event},
};

use super::{Row, Store, Write, sqlite::Sqlite};
use crate::{
    core::now,
    error::StartError,
    task::{LOCAL, Task},
};

const BATCH: usize = 1000;

/// Adds `count` finished tasks to the SQLite store at `path`.
pub async fn fill(path: &Path, count: usize) -> Result<(), StartError> {
    let store = Sqlite::open(path)?;
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        left -= batch;
        let written = store.commit((0..batch).map(|_| finished()).collect()).await;
        let failed = written.map_or(Some("the writer is gone".to_owned()), |written| {
            written.into_iter().find_map(Result::err).map(|e| e.to_string())
        });
        if let Some(error) = failed {
            return Err(StartError::Recover(error));
        }
    }
    Ok(())
}

fn finished() -> Write {
    let parts = vec![Part { content: Some(Content::Text("hello".to_owned())), ..Part::default() }];
    let message = Message {
        message_id: "m1".to_owned(),
        role: Role::User as i32,
        parts: parts.clone(),
        ..Message::default()
    };
    let at = now();
    let (message, principal) = (Some(message), LOCAL.to_owned());
    let submitted = Submitted { message, principal, ..Submitted::default() };
    let (mut task, first) = Task::submit(TaskId::new(), "echo", "bench".to_owned(), submitted, at);
    let artifact = Artifact { artifact_id: "echo".to_owned(), parts, ..Artifact::default() };
    let bodies = [
        event::Body::Artifact(ArtifactWritten { artifact: Some(artifact), ..Default::default() }),
        event::Body::Ended(Ended { state: TaskState::Completed as i32, ..Default::default() }),
    ];
    let mut events = vec![first];
    events.extend(bodies.map(|body| task.apply_now(body, at)));
    let events = (1..).zip(&events).map(|(seq, event)| super::encode(seq, event)).collect();
    Write::Insert { row: Row::from(&task), events, with: None }
}
