//! The outcome of a delegation as text for a language model: the model receives `[FAILED] …` and
//! may try another way. A failure that the model must not handle ends the run instead.

use std::{fmt, time::Duration};

use faultline_proto::{
    Failure,
    a2a::{self, TaskState},
    v1::{Disposition, Interrupt},
};
use futures::future::BoxFuture;
use tokio::time::timeout;
use tonic::Code;

use crate::{
    Delegated, Delegation, Error, reason,
    sdk::{
        delegation::{Call, state},
        question_relay::questions_of,
    },
};

/// A delegation that returns its end to a language model, made by [`Delegation::outcome`]. A
/// failure of the other agent is an [`Outcome`], not an error, unless its disposition ends the run
/// or this task is stopped. A question of the other agent is returned as well; give the answer to
/// [`Delegation::answering`], or to [`Delegation::to_task`] if only the task's id is known.
///
/// ```
/// # use faultline_worker::{Context, Error};
/// # async fn tool(cx: &Context, city: &str) -> Result<String, Error> {
/// let outcome = cx.delegate("weather", city).outcome().await?;
/// Ok(outcome.to_string()) // "[COMPLETED] 17 degrees", or "[FAILED] No such city"
/// # }
/// ```
#[must_use = "nothing is sent until it is awaited"]
pub struct OutcomeCall<'a> {
    delegation: Delegation<'a>,
    strict: bool,
    limit: Option<Duration>,
}

impl<'a> OutcomeCall<'a> {
    pub(crate) fn new(delegation: Delegation<'a>) -> Self {
        Self { delegation, strict: false, limit: None }
    }

    /// Ends the run on a failure that other arguments cannot change: the agent is unavailable,
    /// access is denied, or the disposition of the failure says so. A failure that other arguments
    /// may change becomes an error for which [`Error::is_model_retry`] is true.
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// Waits no longer than `limit`. Then the other task is cancelled, and the outcome is a
    /// timeout.
    pub fn timeout(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    async fn run(self, key: String) -> Result<Outcome, Error> {
        let Self { delegation, strict, limit } = self;
        let cx = delegation.cx;
        let call = Call::new(delegation, key)?.returning_questions();
        let released = cx.attempt_state().release_slot();
        let outcome = cx.unless_cancelled(follow(&call, limit)).await??;
        released.reacquire().await?;
        match outcome.must_end(strict) {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(outcome),
        }
    }
}

impl<'a> IntoFuture for OutcomeCall<'a> {
    type Output = Result<Outcome, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        let key = self.delegation.take_key();
        Box::pin(self.run(key))
    }
}

async fn follow(call: &Call<'_>, limit: Option<Duration>) -> Result<Outcome, Error> {
    let followed = match limit {
        None => call.run_to_end().await,
        Some(limit) => match timeout(limit, call.run_to_end()).await {
            Ok(followed) => followed,
            Err(_) => return Ok(Outcome::timed_out(call.cancel().await)),
        },
    };
    match followed {
        Ok(child) => Ok(Outcome::of(child, |child| call.failure(child))),
        Err(error) => match error.failure() {
            Some(failure) => Ok(Outcome::refused(failure.clone())),
            None => Err(error),
        },
    }
}

/// The state of a delegation that has ended or is waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Completed,
    Failed,
    Rejected,
    Cancelled,
    /// The other agent asks a question.
    InputRequired,
    /// The other agent asks for a credential.
    AuthRequired,
    /// The limit of [`OutcomeCall::timeout`] was reached.
    TimedOut,
}

/// The outcome of a delegation. Its `Display` is the text for the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The state of the delegation.
    pub state: Ending,
    /// The result, the question, or the reason of a failure; may be empty.
    pub text: String,
    /// The id of the other agent's task; empty if there is none.
    pub task_id: String,
    /// The key of the question; empty if there is none.
    pub question: String,
    /// The failure, if the delegation failed.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// The advice for a loop of a language model and its tools about a failure.
    pub fn disposition(&self) -> Option<Disposition> {
        self.failure.as_ref().map(Failure::disposition)
    }

    fn of(child: a2a::Task, failure: impl FnOnce(&a2a::Task) -> Option<Failure>) -> Self {
        let failure = failure(&child);
        // A task that failed without a message has a failure with generic text.
        let has_no_text = child.metadata.is_none() && message_of(&child).is_none();
        let failure_text = || match &failure {
            Some(failure) if !has_no_text => failure.public_message.clone(),
            _ => String::new(),
        };
        let task_id = child.id.clone();
        let oldest_question = oldest_question(&child);
        let (state, text) = match state(&child) {
            TaskState::Completed => (Ending::Completed, Delegated(child).text()),
            TaskState::InputRequired => (Ending::InputRequired, oldest_question.prompt),
            TaskState::AuthRequired => (Ending::AuthRequired, oldest_question.prompt),
            TaskState::Rejected => (Ending::Rejected, failure_text()),
            TaskState::Canceled => (Ending::Cancelled, failure_text()),
            _ => (Ending::Failed, failure_text()),
        };
        Self { state, text, task_id, question: oldest_question.key, failure }
    }

    /// The call itself failed: there may be no task.
    fn refused(failure: Failure) -> Self {
        let text = failure.public_message.clone();
        let task_id = failure.task_id.clone();
        let question = String::new();
        Self { state: Ending::Failed, text, task_id, question, failure: Some(failure) }
    }

    fn timed_out(task_id: String) -> Self {
        let text = String::new();
        let question = String::new();
        Self { state: Ending::TimedOut, text, task_id, question, failure: None }
    }

    /// The failure that ends the run, if it is one.
    fn must_end(&self, strict: bool) -> Option<&Failure> {
        let failure = self.failure.as_ref()?;
        let ends = match failure.disposition() {
            _ if !strict => failure.record().disposition() == Disposition::Abort,
            Disposition::Abort | Disposition::ModelRetry => true,
            _ => is_permanent(failure),
        };
        ends.then_some(failure)
    }
}

/// Unavailable or denied: other arguments would not help.
fn is_permanent(failure: &Failure) -> bool {
    let code = failure.code();
    matches!(code, Code::Unavailable | Code::PermissionDenied | Code::Unauthenticated)
        || failure.row() == &reason::AGENT_NOT_FOUND
}

/// The oldest open question of a task.
fn oldest_question(task: &a2a::Task) -> Interrupt {
    questions_of(task).into_iter().next().unwrap_or_default()
}

fn message_of(task: &a2a::Task) -> Option<&a2a::Message> {
    task.status.as_ref()?.message.as_ref()
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, text, task_id, .. } = self;
        let or = |other| if text.is_empty() { other } else { text.as_str() };
        match state {
            Ending::Completed => write!(f, "[COMPLETED] {}", or("Task completed")),
            Ending::Failed => write!(f, "[FAILED] {}", or("Unknown error")),
            Ending::Rejected => write!(f, "[REJECTED] {}", or("Task was rejected")),
            Ending::Cancelled => f.write_str("[CANCELLED] Task was cancelled"),
            Ending::InputRequired => write!(f, "[INPUT_REQUIRED:task_id={task_id}] {text}"),
            Ending::AuthRequired => write!(f, "[AUTH_REQUIRED:task_id={task_id}] {text}"),
            Ending::TimedOut => f.write_str("[TIMEOUT] Task timed out"),
        }
    }
}
