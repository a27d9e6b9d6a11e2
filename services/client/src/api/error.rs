//! Every way in which this client fails its user: before a call, by a call, by losing sight of a
//! task, and by a task that did not end well.

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

/// What went wrong. [`Error::failure`] has the reason, whether to retry, and the chain behind it.
///
/// ```no_run
/// # use faultline_client::{Client, Ending, Error, text};
/// # async fn example(client: Client) -> Result<(), Error> {
/// match client.run(text("hello")).await {
///     Ok(answer) => println!("{}", answer.text()),
///     // Credentials go their own way; the task goes on once it has them.
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
    /// The agent cannot be called by what its card says. Nothing was sent.
    #[error("the card at {url} cannot be used: {problem}")]
    InvalidCard {
        /// Where the card is from.
        url: String,
        /// What is wrong with it.
        problem: CardProblem,
    },
    /// The agent's card does not list an extension that its caller cannot do without. Nothing was
    /// sent.
    #[error("the agent does not offer the extension {uri}")]
    ExtensionUnsupported {
        /// Of the extension.
        uri: String,
    },
    /// A call was refused, or never arrived.
    #[error(transparent)]
    Call(#[from] Failure),
    /// The task was started and may go on, but the server stays away.
    #[error("lost sight of task {task_id}: {attempts} reconnects brought nothing")]
    Reconnect {
        /// What to ask for later.
        task_id: String,
        /// Subscriptions after the stream broke.
        attempts: u32,
        /// Why the last attempt failed.
        #[source]
        last: Failure,
    },
    /// The task ran and did not complete.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// A task that did not complete: how, why, and all that it said and made until then.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Which of the states it is in.
    pub how: Ending,
    /// The task with its artifacts and its history.
    pub task: Box<Task>,
    /// Why.
    pub failure: Failure,
}

/// The ways not to complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It broke.
    Failed,
    /// The agent did not take it.
    Rejected,
    /// Somebody stopped it.
    Canceled,
    /// It waits for an answer: send one with [`crate::Draft::to_task`].
    InputRequired,
    /// It waits for credentials that travel elsewhere: then [`crate::Client::wait`] for it.
    AuthRequired,
}

impl Ending {
    /// The state that is meant.
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

/// As `failed`, `input-required`.
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(state_word(self.state()))
    }
}

impl Ended {
    /// How the task ended, unless it completed or still runs.
    pub fn of(task: &Task) -> Option<Self> {
        let status = task.status.as_ref()?;
        let how = Ending::of(status.state())?;
        let failure = failure_of(status, task.metadata.as_ref()).unwrap_or_else(|| {
            let said = status.message.as_ref().map(text_of).unwrap_or_default();
            let question = if said.is_empty() { how.to_string() } else { said };
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
    /// The failure behind it; none when nothing was ever sent.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Error::Call(failure) | Error::Reconnect { last: failure, .. } => Some(failure),
            Error::Ended(ended) => Some(&ended.failure),
            Error::InvalidCard { .. } | Error::ExtensionUnsupported { .. } => None,
        }
    }

    /// The task, if one ran and is known whole.
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

    /// The task is over for good: it failed, was rejected or canceled.
    pub fn is_terminal(&self) -> bool {
        match self {
            Error::Ended(ended) => is_final(ended.how.state()),
            _ => false,
        }
    }
}

/// For whoever deals in failures only.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Call(failure) => failure,
            Error::Ended(ended) => ended.failure,
            Error::Reconnect { ref task_id, attempts, ref last } => {
                let words =
                    format!("{attempts} reconnects brought nothing: {}", last.public_message);
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
    fn losing_sight_of_a_task_says_how_often_it_was_looked_for() {
        let last = Failure::new(&reason::UNAVAILABLE).because("gone").privately("10.0.0.1");
        let error = Error::Reconnect { task_id: "t".to_owned(), attempts: 3, last };
        let failure = Failure::from(error);
        assert_eq!((failure.row(), failure.task_id.as_str()), (&reason::RECONNECT_EXHAUSTED, "t"));
        assert_eq!(failure.public_message, "3 reconnects brought nothing: gone");
        assert_eq!(failure.private().unwrap().for_log(), "10.0.0.1");
    }

    #[test]
    fn a_task_that_did_not_complete_comes_with_all_it_made() {
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
