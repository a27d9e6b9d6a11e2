//! The errors of this crate: [`Error`], the error of an agent, which determines the failure that
//! callers receive, and [`ServiceError`], the error of the worker itself.

use std::{error::Error as StdError, fmt, io, time::Duration};

use faultline_chassis::{
    client::CannotDial,
    error_chain::{causes, one_line},
    limits,
    server::BindError,
};
use faultline_proto::{
    Failure,
    id::BadAgentName,
    reason::{self, Reason},
    v1::{Disposition, Severity},
};

use crate::{
    attempt::state::ReportRefused,
    sdk::typed::{AgentError, ErrorPolicy, MarkRecoverable, failure_of},
};

/// The error of an agent.
///
/// Callers receive more or less of it, depending on its kind:
///
/// - **Typed**, made with [`Error::new`] or from a type that implements [`AgentError`]: its
///   [reason](crate::reason) and its public text reach the caller unchanged.
/// - **Masked**, made by `?` from any standard error or string: the caller receives the reason
///   UNKNOWN and a failure id. The full text with its chain of sources is in the worker's log under
///   that id.
///
/// ```
/// use faultline_worker::{Error, reason};
///
/// fn charge(cents: u64) -> Result<(), Error> {
///     let limit: u64 = "5000".parse()?; // masked, should it ever fail
///     if cents > limit {
///         return Err(Error::new(&reason::FAILED_PRECONDITION)
///             .because("The card's limit is 50.00")
///             .code(40401));
///     }
///     Ok(())
/// }
/// # assert!(charge(1).is_ok() && charge(6000).is_err());
/// ```
pub struct Error(ErrorKind);

/// The end of the task.
pub(crate) enum ErrorKind {
    Failed(Failed),
    Rejected(Rejected),
    Stopped,
}

/// A rejection with its text, and with the record of the rejecting system if there is one.
pub(crate) struct Rejected {
    pub(crate) text: String,
    pub(crate) failure: Option<Failure>,
}

/// A failure, and the original error if the failure is masked.
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { failure, source: None }
    }
}

impl Error {
    /// A typed failure. Its public text is the title of the reason unless
    /// [`because`](Self::because) sets another.
    pub fn new(reason: &'static Reason) -> Self {
        Self(ErrorKind::Failed(Failure::new(reason).into()))
    }

    /// A typed failure from an [`AgentError`]. Its `Display` and its sources go to the log alone.
    pub fn typed(error: &(impl AgentError + ?Sized)) -> Self {
        Self(ErrorKind::Failed(failure_of(error).privately(one_line(error)).into()))
    }

    /// A rejection: the agent declines the task. The task ends REJECTED instead of FAILED, with
    /// `text` as its message.
    pub fn rejected(text: impl Into<String>) -> Self {
        Self(ErrorKind::Rejected(Rejected { text: text.into(), failure: None }))
    }

    /// A rejection with a record; its public text is the message. For an agent that passes on the
    /// rejection of another system.
    pub fn rejected_with(failure: Failure) -> Self {
        let text = failure.public_message.clone();
        Self(ErrorKind::Rejected(Rejected { text, failure: Some(failure) }))
    }

    /// The agent has to stop. Only a [`Context`](crate::Context) makes this error.
    pub(crate) fn stopped() -> Self {
        Self(ErrorKind::Stopped)
    }

    /// The public text, which every caller may read.
    pub fn because(self, text: impl Into<String>) -> Self {
        self.map(|f| f.because(text))
    }

    /// The application's own code, a string or an integer. It reaches the caller verbatim, through
    /// every agent on the way.
    pub fn code(self, code: impl fmt::Display) -> Self {
        self.map(|f| f.with_business_code(code.to_string()))
    }

    /// The application's own class of the error, such as `quota_error`.
    pub fn error_type(self, name: impl Into<String>) -> Self {
        self.map(|f| f.with_error_type(name))
    }

    /// Whether the caller may retry. Default: by the reason.
    pub fn retryable(self, yes: bool) -> Self {
        self.map(|f| f.with_retryable(yes))
    }

    /// The delay before a retry.
    pub fn retry_after(self, delay: Duration) -> Self {
        self.map(|f| f.with_retry_after(delay))
    }

    /// Whether the caller could continue without this result. Default: false.
    pub fn recoverable(self, yes: bool) -> Self {
        let severity = if yes { Severity::Recoverable } else { Severity::Fatal };
        self.map(|f| f.with_severity(severity))
    }

    /// The advice for a loop of a language model and its tools. Default: by the reason.
    pub fn disposition(self, disposition: Disposition) -> Self {
        self.map(|f| f.with_disposition(disposition))
    }

    /// The provider's id of the model response in which the error occurred.
    pub fn llm_response_id(self, id: impl Into<String>) -> Self {
        self.map(|f| f.with_llm_response_id(id))
    }

    /// Names a field of the request and its problem.
    pub fn violation(self, field: impl Into<String>, description: impl Into<String>) -> Self {
        self.map(|f| f.with_violation(field, description))
    }

    /// The cause. It goes to the worker's log with all its sources, never to a caller.
    pub fn caused_by(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.map(|f| f.privately(one_line(&*source.into())))
    }

    /// Whether the error is a stop: the task was cancelled or is no longer this worker's. Return
    /// it.
    pub fn is_stop(&self) -> bool {
        matches!(self.0, ErrorKind::Stopped)
    }

    /// Whether a loop of a language model and its tools should return the error to the model, which
    /// may try other arguments.
    pub fn is_model_retry(&self) -> bool {
        self.failure().is_some_and(|f| f.disposition() == Disposition::ModelRetry)
    }

    /// The failure record for the caller; `None` for a rejection or a stop.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.0 {
            ErrorKind::Failed(failed) => Some(&failed.failure),
            ErrorKind::Rejected(_) | ErrorKind::Stopped => None,
        }
    }

    /// The record of a rejection, if it has one.
    pub fn rejection(&self) -> Option<&Failure> {
        match &self.0 {
            ErrorKind::Rejected(rejected) => rejected.failure.as_ref(),
            ErrorKind::Failed(_) | ErrorKind::Stopped => None,
        }
    }

    pub(crate) fn into_kind(self) -> ErrorKind {
        self.0
    }

    /// Classifies a masked error by the policy of the offer. The original error stays in the log.
    pub(crate) fn classified(self, policy: &ErrorPolicy) -> Self {
        let ErrorKind::Failed(Failed { failure, source: Some(source) }) = &self.0 else {
            return self;
        };
        if failure.is_typed() {
            return self;
        }
        let Some(read) = policy.classify(&**source) else { return self };
        let marked = failure.record().severity() == Severity::Recoverable;
        let private = one_line(&**source);
        let read = read.map(|f| f.privately(private));
        if marked { read.recoverable(true) } else { read }
    }

    fn map(self, change: impl FnOnce(Failure) -> Failure) -> Self {
        match self.0 {
            ErrorKind::Failed(Failed { failure, source }) => {
                Self(ErrorKind::Failed(Failed { failure: change(failure), source }))
            }
            other => Self(other),
        }
    }
}

impl From<ReportRefused> for Error {
    fn from(refused: ReportRefused) -> Self {
        match refused {
            ReportRefused::Stopped => Self::stopped(),
            ReportRefused::TooManyQuestions => {
                let text = format!("{} questions are open already", limits::OPEN_QUESTIONS_MAX);
                Self::new(&reason::RESOURCE_EXHAUSTED).because(text)
            }
        }
    }
}

/// Masks the error. A [`Failure`] of another agent among the sources keeps everything it contains.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Error {
    fn from(error: E) -> Self {
        let source = match error.into().downcast::<Failure>() {
            Ok(failure) => return Self(ErrorKind::Failed((*failure).into())),
            Err(other) => other,
        };
        let foreign = causes(&*source).find_map(|e| e.downcast_ref::<Failure>()).cloned();
        let is_foreign = foreign.is_some();
        let failure = foreign.unwrap_or_else(|| Failure::new(&reason::UNKNOWN));
        let failure = failure.privately(one_line(&*source));
        let failure = if causes(&*source).any(|e| e.is::<MarkRecoverable>()) {
            failure.with_severity(Severity::Recoverable)
        } else {
            failure
        };
        Self(ErrorKind::Failed(Failed { failure, source: (!is_foreign).then_some(source) }))
    }
}

/// For logs and tests; includes the private text. There is no `Display`, so that the private text
/// cannot reach an answer by accident.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ErrorKind::Failed(Failed { failure, .. }) => match failure.private() {
                Some(private) => write!(f, "{failure} ({})", private.for_log()),
                None => write!(f, "{failure}"),
            },
            ErrorKind::Rejected(Rejected { text, .. }) => write!(f, "rejected: {text}"),
            ErrorKind::Stopped => f.write_str("stopped"),
        }
    }
}

/// The reasons for which a worker cannot start or has to end.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    Address(#[from] CannotDial),
    #[error("no agents to run: name built-in ones in `agents` or offer your own")]
    NoAgents,
    #[error("`slots` is 0: the worker could never run anything")]
    NoSlots,
    #[error("there is no built-in agent '{name}' (there are {known})")]
    NotBuiltIn { name: String, known: String },
    #[error(transparent)]
    BadName(#[from] BadAgentName),
    #[error("two agents are named '{name}'")]
    Twice { name: String },
    #[error("the admin port cannot start")]
    Admin(#[from] BindError),
    #[error("signals cannot be handled")]
    Signals(#[source] io::Error),
    #[error("the coordinator refuses this worker")]
    Refused(#[source] Failure),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the order")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn unclassified_error_is_masked_and_logged_in_full() {
        let source = "hunter2".parse::<u8>().unwrap_err();
        let error = Error::from(Outer(source));
        let failure = error.failure().unwrap();
        assert_eq!(failure.reason, "UNKNOWN");
        assert_eq!(failure.public_message, reason::UNKNOWN.title);
        let private = failure.private().unwrap().for_log();
        assert_eq!(private, "cannot read the order: invalid digit found in string");
        assert!(format!("{error:?}").contains("invalid digit"));
    }

    #[test]
    fn string_error_is_masked() {
        let failed = || -> Result<(), Error> { Err("password=hunter2")? };
        let error = failed().unwrap_err();
        let failure = error.failure().unwrap();
        assert!(!failure.public_message.contains("hunter2"));
        assert_eq!(failure.private().unwrap().for_log(), "password=hunter2");
    }

    #[test]
    fn typed_error_keeps_all_its_settings() {
        let error = Error::new(&reason::RATE_LIMITED)
            .because("slow down")
            .code(-40401_i64)
            .error_type("quota_error")
            .retryable(false)
            .retry_after(Duration::from_secs(2))
            .caused_by("the upstream said 429");
        let failure = error.failure().unwrap();
        assert_eq!(failure.public_message, "slow down");
        assert_eq!(failure.business_code, "-40401");
        assert_eq!(failure.error_type, "quota_error");
        assert!(!failure.may_retry());
        assert_eq!(failure.retry_after(), Some(Duration::from_secs(2)));
        assert_eq!(failure.private().unwrap().for_log(), "the upstream said 429");
    }

    #[test]
    fn failure_of_another_agent_is_not_masked() {
        let foreign = Failure::new(&reason::RATE_LIMITED).because("slow down");
        let error = Error::from(foreign.clone());
        assert_eq!(error.failure(), Some(&foreign));
    }

    #[test]
    fn failure_of_another_agent_is_found_among_the_sources() {
        let foreign = Failure::new(&reason::RATE_LIMITED).because("slow down");
        let error = Error::from(MarkRecoverable::new(foreign.clone()));
        let failure = error.failure().unwrap();
        assert_eq!((&failure.id, failure.severity()), (&foreign.id, Severity::Recoverable));
        assert_eq!(failure.public_message, "slow down");
    }

    #[test]
    fn rejection_has_no_failure_record() {
        let error = Error::rejected("not my kind of work").because("ignored");
        assert!(error.failure().is_none());
        assert!(
            matches!(error.into_kind(), ErrorKind::Rejected(r) if r.text == "not my kind of work")
        );
    }
}
