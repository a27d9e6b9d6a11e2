//! Classification of errors: [`AgentError`] for types of the agent, and a policy of the offer for
//! foreign types.

use std::{borrow::Cow, error::Error as StdError, fmt, time::Duration};

use faultline_chassis::error_chain::causes;
use faultline_proto::{
    Failure,
    reason::{self, Reason},
    v1::{Disposition, Severity},
};

use crate::Error;

/// An error type that describes its own failure record. Every method has a default. The `Display`
/// text and the sources of the error go to the log and never to the caller.
///
/// The record reaches the caller if the error is converted by [`typed`](TypedResult::typed), or by
/// `?` while the offer [recognises](crate::Offer::recognise) its type. A recognised type is also
/// found among the sources of another error.
///
/// ```
/// use std::time::Duration;
/// use faultline_worker::{AgentError, Code, Error, Reason, TypedResult, reason};
///
/// #[derive(Debug, thiserror::Error)]
/// enum OrderError {
///     #[error("no order {0} in shard 7")]
///     Missing(u64),
///     #[error("inventory timed out")]
///     Inventory,
/// }
///
/// impl AgentError for OrderError {
///     fn reason(&self) -> &'static Reason {
///         match self {
///             Self::Missing(_) => &reason::NOT_FOUND,
///             Self::Inventory => &reason::UNAVAILABLE,
///         }
///     }
///
///     fn code(&self) -> Option<Code> {
///         Some(match self {
///             Self::Missing(_) => 40401.into(),
///             Self::Inventory => "ORDER_INVENTORY_SOFT_TIMEOUT".into(),
///         })
///     }
///
///     fn public_message(&self) -> Option<String> {
///         matches!(self, Self::Missing(_)).then(|| "There is no such order".to_owned())
///     }
///
///     fn recoverable(&self) -> bool {
///         matches!(self, Self::Inventory)
///     }
///
///     fn retry_after(&self) -> Option<Duration> {
///         matches!(self, Self::Inventory).then_some(Duration::from_secs(2))
///     }
/// }
///
/// fn find(order: u64) -> Result<(), Error> {
///     let found: Result<(), _> = Err(OrderError::Missing(order));
///     found.typed()?;
///     Ok(())
/// }
/// # let error = find(17).unwrap_err();
/// # let failure = error.failure().unwrap();
/// # assert_eq!((failure.reason.as_str(), failure.business_code.as_str()), ("NOT_FOUND", "40401"));
/// # assert_eq!(failure.public_message, "There is no such order");
/// ```
pub trait AgentError: StdError {
    /// The reason, a row of the failure table; it determines the gRPC code and the HTTP status.
    fn reason(&self) -> &'static Reason {
        &reason::TASK_FAILED
    }

    /// The application's own code: text, or an integer.
    fn code(&self) -> Option<Code> {
        None
    }

    /// The application's own class of the error.
    fn error_type(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Whether the caller could continue without this result.
    fn recoverable(&self) -> bool {
        false
    }

    /// The text that every caller may read. Default: the title of the reason.
    fn public_message(&self) -> Option<String> {
        None
    }

    /// Whether the caller may retry. Default: by the reason.
    fn retryable(&self) -> Option<bool> {
        None
    }

    /// The delay before a retry.
    fn retry_after(&self) -> Option<Duration> {
        None
    }

    /// The advice for a loop of a language model and its tools. Default: by the reason.
    fn disposition(&self) -> Option<Disposition> {
        None
    }
}

/// A code of the application. An integer becomes its decimal text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code(String);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Code {
    fn from(code: &str) -> Self {
        Self(code.to_owned())
    }
}

impl From<String> for Code {
    fn from(code: String) -> Self {
        Self(code)
    }
}

macro_rules! integer_codes {
    ($($integer:ty)*) => {
        $(impl From<$integer> for Code {
            fn from(code: $integer) -> Self {
                Self(code.to_string())
            }
        })*
    };
}

integer_codes!(i8 i16 i32 i64 u8 u16 u32 u64 isize usize);

/// Converts the error of a result by its [`AgentError`] implementation.
pub trait TypedResult<T> {
    /// Converts the error of the result.
    fn typed(self) -> Result<T, Error>;
}

impl<T, E: AgentError> TypedResult<T> for Result<T, E> {
    fn typed(self) -> Result<T, Error> {
        self.map_err(|error| Error::typed(&error))
    }
}

/// Marks an error of any type as recoverable: the caller could continue without the result. The
/// mark is found anywhere among the sources of an agent's error.
///
/// ```
/// use faultline_worker::{Error, MarkRecoverable, Severity};
///
/// fn cached(key: &str) -> Result<u32, Error> {
///     Ok(key.parse::<u32>().map_err(MarkRecoverable::new)?)
/// }
/// # let error = cached("x").unwrap_err();
/// # assert_eq!(error.failure().unwrap().severity(), Severity::Recoverable);
/// ```
#[derive(Debug)]
pub struct MarkRecoverable(Box<dyn StdError + Send + Sync>);

impl MarkRecoverable {
    /// Marks `error`.
    pub fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for MarkRecoverable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("recoverable")
    }
}

impl StdError for MarkRecoverable {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

type Recogniser = for<'a> fn(&'a (dyn StdError + 'static)) -> Option<&'a dyn AgentError>;
type Normaliser = dyn Fn(&(dyn StdError + 'static)) -> Option<Error> + Send + Sync;

/// The classification of errors by an offer. Fixed when the offer is made.
#[derive(Default)]
pub(crate) struct ErrorPolicy {
    recognisers: Vec<Recogniser>,
    normaliser: Option<Box<Normaliser>>,
}

impl ErrorPolicy {
    pub(crate) fn recognise<E: AgentError + 'static>(&mut self) {
        self.recognisers.push(|error| error.downcast_ref::<E>().map(|e| e as &dyn AgentError));
    }

    pub(crate) fn normalise(&mut self, by: Box<Normaliser>) {
        self.normaliser = Some(by);
    }

    /// The typed error, if a recogniser or the normaliser knows the error. Recognisers come first.
    pub(crate) fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Error> {
        let known = |e| self.recognisers.iter().find_map(|recognise| recognise(e));
        match causes(error).find_map(known) {
            Some(typed) => Some(Error::typed(typed)),
            None => self.normaliser.as_ref()?(error),
        }
    }
}

/// The failure record of an [`AgentError`].
pub(crate) fn failure_of(error: &(impl AgentError + ?Sized)) -> Failure {
    let mut failure = Failure::new(error.reason());
    if let Some(text) = error.public_message() {
        failure = failure.because(text);
    }
    if let Some(code) = error.code() {
        failure = failure.with_business_code(code.0);
    }
    if let Some(name) = error.error_type() {
        failure = failure.with_error_type(name);
    }
    if let Some(yes) = error.retryable() {
        failure = failure.with_retryable(yes);
    }
    if let Some(delay) = error.retry_after() {
        failure = failure.with_retry_after(delay);
    }
    if let Some(disposition) = error.disposition() {
        failure = failure.with_disposition(disposition);
    }
    let recoverable = error.recoverable();
    failure.with_severity(if recoverable { Severity::Recoverable } else { Severity::Fatal })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("order broke on host db-7")]
    struct Order {
        code: Code,
        recoverable: bool,
    }

    impl AgentError for Order {
        fn code(&self) -> Option<Code> {
            Some(self.code.clone())
        }

        fn error_type(&self) -> Option<Cow<'_, str>> {
            Some("order_error".into())
        }

        fn recoverable(&self) -> bool {
            self.recoverable
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot ship")]
    struct Around<E: StdError + 'static>(#[source] E);

    fn order(code: impl Into<Code>) -> Order {
        Order { code: code.into(), recoverable: false }
    }

    #[test]
    fn integer_codes_become_decimal_text() {
        let codes: [(Code, &str); 7] = [
            (40401_i32.into(), "40401"),
            ((-1_i64).into(), "-1"),
            (u64::MAX.into(), "18446744073709551615"),
            (7_u8.into(), "7"),
            ("ORDER_INVENTORY_SOFT_TIMEOUT".into(), "ORDER_INVENTORY_SOFT_TIMEOUT"),
            (String::from("a b").into(), "a b"),
            ("007".into(), "007"),
        ];
        for (code, expected) in codes {
            let error = Error::typed(&order(code));
            assert_eq!(error.failure().unwrap().business_code, expected);
        }
    }

    #[test]
    fn same_code_may_be_recoverable_or_not() {
        for (recoverable, severity) in [(true, Severity::Recoverable), (false, Severity::Fatal)] {
            let error = Error::typed(&Order { recoverable, ..order(1) });
            let failure = error.failure().unwrap();
            assert_eq!(
                (failure.record().severity(), failure.business_code.as_str()),
                (severity, "1")
            );
        }
    }

    #[test]
    fn typed_error_keeps_its_display_text_for_the_log() {
        let error = Err::<(), _>(order(1)).typed().unwrap_err();
        let failure = error.failure().unwrap();
        assert_eq!(failure.public_message, reason::TASK_FAILED.title);
        assert_eq!(failure.error_type, "order_error");
        assert_eq!(failure.private().unwrap().for_log(), "order broke on host db-7");
    }

    #[test]
    fn recognised_type_is_found_among_the_sources() {
        let mut policy = ErrorPolicy::default();
        policy.recognise::<Order>();
        policy.normalise(Box::new(|_| Some(Error::new(&reason::INTERNAL))));
        let error = Error::from(Around(Around(order(40401)))).classified(&policy);
        let failure = error.failure().unwrap();
        assert_eq!(failure.business_code, "40401");
        let private = failure.private().unwrap().for_log();
        assert_eq!(private, "cannot ship: cannot ship: order broke on host db-7");
        let other = Error::from("boom").classified(&policy);
        assert_eq!(other.failure().unwrap().reason, "INTERNAL", "the normaliser runs last");
    }

    #[test]
    fn normalised_error_is_typed_and_logged_in_full() {
        let mut policy = ErrorPolicy::default();
        policy.normalise(Box::new(|error| {
            let io = causes(error).find_map(|e| e.downcast_ref::<io::Error>())?;
            let missing = io.kind() == io::ErrorKind::NotFound;
            missing.then(|| Error::new(&reason::NOT_FOUND).code("CACHE_MISS").because("not cached"))
        }));
        let miss = || io::Error::new(io::ErrorKind::NotFound, "/var/cache/canary");
        let error = Error::from(Around(miss())).classified(&policy);
        let failure = error.failure().unwrap();
        assert_eq!(
            (failure.business_code.as_str(), failure.public_message.as_str()),
            ("CACHE_MISS", "not cached")
        );
        assert!(failure.private().unwrap().for_log().contains("canary"));
        let marked = Error::from(MarkRecoverable::new(miss())).classified(&policy);
        let marked = marked.failure().unwrap();
        assert_eq!(
            (marked.severity(), marked.business_code.as_str()),
            (Severity::Recoverable, "CACHE_MISS")
        );
        let other = Error::from(io::Error::other("x")).classified(&policy);
        assert_eq!(other.failure().unwrap().reason, "UNKNOWN", "the normaliser may return nothing");
    }

    #[test]
    fn typed_failures_are_not_normalised() {
        let mut policy = ErrorPolicy::default();
        policy.normalise(Box::new(|_| Some(Error::new(&reason::INTERNAL))));
        let foreign = Failure::new(&reason::UNKNOWN).born_at(Default::default());
        for typed in [
            Error::new(&reason::RATE_LIMITED),
            Error::from("boom").code(1),
            Error::from(foreign),
            Error::typed(&order(1)),
        ] {
            let before = typed.failure().unwrap().id.clone();
            assert_eq!(typed.classified(&policy).failure().unwrap().id, before);
        }
    }
}
