//! The `main` of a worker program: arguments, configuration, logs, OTLP, metrics, probes, signals
//! and the exit code around the agents that the program offers.

use std::{error::Error as StdError, ffi::OsString, io::Write, path::PathBuf, process::ExitCode};

use faultline_chassis::{Exit, config::nearest, error_chain::one_line, process::Process};

use crate::{Config, Settings, Worker};

/// `service.name` of spans, logs and metrics, unless `OTEL_SERVICE_NAME` is set.
const SERVICE: &str = "faultline-worker";

const HELP: &str = "\
Runs a worker of a faultline mesh with the agents of this program.

Options:
  --config FILE  The configuration file [default: the file that FAULTLINE_CONFIG names, or
                 faultline.toml in the working directory, if it exists]
  -h, --help     Print this text

The sections [worker], [mesh] and [log] of the file are read, those of other roles are ignored.
Every key may also be set in the environment, which wins, as FAULTLINE_SECTION__KEY:
  FAULTLINE_WORKER__COORDINATOR  Where coordinators are [default: http://127.0.0.1:8081]
  FAULTLINE_WORKER__SLOTS        How many tasks may compute at once [default: 64]
  FAULTLINE_WORKER__NAME         The name of this worker [default: host name and process id]
  FAULTLINE_WORKER__ADMIN        Where /metrics, /livez, /readyz and /startupz are served,
                                 such as 0.0.0.0:9464 [default: nowhere]
  FAULTLINE_MESH__TOKEN          The token that the coordinator asks for; FAULTLINE_MESH__TOKEN_FILE
                                 names a file with it [default: .faultline/mesh.token, for a
                                 coordinator on this machine]
  FAULTLINE_MESH__CA             The CA of the coordinator's certificate, a PEM file
  FAULTLINE_LOG                  What is logged, such as debug [default: info]
  FAULTLINE_LOG__JSON            Whether logs are JSON, one object a line [default: false]
  OTEL_EXPORTER_OTLP_ENDPOINT    Where spans, logs and metrics are sent; the other variables of
                                 OpenTelemetry are honoured too

Prints `ready` on stdout once a coordinator has accepted it. SIGTERM or Ctrl-C lets running tasks
finish, for 10 s at most, and hands the rest back; a second one stops at once.

Exit codes: 0 left in order, 64 wrong arguments, 65 or 77 refused by the coordinator,
69 an address is taken, 70 failed or cut off while it left, 78 wrong configuration.
";

/// An error of the set-up of a program.
pub type SetupError = Box<dyn StdError + Send + Sync>;

/// Runs a worker until SIGTERM or Ctrl-C. A program needs no more than this:
///
/// ```no_run
/// # use faultline_worker::{Agent, Context, Error, Offer};
/// # struct Shout;
/// # impl Agent for Shout {
/// #     async fn run(&self, _: &Context) -> Result<(), Error> { Ok(()) }
/// # }
/// #[tokio::main]
/// async fn main() -> std::process::ExitCode {
///     faultline_worker::main(|worker| worker.offer(Offer::new("shout", Shout))).await
/// }
/// ```
///
/// - Configuration: `--config FILE`, or the file that `FAULTLINE_CONFIG` names, or `faultline.toml`
///   if it exists. Variables `FAULTLINE_SECTION__KEY` override the file. See [`Settings`].
/// - Logs go to stderr, as text or JSON. Spans, logs and metrics go to an OTLP collector if the
///   `OTEL_…` variables name one; the spans of this worker are part of the traces of its tasks.
/// - `admin` in `[worker]` opens a port with `/metrics`, `/livez`, `/readyz` and `/startupz`.
/// - SIGTERM and Ctrl-C drain the worker. `--help` lists the exit codes.
///
/// Call it once in a process, and only if no other `tracing` subscriber is installed.
pub async fn main(build: impl FnOnce(Worker) -> Worker) -> ExitCode {
    try_main(async |worker| Ok(build(worker))).await
}

/// Like [`main`], for a set-up that is asynchronous or may fail. The set-up runs after the
/// arguments are read and the logs are started; its error is printed and ends the process with code
/// 70.
///
/// ```no_run
/// # use faultline_worker::{Agent, Context, Error, Offer};
/// # struct Ledger(std::net::SocketAddr);
/// # impl Agent for Ledger {
/// #     async fn run(&self, _: &Context) -> Result<(), Error> { Ok(()) }
/// # }
/// #[tokio::main]
/// async fn main() -> std::process::ExitCode {
///     faultline_worker::try_main(async |worker| {
///         let mut found = tokio::net::lookup_host("localhost:7000").await?;
///         let ledger = Ledger(found.next().ok_or("the ledger has no address")?);
///         Ok(worker.offer(Offer::new("ledger", ledger)))
///     })
///     .await
/// }
/// ```
pub async fn try_main(build: impl AsyncFnOnce(Worker) -> Result<Worker, SetupError>) -> ExitCode {
    let file = match arguments(std::env::args_os().skip(1)) {
        Ok(Arguments::Help) => {
            // A closed stdout is no error here.
            let _ = std::io::stdout().write_all(HELP.as_bytes());
            return Exit::OK.into();
        }
        Ok(Arguments::Run(file)) => file,
        Err(problem) => {
            eprintln!("error: {problem}; see --help");
            return Exit::USAGE.into();
        }
    };
    match Settings::load(file.as_deref()) {
        Ok(settings) => settings.run(build).await,
        Err(error) => failed(&error, Exit::CONFIG),
    }
}

impl Settings {
    /// Runs a worker with these settings until SIGTERM or Ctrl-C, as [`main`] does.
    pub async fn run(
        self,
        build: impl AsyncFnOnce(Worker) -> Result<Worker, SetupError>,
    ) -> ExitCode {
        let process = Process::new(SERVICE, self.log.clone(), self.worker.admin, &self.env);
        let config = Config { metrics: process.metrics(), ..self.into_config() };
        let started = match process.start().await {
            Ok(started) => started,
            Err(error) => return failed(&error, Exit::of_start(&error)),
        };
        let drain = started.drain();
        let probes = started.probes();
        let work = async {
            let worker = build(Worker::new(config)).await.map_err(Failed::Setup)?;
            worker.serve(drain, probes).await.map_err(Failed::Service)
        };
        match started.run(work).await {
            Ok(exit) => exit.into(),
            Err(Failed::Setup(error)) => failed(&*error, Exit::FAILED),
            Err(Failed::Service(error)) => failed(&error, Exit::of_start(&error)),
        }
    }
}

enum Failed {
    Setup(SetupError),
    Service(crate::ServiceError),
}

fn failed(error: &(dyn StdError + 'static), exit: Exit) -> ExitCode {
    eprintln!("error: {}", one_line(error));
    exit.into()
}

#[derive(Debug, PartialEq)]
enum Arguments {
    Help,
    /// The configuration file, if one was given.
    Run(Option<PathBuf>),
}

fn arguments(args: impl Iterator<Item = OsString>) -> Result<Arguments, String> {
    let mut args = args;
    let mut file = None;
    while let Some(argument) = args.next() {
        let text = argument.to_string_lossy();
        let value = match text.split_once('=') {
            _ if text == "--help" || text == "-h" => return Ok(Arguments::Help),
            _ if text == "--config" => args.next().unwrap_or_default(),
            Some(("--config", value)) => value.into(),
            _ => {
                let hint = nearest(&text, ["--config", "--help"]);
                let hint = hint.map(|known| format!(", did you mean '{known}'?"));
                return Err(format!("unknown argument '{text}'{}", hint.unwrap_or_default()));
            }
        };
        if value.is_empty() {
            return Err("--config needs a FILE".to_owned());
        }
        if file.replace(PathBuf::from(value)).is_some() {
            return Err("--config is given twice".to_owned());
        }
    }
    Ok(Arguments::Run(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Arguments, String> {
        arguments(args.iter().map(OsString::from))
    }

    #[test]
    fn configuration_file_is_the_only_option() {
        assert_eq!(read(&[]), Ok(Arguments::Run(None)));
        for args in [&["--config", "a.toml"][..], &["--config=a.toml"]] {
            assert_eq!(read(args), Ok(Arguments::Run(Some("a.toml".into()))), "{args:?}");
        }
        assert_eq!(read(&["--config", "a.toml", "-h"]), Ok(Arguments::Help));
        assert_eq!(read(&["--help", "--nonsense"]), Ok(Arguments::Help));
    }

    #[test]
    fn unknown_argument_error_names_the_nearest_option() {
        let refused = |args: &[&str]| read(args).unwrap_err();
        let expected = "unknown argument '--confg', did you mean '--config'?";
        assert_eq!(refused(&["--confg", "x"]), expected);
        assert_eq!(refused(&["worker"]), "unknown argument 'worker'");
        for args in [&["--config"][..], &["--config="]] {
            assert_eq!(refused(args), "--config needs a FILE", "{args:?}");
        }
        assert_eq!(refused(&["--config", "a", "--config", "b"]), "--config is given twice");
    }
}
