//! Seeds a store with finished tasks, for `faultline bench` and for tests that need history.

use std::time::Duration;

use faultline_proto::{
    Failure,
    a2a::{Artifact, Message, Part, Role, TaskState, part::Content},
    id::TaskId,
    v1::{ArtifactWritten, Ended, Submitted, event},
};

use super::{Row, Write};
use crate::{
    Config,
    clock::now,
    error::StartError,
    task::{LOCAL, Millis, Task},
};

/// Written at once: large enough that a store does not wait for the disk most of the time.
const BATCH: usize = 2000;

/// A task that has ended.
#[derive(Clone, Debug)]
pub struct SeedTask {
    pub agent: String,
    pub principal: String,
    pub context: String,
    /// How long ago that was, and how long it had taken.
    pub ago: Duration,
    pub took: Duration,
    /// The reason it failed with; none: it completed.
    pub failure: Option<Failure>,
}

/// The events of a completed `echo` task.
impl Default for SeedTask {
    fn default() -> Self {
        Self {
            agent: "echo".to_owned(),
            principal: LOCAL.to_owned(),
            context: "bench".to_owned(),
            ago: Duration::ZERO,
            took: Duration::ZERO,
            failure: None,
        }
    }
}

/// Adds finished tasks to a store that nobody else has open. Their ids, in the same order.
pub async fn seed(
    store: &str,
    past: impl IntoIterator<Item = SeedTask>,
) -> Result<Vec<TaskId>, StartError> {
    let config = Config { store: store.to_owned(), ..Config::default() };
    let store = super::open(&config).await?;
    let (mut past, mut ids) = (past.into_iter().peekable(), Vec::new());
    while past.peek().is_some() {
        let batch: Vec<_> = past.by_ref().take(BATCH).map(finished).collect();
        ids.extend(batch.iter().filter_map(|write| match write {
            Write::Insert { row, .. } => Some(row.id),
            _ => None,
        }));
        let written = store.commit(batch).await;
        let failed = written.map_or(Some("the writer is gone".to_owned()), |written| {
            written.into_iter().find_map(Result::err).map(|e| e.to_string())
        });
        if let Some(error) = failed {
            return Err(StartError::Recover(error));
        }
    }
    if let Some(cluster) = store.cluster() {
        cluster.leave().await;
    }
    Ok(ids)
}

pub(crate) fn finished(past: SeedTask) -> Write {
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
        Task::submit(made_at(begun), &past.agent, past.context, submitted, begun);
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
