//! Exit codes by sysexits, so that a script can branch on the outcome of a command.

use std::{error::Error, fmt};

use faultline_chassis::{config, process, telemetry};
use faultline_proto::{Failure, a2a::TaskState};

pub use faultline_chassis::Exit;

/// The exit codes as `--help` lists them.
pub(crate) const HELP: &str = "\
Exit codes:
  0   success
  3   the task waits for an answer
  64  the command line is wrong
  65  the input is wrong: change it before trying again
  69  unavailable: no service answers right now
  70  failed: a retry would not help, or may do the work twice
  75  failed: a retry may help
  77  denied
  78  the configuration is wrong";

/// The exit code of a task in this state. A failure of the task takes precedence.
pub(crate) fn of_state(state: TaskState) -> Exit {
    match state {
        TaskState::InputRequired | TaskState::AuthRequired => Exit::WAITING,
        TaskState::Failed | TaskState::Rejected | TaskState::Canceled => Exit::FAILED,
        TaskState::Unspecified
        | TaskState::Submitted
        | TaskState::Working
        | TaskState::Completed => Exit::OK,
    }
}

/// The exit code of an error of a command.
pub(crate) fn of_error(error: &anyhow::Error) -> Exit {
    if let Some(failure) = error.chain().find_map(|e| e.downcast_ref::<Failure>()) {
        return Exit::of_failure(failure);
    }
    let is_config =
        |e: &(dyn Error + 'static)| e.is::<config::Error>() || e.is::<telemetry::Error>();
    let is_transient = |e: &(dyn Error + 'static)| {
        e.downcast_ref().is_some_and(faultline_coordinator::Error::is_transient)
    };
    let starts = error.is::<CannotStart>() || error.chain().any(|e| e.is::<process::Error>());
    if starts && error.chain().any(is_transient) {
        // The database is not reachable.
        Exit::UNAVAILABLE
    } else if starts {
        Exit::of_start(error.as_ref())
    } else if error.chain().any(is_config) {
        Exit::CONFIG
    } else {
        Exit::FAILED
    }
}

/// The context of an error that prevents a service from starting; usually a wrong configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CannotStart(pub(crate) &'static str);

impl fmt::Display for CannotStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} cannot start", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use faultline_chassis::{MeshConfig, Secret, tls};
    use faultline_proto::reason;

    use super::*;

    #[test]
    fn failure_below_a_context_decides_the_exit_code() {
        let error = anyhow::Error::new(Failure::new(&reason::RATE_LIMITED)).context("sending");
        assert_eq!(of_error(&error), Exit::RETRYABLE);
        assert_eq!(of_error(&anyhow::anyhow!("other")), Exit::FAILED);
        assert_eq!(of_state(TaskState::AuthRequired), Exit::WAITING);
        let start = |error: anyhow::Error| of_error(&error.context(CannotStart("gateway")));
        assert_eq!(start(anyhow::anyhow!("no such agent")), Exit::CONFIG);
        let io = |kind| io::Error::from(kind);
        assert_eq!(start(io(io::ErrorKind::AddrInUse).into()), Exit::UNAVAILABLE);
        let path = "key.pem".into();
        let source = io(io::ErrorKind::NotFound);
        assert_eq!(start(tls::Error::Unreadable { path, source }.into()), Exit::CONFIG);
    }

    #[tokio::test]
    async fn unreachable_database_is_unavailable_and_not_a_configuration_error() {
        let start = async |store: &str| {
            let config = faultline_coordinator::Config::default();
            let mesh =
                MeshConfig { in_process_token: Some(Secret::random()), ..MeshConfig::default() };
            let config = faultline_coordinator::Config { store: store.to_owned(), mesh, ..config };
            let error = config.bind().await.err().expect("the coordinator cannot start");
            of_error(&anyhow::Error::new(error).context(CannotStart("coordinator")))
        };
        assert_eq!(start("postgres://me@127.0.0.1:1/mesh").await, Exit::UNAVAILABLE);
        assert_eq!(start("mysql://me@127.0.0.1:1/mesh").await, Exit::CONFIG);
    }
}
