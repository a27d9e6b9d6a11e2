//! Exit codes: numbers of sysexits on which a script can branch.

use std::{error::Error, fmt, io, process::ExitCode};

use faultline_proto::{
    Failure,
    advice::{Reader, Verdict, advise},
    reason::Reason,
};
use tonic::Code;

use crate::{auth::token_file, config, error_chain::causes, net::tls};

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(u8);

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
    /// The code that a shell reports for a process ended by SIGINT.
    pub const INTERRUPTED: Exit = Exit(130);

    pub fn number(self) -> u8 {
        self.0
    }

    /// The code for a failed call or task. It follows the verdict of the advice, so that a script
    /// and a person take the same next step: no script repeats work that may have been done.
    pub fn of_failure(failure: &Failure) -> Self {
        let verdict = advise(failure, Reader::Caller).verdict;
        match failure.code() {
            Code::Unauthenticated | Code::PermissionDenied => Exit::DENIED,
            _ if verdict == Verdict::Check => Exit::FAILED,
            Code::Unavailable => Exit::UNAVAILABLE,
            _ if verdict == Verdict::Retry => Exit::RETRYABLE,
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

    /// The code for a failure of which only the reason is known.
    pub fn of_row(row: &'static Reason) -> Self {
        Self::of_failure(&Failure::new(row))
    }

    /// The code for an error that keeps a service from starting. A failure in the error chain
    /// decides; an occupied address or an unavailable disk is no mistake in the configuration.
    pub fn of_start(error: &(dyn Error + 'static)) -> Self {
        if let Some(failure) = causes(error).find_map(|error| error.downcast_ref()) {
            return Self::of_failure(failure);
        }
        // A file error is about a file that the configuration names.
        let is_io = causes(error).any(|error| error.is::<io::Error>());
        if is_io && !causes(error).any(is_file_error) { Exit::UNAVAILABLE } else { Exit::CONFIG }
    }
}

fn is_file_error(error: &(dyn Error + 'static)) -> bool {
    error.is::<config::Error>() || error.is::<tls::Error>() || error.is::<token_file::Error>()
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
    use faultline_proto::reason::{self, Retry};

    use super::*;

    #[test]
    fn exit_code_follows_from_code_and_retryability() {
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
    fn unknown_outcome_is_no_invitation_to_repeat() {
        let unknown = reason::TABLE.iter().filter(|row| row.retry == Retry::Idempotent);
        for row in unknown {
            assert_eq!(Exit::of_row(row), Exit::FAILED, "{}", row.name);
        }
        let lost = Failure::new(&reason::WORKER_LOST).with_retryable(false);
        assert_eq!(Exit::of_failure(&lost), Exit::FAILED);
        // The same key makes the repeat safe.
        let keyed = Failure::new(&reason::OUTCOME_UNKNOWN).with_repeat_by_key();
        assert_eq!(Exit::of_failure(&keyed), Exit::UNAVAILABLE);
    }

    #[test]
    fn start_error_distinguishes_configuration_from_environment() {
        let io = |kind| io::Error::from(kind);
        let code = |error: &(dyn Error + 'static)| Exit::of_start(error);
        assert_eq!(code(&Failure::new(&reason::UNAUTHENTICATED_CALLER)), Exit::DENIED);
        assert_eq!(code(&io(io::ErrorKind::AddrInUse)), Exit::UNAVAILABLE);
        let path = "key.pem".into();
        let source = io(io::ErrorKind::NotFound);
        assert_eq!(code(&tls::Error::Unreadable { path, source }), Exit::CONFIG);
        let path = "faultline.toml".into();
        let source = io(io::ErrorKind::NotFound);
        assert_eq!(code(&config::Error::Unreadable { path, source }), Exit::CONFIG);
        assert_eq!(code(&fmt::Error), Exit::CONFIG);
    }
}
