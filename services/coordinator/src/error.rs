//! The errors of the coordinator, and their one conversion to a `Failure`.

use std::time::Duration;

use faultline_chassis::limits;
use faultline_proto::{
    Failure, a2a::TaskState, failure::state_word, id::TaskId, reason, v1::Origin,
};

use crate::store::{ReadError, postgres, sqlite};

/// Why a coordinator cannot start, or go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Listen(#[from] faultline_chassis::server::BindError),
    #[error(transparent)]
    Host(#[from] faultline_chassis::server::BadHost),
    #[error(transparent)]
    Credentials(#[from] faultline_chassis::credential::Error),
    #[error(
        "`insecure` does not open the coordinator's port any more, which asks every caller for a \
         credential: leave it out. On loopback with SQLite the token is generated; elsewhere \
         configure [[mesh.credential]]"
    )]
    Insecure,
    #[error("{key}: {what}")]
    Key { key: String, what: String },
    #[error("'{0}' is not a store (say sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE)")]
    StoreUrl(String),
    #[error(transparent)]
    Sqlite(#[from] sqlite::OpenError),
    #[error(transparent)]
    Postgres(#[from] postgres::OpenError),
    #[error("{key} is {value}: {what}")]
    Setting { key: &'static str, value: u64, what: &'static str },
    #[error("the store cannot be read: {0}")]
    Recover(String),
    #[error("the coordinator's {name} has {how}: it must be started again")]
    Broken { name: &'static str, how: &'static str },
}

impl StartError {
    /// Nothing is wrong with the configuration, and the same may work a little later.
    pub fn is_transient(&self) -> bool {
        use postgres::OpenError::{Connect, Failed};
        matches!(self, StartError::Postgres(Connect { .. } | Failed { .. }))
    }
}

/// Why a call is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no agent '{0}' is known here; POST /mesh/Agents lists those that are")]
    AgentNotFound(String),
    #[error("this caller may not use agent '{0}'; the operator says which it may")]
    Denied(String),
    #[error(
        "agent '{0}' is for drills, which a token may use if the operator lists it in the token's \
         `agents`"
    )]
    Drill(String),
    #[error("this is for operators: it needs the scope 'operate'")]
    NoOperator,
    #[error("agent '{agent}' is in use: {what}")]
    AgentInUse { agent: String, what: String },
    #[error("no worker offers agent '{0}' now")]
    AgentUnavailable(String),
    #[error(
        "agent '{0}' does not stream, as its card says: send without streaming and read the task"
    )]
    NoStreaming(String),
    #[error("agent '{0}' does not notify, as its card says: follow the stream or read the task")]
    NoPush(String),
    #[error("agent '{agent}' requires the extension {uri}: declare it in A2A-Extensions")]
    ExtensionRequired { agent: String, uri: String },
    #[error(
        "part {at} is '{media_type}', which agent '{agent}' does not take; its card lists what it \
         does"
    )]
    ContentType { agent: String, at: usize, media_type: String },
    #[error("agent '{0}' has no extended card, as its card says")]
    NoExtendedCard(String),
    #[error("agent '{0}' offers an extended card and has none")]
    ExtendedCardMissing(String),
    #[error(
        "the idempotency key '{0}' was used for something else: repeat exactly what was sent \
         with it, or use a new key"
    )]
    KeyReused(String),
    #[error(
        "the attempt that calls is over, or never was: only the current attempt of an active task \
         may call other agents"
    )]
    AttemptOver,
    #[error("another coordinator has the task that calls, or has just given it up: call again")]
    NotOwner,
    #[error("the write lost a race with another coordinator")]
    Conflict,
    #[error("{} delegations lie above the calling task already", limits::DELEGATION_DEPTH_MAX)]
    TooDeep,
    #[error(
        "{} tasks live below the one that started it all: wait for some of them, or delegate less",
        limits::DESCENDANTS_MAX
    )]
    TooManyDescendants,
    #[error(
        "agent '{caller}' has {left:?} of its time left, too little to call agent '{agent}'; \
         nothing was started"
    )]
    BudgetExhausted { caller: String, agent: String, left: Duration },
    #[error("no tenant was given and no default agent is set")]
    NoDefaultAgent,
    #[error("task '{0}' not found")]
    TaskNotFound(String),
    #[error("task {task} has no push configuration '{id}'")]
    PushNotFound { task: TaskId, id: String },
    #[error("task {id} has ended ({})", state_word(*state))]
    NotCancelable { id: TaskId, state: TaskState },
    #[error("task {id} has ended ({}): start a new one in the same context", state_word(*state))]
    Ended { id: TaskId, state: TaskState },
    #[error(
        "task {0} is at work and did not ask for input: wait until it asks or ends, cancel it, or \
         start another in its context"
    )]
    Busy(TaskId),
    #[error("question '{question}' of task {id} was answered already: the first answer counts")]
    Answered { id: TaskId, question: String },
    #[error("{field}: {what}")]
    Invalid { field: &'static str, what: String },
    #[error("{waiting} tasks wait for agent '{agent}' already")]
    QueueFull { agent: String, waiting: usize },
    #[error("agent '{agent}' failed several times in a row and is left alone for a while")]
    CircuitOpen { agent: String, left: Duration },
    #[error("the coordinator has more to write than its store takes")]
    Overloaded,
    #[error(
        "task {0} did not end while the call waited, and goes on: read it with GetTask, follow it \
         with SubscribeToTask or stop it with CancelTask"
    )]
    PatienceEnded(TaskId),
    #[error(
        "the store is unavailable and this call changed nothing: repeat it later, with its \
         Idempotency-Key if it has one"
    )]
    Store { detail: String },
    /// The store has the call's step, or will get it, and does not answer.
    #[error(
        "the store does not answer, so it is unknown whether the call was carried out: look for \
         the task before you repeat the call; only a send with an Idempotency-Key can be repeated \
         at once"
    )]
    StoreSilent { detail: String },
    /// The store has confirmed the task, and cannot be read now.
    #[error("the store does not answer; task '{id}' is stored: read it later with GetTask")]
    StoredUnread { id: TaskId, detail: String },
    /// It was under way when something broke; the detail is not for callers.
    #[error("the coordinator broke off while the call was under way")]
    Unanswered { detail: String },
    #[error("{0}")]
    TooLarge(&'static str),
    #[error("the coordinator is leaving")]
    Leaving,
    /// Already said in full elsewhere.
    #[error(transparent)]
    Failed(Box<Failure>),
}

impl Error {
    /// The part that should have answered has ended.
    pub(crate) fn unanswered() -> Self {
        Error::Unanswered { detail: "the answer was dropped".to_owned() }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        Error::Store { detail: error.to_string() }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Error::Failed(Box::new(failure))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::AgentNotFound(agent) => Failure::new(&reason::AGENT_NOT_FOUND)
                .because(text)
                .born_at(origin_for_agent(agent)),
            Error::Denied(_) | Error::Drill(_) | Error::NoOperator => {
                Failure::new(&reason::INSUFFICIENT_SCOPE).because(text)
            }
            Error::AgentUnavailable(agent) => Failure::new(&reason::AGENT_UNAVAILABLE)
                .because(text)
                .with_retryable(true)
                .with_retry_after(Duration::from_secs(1))
                .born_at(origin_for_agent(agent)),
            Error::AgentInUse { .. } => Failure::new(&reason::FAILED_PRECONDITION).because(text),
            Error::NoStreaming(_) | Error::NoExtendedCard(_) => {
                Failure::new(&reason::UNSUPPORTED_OPERATION).because(text)
            }
            Error::NoPush(_) => {
                Failure::new(&reason::PUSH_NOTIFICATION_NOT_SUPPORTED).because(text)
            }
            Error::ExtensionRequired { .. } => {
                Failure::new(&reason::EXTENSION_SUPPORT_REQUIRED).because(text)
            }
            Error::ContentType { at, .. } => {
                Failure::new(&reason::CONTENT_TYPE_NOT_SUPPORTED).because(text).with_violation(
                    format!("message.parts[{at}].mediaType"),
                    "use a media type that the agent's card lists",
                )
            }
            Error::ExtendedCardMissing(_) => {
                Failure::new(&reason::EXTENDED_AGENT_CARD_NOT_CONFIGURED).because(text)
            }
            Error::KeyReused(_) => Failure::new(&reason::ALREADY_EXISTS)
                .because(text)
                .with_violation("Idempotency-Key", "use a new key for another message"),
            Error::AttemptOver => Failure::new(&reason::PERMISSION_DENIED).because(text),
            Error::Conflict => Failure::new(&reason::ABORTED)
                .because("the task was changed elsewhere at the same moment")
                .with_retryable(true),
            Error::NotOwner => Failure::new(&reason::UNAVAILABLE)
                .because(text)
                .with_retryable(true)
                .with_retry_after(limits::MOVED_RETRY_AFTER),
            Error::TooDeep => Failure::new(&reason::DELEGATION_TOO_DEEP).because(text),
            Error::TooManyDescendants => {
                Failure::new(&reason::RESOURCE_EXHAUSTED).because(text).with_retryable(false)
            }
            Error::BudgetExhausted { .. } => {
                Failure::new(&reason::DEADLINE_BUDGET_EXHAUSTED).because(text)
            }
            Error::NoDefaultAgent => Failure::new(&reason::INVALID_PARAMS)
                .because(text)
                .with_violation("tenant", "name an agent, or post to /agents/{agent}"),
            Error::TaskNotFound(id) => {
                Failure::new(&reason::TASK_NOT_FOUND).because(text).with_task(id, "")
            }
            Error::PushNotFound { task, .. } => {
                Failure::new(&reason::TASK_NOT_FOUND).because(text).with_task(task, "")
            }
            Error::NotCancelable { id, .. } => {
                Failure::new(&reason::TASK_NOT_CANCELABLE).because(text).with_task(id, "")
            }
            Error::Ended { id, .. } | Error::Busy(id) | Error::Answered { id, .. } => {
                Failure::new(&reason::UNSUPPORTED_OPERATION).because(text).with_task(id, "")
            }
            Error::Invalid { field, what } => {
                Failure::new(&reason::INVALID_PARAMS).because(text).with_violation(field, what)
            }
            Error::QueueFull { agent, .. } => Failure::new(&reason::RATE_LIMITED)
                .because(text)
                .with_retryable(true)
                .with_retry_after(Duration::from_secs(1))
                .born_at(origin_for_agent(agent)),
            Error::CircuitOpen { agent, left } => Failure::new(&reason::CIRCUIT_OPEN)
                .because(text)
                .with_retryable(true)
                .with_retry_after(left)
                .born_at(origin_for_agent(agent)),
            Error::Overloaded => Failure::new(&reason::OVERLOADED)
                .because(text)
                .with_retryable(true)
                .with_retry_after(Duration::from_secs(1)),
            Error::PatienceEnded(id) => {
                Failure::new(&reason::DEADLINE_EXCEEDED).because(text).with_task(id, "")
            }
            Error::Store { detail } => Failure::new(&reason::STORE_UNAVAILABLE)
                .because(text)
                .privately(detail)
                .with_retry_after(limits::STORE_RETRY_AFTER),
            Error::StoreSilent { detail } => Failure::new(&reason::STORE_UNAVAILABLE)
                .because(text)
                .privately(detail)
                .with_retryable(false),
            Error::StoredUnread { id, detail } => Failure::new(&reason::STORE_UNAVAILABLE)
                .because(text)
                .privately(detail)
                .with_retryable(false)
                .with_task(id, ""),
            Error::Unanswered { detail } => Failure::new(&reason::OUTCOME_UNKNOWN)
                .because(text)
                .privately(detail)
                .with_retry_after(Duration::from_secs(1)),
            Error::TooLarge(_) => Failure::new(&reason::CONTENT_TOO_LARGE).because(text),
            Error::Leaving => Failure::new(&reason::UNAVAILABLE)
                .because(text)
                .with_retry_after(Duration::from_secs(1)),
            Error::Failed(failure) => *failure,
        }
    }
}

/// An agent that could not be given the task is the origin, so that an agent that called it passes
/// the failure on instead of having failed itself.
fn origin_for_agent(agent: String) -> Origin {
    Origin { agent, service: "coordinator".to_owned(), worker: String::new() }
}

pub(crate) fn refuse(field: &str, what: impl Into<String>) -> Failure {
    let what = what.into();
    Failure::new(&reason::INVALID_ARGUMENT)
        .because(format!("{field}: {what}"))
        .with_violation(field, what)
}
