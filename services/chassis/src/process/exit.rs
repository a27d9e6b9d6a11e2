//! Exit codes: numbers of sysexits on which a script can branch.

use std::{error::Error, fmt, io, iter::successors, process::ExitCode};

use faultline_proto::{Failure, reason::Reason};
use tonic::Code;

use crate::{auth::token_file, config, net::tls};

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

    /// The code for a failed call or task.
    pub fn of_failure(failure: &Failure) -> Self {
        Self::of(failure.code(), failure.may_retry())
    }

    /// The code for a failure of which only the reason is known.
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

    /// The code for an error that keeps a service from starting. A failure in the error chain
    /// decides; an occupied address or an unavailable disk is no mistake in the configuration.
    pub fn of_start(error: &(dyn Error + 'static)) -> Self {
        let chain = || successors(Some(error), |error| (*error).source());
        if let Some(failure) = chain().find_map(|error| error.downcast_ref()) {
            return Self::of_failure(failure);
        }
        match chain().any(|error| error.is::<io::Error>()) {
            // Files that the configuration names.
            true if chain().any(is_file_error) => Exit::CONFIG,
            true => Exit::UNAVAILABLE,
            false => Exit::CONFIG,
        }
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
    fn an_error_at_the_start_tells_configuration_from_surroundings() {
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
