//! The two errors of this crate: [`Error`], which an agent returns and which decides what callers
//! of the mesh see, and [`ServiceError`], which the program around the worker sees.

use std::{error::Error as StdError, fmt, io, time::Duration};

use faultline_chassis::{client::CannotDial, limits, server::BindError};
use faultline_proto::{
    Failure,
    id::BadAgentName,
    reason::{self, Reason},
    v1::{Disposition, Severity},
};

use crate::{
    attempt::state::ReportRefused,
    sdk::typed::{AgentError, ErrorPolicy, MarkRecoverable, failure_of, sources},
};

/// How an agent fails.
///
/// Two kinds, and the difference is what the caller gets to read:
///
/// - **Typed**, made with [`Error::new`] or from a type of yours that is an [`AgentError`]: you
///   chose a [reason](crate::reason) and a public text, and both travel to the caller unchanged.
/// - **Anything else**, made by `?` from any standard error or string: the caller reads only
///   that the agent failed for an unknown reason, and a failure id. The whole text with its
///   chain of sources is in the worker's log under that id. What you did not mean to say is not
///   said.
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

/// What becomes of the task.
pub(crate) enum ErrorKind {
    Failed(Failed),
    Rejected(Rejected),
    Stopped,
}

/// A rejection in words, and with what was told beside them.
pub(crate) struct Rejected {
    pub(crate) text: String,
    pub(crate) failure: Option<Failure>,
}

/// A failure, and behind one that nobody put into words yet the error it was.
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
    /// A typed failure. Its public text is the reason's title until [`because`](Self::because)
    /// says better.
    pub fn new(reason: &'static Reason) -> Self {
        Self(ErrorKind::Failed(Failure::new(reason).into()))
    }

    /// What the error says of itself, and for the log the rest of it.
    pub fn typed(error: &(impl AgentError + ?Sized)) -> Self {
        Self(ErrorKind::Failed(failure_of(error).privately(chain(error)).into()))
    }

    /// The agent looked at the task and declines it: the task ends REJECTED, not FAILED, with
    /// `text` as its message.
    pub fn rejected(text: impl Into<String>) -> Self {
        Self(ErrorKind::Rejected(Rejected { text: text.into(), failure: None }))
    }

    /// Likewise, with a record of its own, whose public text is the message. For whoever speaks for
    /// somebody else, who declined.
    pub fn rejected_with(failure: Failure) -> Self {
        let text = failure.public_message.clone();
        Self(ErrorKind::Rejected(Rejected { text, failure: Some(failure) }))
    }

    /// The agent was told to stop. Only a [`Context`](crate::Context) knows that.
    pub(crate) fn stopped() -> Self {
        Self(ErrorKind::Stopped)
    }

    /// The public text: any caller may read it.
    pub fn because(self, text: impl Into<String>) -> Self {
        self.map(|f| f.because(text))
    }

    /// The application's own code, a string or an integer of any kind. It reaches the caller
    /// verbatim, through every agent on the way.
    pub fn code(self, code: impl fmt::Display) -> Self {
        self.map(|f| f.with_business_code(code.to_string()))
    }

    /// The class of the error in your own words, such as `quota_error`.
    pub fn error_type(self, name: impl Into<String>) -> Self {
        self.map(|f| f.with_error_type(name))
    }

    /// May the caller try the same again? Without this the reason decides.
    pub fn retryable(self, yes: bool) -> Self {
        self.map(|f| f.with_retryable(yes))
    }

    /// Not before this much time has passed.
    pub fn retry_after(self, delay: Duration) -> Self {
        self.map(|f| f.with_retry_after(delay))
    }

    /// Whether whoever called could go on without; not, unless said.
    pub fn recoverable(self, yes: bool) -> Self {
        let severity = if yes { Severity::Recoverable } else { Severity::Fatal };
        self.map(|f| f.with_severity(severity))
    }

    /// What a loop of a model and its tools should do about it. Without this the reason decides.
    pub fn disposition(self, disposition: Disposition) -> Self {
        self.map(|f| f.with_disposition(disposition))
    }

    /// The answer of a model that this came with, in its provider's words.
    pub fn llm_response_id(self, id: impl Into<String>) -> Self {
        self.map(|f| f.with_llm_response_id(id))
    }

    /// Names one field of the request and what is wrong with it.
    pub fn violation(self, field: impl Into<String>, description: impl Into<String>) -> Self {
        self.map(|f| f.with_violation(field, description))
    }

    /// What was behind it. Goes to the worker's log with all its sources, never to a caller.
    pub fn caused_by(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.map(|f| f.privately(chain(&*source.into())))
    }

    /// Whether this only says that the task was cancelled or is no longer this worker's. There is
    /// nothing to handle then: return.
    pub fn is_stop(&self) -> bool {
        matches!(self.0, ErrorKind::Stopped)
    }

    /// Whether a loop of a model and its tools should tell the model, which may try again with
    /// other arguments.
    pub fn is_model_retry(&self) -> bool {
        self.failure().is_some_and(|f| f.disposition() == Disposition::ModelRetry)
    }

    /// The record that would travel, unless the agent rejected the task or was told to stop.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.0 {
            ErrorKind::Failed(failed) => Some(&failed.failure),
            ErrorKind::Rejected(_) | ErrorKind::Stopped => None,
        }
    }

    /// The record that a rejection came with.
    pub fn rejection(&self) -> Option<&Failure> {
        match &self.0 {
            ErrorKind::Rejected(rejected) => rejected.failure.as_ref(),
            ErrorKind::Failed(_) | ErrorKind::Stopped => None,
        }
    }

    pub(crate) fn into_kind(self) -> ErrorKind {
        self.0
    }

    /// Puts an error into words that came as it was, if the policy knows it. What it was stays in
    /// the log.
    pub(crate) fn classified(self, policy: &ErrorPolicy) -> Self {
        let ErrorKind::Failed(Failed { failure, source: Some(source) }) = &self.0 else {
            return self;
        };
        if failure.is_typed() {
            return self;
        }
        let Some(read) = policy.classify(&**source) else { return self };
        let marked = failure.record().severity() == Severity::Recoverable;
        let private = chain(&**source);
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

/// The masking conversion. A [`Failure`] that comes through, from a call to another agent, keeps
/// everything it has, also behind other errors.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Error {
    fn from(error: E) -> Self {
        let source = match error.into().downcast::<Failure>() {
            Ok(failure) => return Self(ErrorKind::Failed((*failure).into())),
            Err(other) => other,
        };
        let theirs = sources(&*source).find_map(|e| e.downcast_ref::<Failure>()).cloned();
        let is_theirs = theirs.is_some();
        let failure = theirs.unwrap_or_else(|| Failure::new(&reason::UNKNOWN));
        let failure = failure.privately(chain(&*source));
        let failure = if sources(&*source).any(|e| e.is::<MarkRecoverable>()) {
            failure.with_severity(Severity::Recoverable)
        } else {
            failure
        };
        Self(ErrorKind::Failed(Failed { failure, source: (!is_theirs).then_some(source) }))
    }
}

/// For logs and tests: the private text is in it. There is no `Display`, so that it cannot end up
/// in an answer by accident.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ErrorKind::Failed(Failed { failure, .. }) => match failure.private() {
                Some(private) => write!(f, "{failure} ({})", private.for_log()),
                None => write!(f, "{failure}"),
            },
            ErrorKind::Rejected(Rejected { text, .. }) => write!(f, "rejected: {text}"),
            ErrorKind::Stopped => f.write_str("told to stop"),
        }
    }
}

pub(crate) fn chain(error: &(impl StdError + ?Sized)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// Why a worker cannot start, or had to give up.
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
    fn an_unclassified_error_is_masked_and_whole_for_the_log() {
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
    fn a_string_is_masked_too() {
        let failed = || -> Result<(), Error> { Err("password=hunter2")? };
        let error = failed().unwrap_err();
        let failure = error.failure().unwrap();
        assert!(!failure.public_message.contains("hunter2"));
        assert_eq!(failure.private().unwrap().for_log(), "password=hunter2");
    }

    #[test]
    fn a_typed_error_says_what_it_was_told_to_say() {
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
    fn a_failure_of_another_agent_passes_unmasked() {
        let theirs = Failure::new(&reason::RATE_LIMITED).because("slow down");
        let error = Error::from(theirs.clone());
        assert_eq!(error.failure(), Some(&theirs));
    }

    #[test]
    fn a_failure_of_another_agent_is_found_behind_other_errors() {
        let theirs = Failure::new(&reason::RATE_LIMITED).because("slow down");
        let error = Error::from(MarkRecoverable::new(theirs.clone()));
        let failure = error.failure().unwrap();
        assert_eq!((&failure.id, failure.severity()), (&theirs.id, Severity::Recoverable));
        assert_eq!(failure.public_message, "slow down");
    }

    #[test]
    fn a_rejection_is_no_failure() {
        let error = Error::rejected("not my kind of work").because("ignored");
        assert!(error.failure().is_none());
        assert!(
            matches!(error.into_kind(), ErrorKind::Rejected(r) if r.text == "not my kind of work")
        );
    }
}
