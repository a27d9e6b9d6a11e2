//! Errors of the client: before a call, of a call, of a lost connection to a task, and of a task
//! that did not complete.

use std::fmt;

use faultline_proto::{
    Failure,
    a2a::{Task, TaskState},
    failure::state_word,
    reason,
    v1::Plane,
};

use crate::protocol::{
    card::CardProblem,
    task_outcome::{failure_of, is_final, text_of},
};

/// The error of a client. [`Error::failure`] has the reason, the retry advice and the chain of
/// causes.
///
/// ```no_run
/// # use faultline_client::{Client, Ending, Error, text};
/// # async fn example(client: Client) -> Result<(), Error> {
/// match client.run(text("hello")).await {
///     Ok(answer) => println!("{}", answer.text()),
///     // The task continues once it has its credentials.
///     Err(Error::Ended(ended)) if ended.how == Ending::AuthRequired => {
///         client.wait(&ended.task.id).await?;
///     }
///     Err(Error::Ended(ended)) => eprintln!("{}: {}", ended.how, ended.failure),
///     Err(other) => return Err(other),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The agent's card offers no usable interface. Nothing was sent.
    #[error("the card at {url} cannot be used: {problem}")]
    InvalidCard {
        /// The URL of the card.
        url: String,
        /// The problem of the card.
        problem: CardProblem,
    },
    /// The agent's card does not list a required extension. Nothing was sent.
    #[error("the agent does not offer the extension {uri}")]
    ExtensionUnsupported {
        /// The URI of the extension.
        uri: String,
    },
    /// A call was rejected or did not arrive.
    #[error(transparent)]
    Call(#[from] Failure),
    /// The task was started and may still run, but the server cannot be reached.
    #[error("lost the connection to task {task_id}: {attempts} reconnects failed")]
    Reconnect {
        /// The id of the task, for a later query.
        task_id: String,
        /// Subscriptions since the last new event.
        attempts: u32,
        /// The failure of the last attempt.
        #[source]
        last: Failure,
    },
    /// The task ran and did not complete.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// A task that did not complete, with everything it produced.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The kind of the end.
    pub how: Ending,
    /// The task with its artifacts and its history.
    pub task: Box<Task>,
    /// The failure.
    pub failure: Failure,
}

/// The kinds of ends without completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The task failed.
    Failed,
    /// The agent rejected the task.
    Rejected,
    /// The task was canceled.
    Canceled,
    /// The task waits for an answer: send one with [`crate::Draft::to_task`].
    InputRequired,
    /// The task waits for credentials that are given outside of A2A: then wait with
    /// [`crate::Client::wait`].
    AuthRequired,
}

impl Ending {
    /// The state of the task.
    pub fn state(self) -> TaskState {
        match self {
            Ending::Failed => TaskState::Failed,
            Ending::Rejected => TaskState::Rejected,
            Ending::Canceled => TaskState::Canceled,
            Ending::InputRequired => TaskState::InputRequired,
            Ending::AuthRequired => TaskState::AuthRequired,
        }
    }

    fn of(state: TaskState) -> Option<Self> {
        match state {
            TaskState::Failed => Some(Ending::Failed),
            TaskState::Rejected => Some(Ending::Rejected),
            TaskState::Canceled => Some(Ending::Canceled),
            TaskState::InputRequired => Some(Ending::InputRequired),
            TaskState::AuthRequired => Some(Ending::AuthRequired),
            TaskState::Unspecified
            | TaskState::Submitted
            | TaskState::Working
            | TaskState::Completed => None,
        }
    }
}

/// Such as `failed`, `input-required`.
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(state_word(self.state()))
    }
}

impl Ended {
    /// The end of a task, unless it completed or still runs.
    pub fn of(task: &Task) -> Option<Self> {
        let status = task.status.as_ref()?;
        let how = Ending::of(status.state())?;
        let failure = failure_of(status, task.metadata.as_ref()).unwrap_or_else(|| {
            let text = status.message.as_ref().map(text_of).unwrap_or_default();
            let question = if text.is_empty() { how.to_string() } else { text };
            Failure::new(&reason::FAILED_PRECONDITION)
                .because(format!("the task waits: {question}"))
                .with_plane(Plane::Execution)
                .with_task(&task.id, &task.context_id)
        });
        Some(Self { how, task: Box::new(task.clone()), failure })
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} {}: {}", self.task.id, self.how, self.failure)
    }
}

impl std::error::Error for Ended {}

impl Error {
    /// The failure; `None` if nothing was sent.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Error::Call(failure) | Error::Reconnect { last: failure, .. } => Some(failure),
            Error::Ended(ended) => Some(&ended.failure),
            Error::InvalidCard { .. } | Error::ExtensionUnsupported { .. } => None,
        }
    }

    /// The task, if it ended.
    pub fn task(&self) -> Option<&Task> {
        match self {
            Error::Ended(ended) => Some(&ended.task),
            _ => None,
        }
    }

    /// The id of the task, if one was started.
    pub fn task_id(&self) -> Option<&str> {
        match self {
            Error::Ended(ended) => Some(&ended.task.id),
            Error::Reconnect { task_id, .. } => Some(task_id),
            Error::Call(failure) => Some(failure.task_id.as_str()).filter(|id| !id.is_empty()),
            Error::InvalidCard { .. } | Error::ExtensionUnsupported { .. } => None,
        }
    }

    /// Whether the task has a final state: it failed, was rejected or was canceled.
    pub fn is_terminal(&self) -> bool {
        match self {
            Error::Ended(ended) => is_final(ended.how.state()),
            _ => false,
        }
    }
}

/// The failure of the error, for code that handles failures alone.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Call(failure) => failure,
            Error::Ended(ended) => ended.failure,
            Error::Reconnect { ref task_id, attempts, ref last } => {
                let words = format!("{attempts} reconnects failed: {}", last.public_message);
                let failure = Failure::new(&reason::RECONNECT_EXHAUSTED)
                    .because(words)
                    .with_plane(Plane::Transport)
                    .with_task(task_id, "");
                match last.private() {
                    Some(private) => failure.privately(private.for_log()),
                    None => failure,
                }
            }
            Error::InvalidCard { .. } => {
                Failure::new(&reason::INVALID_ARGUMENT).because(error.to_string())
            }
            Error::ExtensionUnsupported { .. } => {
                Failure::new(&reason::UNSUPPORTED_OPERATION).because(error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use faultline_proto::json;

    use super::*;

    #[test]
    fn reconnect_error_contains_the_number_of_attempts() {
        let last = Failure::new(&reason::UNAVAILABLE).because("gone").privately("10.0.0.1");
        let error = Error::Reconnect { task_id: "t".to_owned(), attempts: 3, last };
        let failure = Failure::from(error);
        assert_eq!((failure.row(), failure.task_id.as_str()), (&reason::RECONNECT_EXHAUSTED, "t"));
        assert_eq!(failure.public_message, "3 reconnects failed: gone");
        assert_eq!(failure.private().unwrap().for_log(), "10.0.0.1");
    }

    #[test]
    fn ended_error_contains_the_whole_task() {
        let ended = |state: &str| {
            let task = format!(
                r#"{{"id":"t","status":{{"state":"TASK_STATE_{state}",
                    "message":{{"parts":[{{"text":"why"}}]}}}},
                    "artifacts":[{{"artifactId":"a"}},{{"artifactId":"b"}}],
                    "history":[{{"messageId":"m"}}]}}"#
            );
            Ended::of(&json::from_str(&task).unwrap())
        };
        let all = [
            ("FAILED", Ending::Failed, true),
            ("REJECTED", Ending::Rejected, true),
            ("CANCELED", Ending::Canceled, true),
            ("INPUT_REQUIRED", Ending::InputRequired, false),
            ("AUTH_REQUIRED", Ending::AuthRequired, false),
        ];
        for (state, how, is_terminal) in all {
            let error = Error::from(ended(state).unwrap());
            let task = error.task().unwrap();
            assert_eq!((task.artifacts.len(), task.history.len()), (2, 1));
            assert!(error.failure().unwrap().public_message.contains("why"), "{error}");
            assert_eq!((error.is_terminal(), error.task_id()), (is_terminal, Some("t")));
            assert!(matches!(error, Error::Ended(ended) if ended.how == how));
        }
        for state in ["COMPLETED", "WORKING", "SUBMITTED"] {
            assert_eq!(ended(state), None);
        }
    }
}
