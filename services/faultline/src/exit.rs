//! How a command ends, as a number a script can branch on. The numbers are those of sysexits.

use std::{fmt, io, process::ExitCode};

use faultline_chassis::{config, telemetry, tls};
use faultline_proto::{Failure, a2a::TaskState, reason::Reason};
use tonic::Code;

/// A code of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(u8);

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0   it went well
  3   the task waits for an answer
  64  the command line is wrong
  65  the input is wrong: change it before trying again
  69  unavailable: nobody serves this right now
  70  it failed, and trying again would not help
  75  it failed, and trying again may help
  77  denied
  78  the configuration is wrong";

impl Exit {
    pub const OK: Exit = Exit(0);
    pub const WAITING: Exit = Exit(3);
    pub const USAGE: Exit = Exit(64);
    pub const BAD_INPUT: Exit = Exit(65);
    pub const UNAVAILABLE: Exit = Exit(69);
    pub const FAILED: Exit = Exit(70);
    pub const RETRYABLE: Exit = Exit(75);
    pub const DENIED: Exit = Exit(77);
    pub const CONFIG: Exit = Exit(78);
    /// As a shell reports a process that SIGINT ended.
    pub const INTERRUPTED: Exit = Exit(130);

    pub fn number(self) -> u8 {
        self.0
    }

    /// Of a call that failed, or a task that did.
    pub fn of_failure(failure: &Failure) -> Self {
        Self::of(failure.code(), failure.may_retry())
    }

    /// Of a failure that says nothing but its reason.
    pub fn of_row(row: &Reason) -> Self {
        Self::of(row.code, row.retry.may_retry())
    }

    fn of(code: Code, retryable: bool) -> Self {
        match code {
            Code::Unauthenticated | Code::PermissionDenied => Exit::DENIED,
            Code::Unavailable => Exit::UNAVAILABLE,
            _ if retryable => Exit::RETRYABLE,
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition => Exit::BAD_INPUT,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss => Exit::FAILED,
        }
    }

    /// Of a task in this state whose failure, if it has one, is known otherwise.
    pub fn of_state(state: TaskState) -> Self {
        match state {
            TaskState::InputRequired | TaskState::AuthRequired => Exit::WAITING,
            TaskState::Failed | TaskState::Rejected | TaskState::Canceled => Exit::FAILED,
            TaskState::Unspecified
            | TaskState::Submitted
            | TaskState::Working
            | TaskState::Completed => Exit::OK,
        }
    }

    /// Of whatever went wrong on the way.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        if let Some(failure) = error.chain().find_map(|e| e.downcast_ref::<Failure>()) {
            return Self::of_failure(failure);
        }
        let is_config = |e: &(dyn std::error::Error + 'static)| {
            e.is::<config::Error>() || e.is::<telemetry::Error>()
        };
        let is_files = |e: &(dyn std::error::Error + 'static)| e.is::<tls::Error>();
        let is_passing = |e: &(dyn std::error::Error + 'static)| {
            e.downcast_ref().is_some_and(faultline_coordinator::Error::is_passing)
        };
        match error.downcast_ref::<CannotStart>() {
            Some(_) if error.chain().any(is_files) => Exit::CONFIG,
            // The configuration may be fine, but an address is taken, a disk or a database away.
            Some(_) if error.chain().any(|e| e.is::<io::Error>() || is_passing(e)) => {
                Exit::UNAVAILABLE
            }
            Some(_) => Exit::CONFIG,
            None if error.chain().any(is_config) => Exit::CONFIG,
            None => Exit::FAILED,
        }
    }
}

/// The context of whatever keeps a service from starting; almost always its configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CannotStart(pub(crate) &'static str);

impl fmt::Display for CannotStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} cannot start", self.0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.0)
    }
}

#[cfg(test)]
mod tests {
    use faultline_proto::reason;

    use super::*;

    #[test]
    fn every_code_and_flag_has_its_number() {
        // Code, exit when not retryable, exit when retryable.
        let table = [
            (Code::Cancelled, 70, 75),
            (Code::Unknown, 70, 75),
            (Code::InvalidArgument, 65, 75),
            (Code::DeadlineExceeded, 70, 75),
            (Code::NotFound, 65, 75),
            (Code::AlreadyExists, 65, 75),
            (Code::PermissionDenied, 77, 77),
            (Code::ResourceExhausted, 70, 75),
            (Code::FailedPrecondition, 65, 75),
            (Code::Aborted, 70, 75),
            (Code::OutOfRange, 65, 75),
            (Code::Unimplemented, 70, 75),
            (Code::Internal, 70, 75),
            (Code::Unavailable, 69, 69),
            (Code::DataLoss, 70, 75),
            (Code::Unauthenticated, 77, 77),
        ];
        for (code, never, retryable) in table {
            let failure = Failure::new(reason::generic(code));
            let exit = |flag| Exit::of_failure(&failure.clone().with_retryable(flag)).number();
            assert_eq!((exit(false), exit(true)), (never, retryable), "{code:?}");
        }
        assert_eq!(table.len(), 16);
    }

    #[test]
    fn a_failure_is_found_under_its_context() {
        let error = anyhow::Error::new(Failure::new(&reason::RATE_LIMITED)).context("sending");
        assert_eq!(Exit::of_error(&error), Exit::RETRYABLE);
        assert_eq!(Exit::of_error(&anyhow::anyhow!("other")), Exit::FAILED);
        assert_eq!(Exit::of_state(TaskState::AuthRequired), Exit::WAITING);
        let start = |error: anyhow::Error| Exit::of_error(&error.context(CannotStart("gateway")));
        assert_eq!(start(anyhow::anyhow!("no such agent")), Exit::CONFIG);
        let io = |kind| io::Error::from(kind);
        assert_eq!(start(io(io::ErrorKind::AddrInUse).into()), Exit::UNAVAILABLE);
        let (path, source) = ("key.pem".into(), io(io::ErrorKind::NotFound));
        assert_eq!(start(tls::Error::Unreadable { path, source }.into()), Exit::CONFIG);
    }

    #[tokio::test]
    async fn a_database_that_is_away_is_no_mistake_of_the_configuration() {
        let start = async |store: &str| {
            let config = faultline_coordinator::Config::default();
            let config = faultline_coordinator::Config { store: store.to_owned(), ..config };
            let error = config.bind().await.err().expect("it cannot start");
            Exit::of_error(&anyhow::Error::new(error).context(CannotStart("coordinator")))
        };
        assert_eq!(start("postgres://me@127.0.0.1:1/mesh").await, Exit::UNAVAILABLE);
        assert_eq!(start("mysql://me@127.0.0.1:1/mesh").await, Exit::CONFIG);
    }
}
