//! What became of a delegation, in words for a model. A model that is told `[FAILED] …` may try
//! another way; what it must not decide about ends the run instead.

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

/// A delegation whose outcome is told to a model, made by [`Delegation::outcome`]. It does not fail
/// because the other agent did: only if this task is told to stop, and if the failure says itself
/// that it ends the run. A question of the other agent comes back as well; its answer goes to
/// [`Delegation::answering`], or to [`Delegation::to_task`] where only the task's id is left.
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

    /// What no other argument would change ends the run: the agent is down or not to be had, or its
    /// failure says so. What the model could mend comes back as an error too, one that
    /// [says so](Error::is_model_retry).
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// Waits no longer than this. The other agent is cancelled then, and the outcome says that it
    /// timed out.
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

/// How a delegation stands when nothing more happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Completed,
    Failed,
    Rejected,
    Cancelled,
    /// It asks something.
    InputRequired,
    /// It asks for a credential.
    AuthRequired,
    /// We did not wait any longer.
    TimedOut,
}

/// What became of a delegation. Its `Display` is what a model is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub state: Ending,
    /// The result, the question, or why there is none; empty if nothing was said.
    pub text: String,
    /// Of the other agent's task; empty if there is none.
    pub task_id: String,
    /// The key of the question; empty if it asks none.
    pub question: String,
    pub failure: Option<Failure>,
}

impl Outcome {
    /// What a loop of a model and its tools should do about a failure.
    pub fn disposition(&self) -> Option<Disposition> {
        self.failure.as_ref().map(Failure::disposition)
    }

    fn of(child: a2a::Task, failure: impl FnOnce(&a2a::Task) -> Option<Failure>) -> Self {
        let failure = failure(&child);
        // A task that failed without a word has a failure with words of ours, which say less.
        let silent = child.metadata.is_none() && message_of(&child).is_none();
        let said = || match &failure {
            Some(failure) if !silent => failure.public_message.clone(),
            _ => String::new(),
        };
        let task_id = child.id.clone();
        let asked = asked(&child);
        let (state, text) = match state(&child) {
            TaskState::Completed => (Ending::Completed, Delegated(child).text()),
            TaskState::InputRequired => (Ending::InputRequired, asked.prompt),
            TaskState::AuthRequired => (Ending::AuthRequired, asked.prompt),
            TaskState::Rejected => (Ending::Rejected, said()),
            TaskState::Canceled => (Ending::Cancelled, said()),
            _ => (Ending::Failed, said()),
        };
        Self { state, text, task_id, question: asked.key, failure }
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

    /// The failure that is not for the model to handle, if it is one.
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

/// Down or not to be had, whatever the arguments.
fn is_permanent(failure: &Failure) -> bool {
    let code = failure.code();
    matches!(code, Code::Unavailable | Code::PermissionDenied | Code::Unauthenticated)
        || failure.row() == &reason::AGENT_NOT_FOUND
}

/// The oldest question of a task that waits.
fn asked(task: &a2a::Task) -> Interrupt {
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
