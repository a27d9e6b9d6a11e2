//! One long-running process around a service: logs and OTLP, signals and graceful shutdown, the
//! admin port with metrics and probes, and the exit code. All roles of the binary, and workers
//! written by users, run in it. May depend on every other folder.
//!
//! May use: every other folder.

pub mod admin;
pub mod descriptors;
pub mod exit;
mod log;
mod signals;

use std::{
    io::{self, Write},
    net::SocketAddr,
    time::Duration,
};

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

pub use log::Log;
pub use signals::Signals;

use self::{
    admin::{Admin, Probes},
    exit::Exit,
};
use crate::{
    backoff::Backoff,
    config::Environment,
    drain::Drain,
    limits,
    metrics::{
        Metrics,
        export::{self, Exporting},
    },
    server::BindError,
    telemetry::{self, Telemetry},
};

/// Waiting time of a service for another before the log reports it.
const WAIT_WARNING_AFTER: Duration = Duration::from_secs(2);
/// The pauses between two checks of the other service.
const POLL: Backoff =
    Backoff::new(Duration::from_millis(10), Duration::from_millis(250)).without_jitter();
/// The time that a process may take beyond its drain before it is stopped.
const DRAIN_SLACK: Duration = Duration::from_millis(500);

/// The reason for which a process cannot start, apart from its service.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    #[error("the telemetry cannot start")]
    Metrics(#[from] export::Error),
    #[error("signals cannot be handled")]
    Signals(#[source] io::Error),
    #[error("the admin port cannot start")]
    Admin(#[from] BindError),
}

/// A configured process that has not started.
pub struct Process {
    metrics: Metrics,
    telemetry: telemetry::Options,
    admin: Option<SocketAddr>,
    otlp: Option<export::Options>,
    /// Values of `OTEL_` variables that cannot be used, for the log.
    ignored: Vec<String>,
    drain_delay: Duration,
}

impl Process {
    /// The process of the service of this name, with its `[log]` section and the address of its
    /// admin port. `env` is read for the `OTEL_` variables.
    pub fn new(service: &str, log: Log, admin: Option<SocketAddr>, env: &Environment) -> Self {
        let mut ignored = Vec::new();
        let endpoint = log.otlp_endpoint.as_deref();
        let otlp = export::options(env, endpoint, |what| ignored.push(what));
        let metrics = Metrics::of(service);
        let telemetry = log.options(service, env);
        Self { metrics, telemetry, admin, otlp, ignored, drain_delay: Duration::ZERO }
    }

    /// The registry of the service's metrics.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Sets how long the service keeps serving after the signal to leave.
    pub fn drain_delay(self, drain_delay: Duration) -> Self {
        Self { drain_delay, ..self }
    }

    /// Starts everything around the service. Call it once in a process, inside a runtime.
    pub async fn start(self) -> Result<Started, Error> {
        let telemetry = telemetry::start(self.telemetry)?;
        descriptors::raise_limit();
        let drain = Drain::new();
        drain_on_signal(drain.clone()).map_err(Error::Signals)?;
        for what in &self.ignored {
            tracing::warn!("ignored an unusable setting: {what}");
        }
        let probes = Probes::default();
        let exporting = self.otlp.map(|otlp| export::start(self.metrics.clone(), otlp));
        let exporting = exporting.transpose()?;
        let serving = match self.admin {
            Some(address) => {
                let admin = Admin::bind(address, self.metrics, probes.clone()).await?;
                tracing::info!(address = %admin.addr(), "admin port serves probes and metrics");
                Some(AbortOnDropHandle::new(tokio::spawn(admin.serve())))
            }
            None => None,
        };
        let leaving = AbortOnDropHandle::new(tokio::spawn({
            let drain = drain.clone();
            let probes = probes.clone();
            async move {
                drain.signalled().await;
                probes.mark_leaving();
            }
        }));
        let patience = self.drain_delay + limits::DRAIN_TIMEOUT + DRAIN_SLACK;
        let _tasks = (serving, leaving);
        Ok(Started { drain, probes, patience, telemetry, exporting, _tasks })
    }
}

/// A process in which everything has started but its service.
pub struct Started {
    drain: Drain,
    probes: Probes,
    /// The time that the service may take to leave.
    patience: Duration,
    telemetry: Telemetry,
    exporting: Option<Exporting>,
    _tasks: (Option<AbortOnDropHandle<()>>, AbortOnDropHandle<()>),
}

impl Started {
    /// Signalled by the first signal to leave.
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    /// The probes, on which the service marks when it has started and whether it is ready.
    pub fn probes(&self) -> Probes {
        self.probes.clone()
    }

    /// Runs the service until it ends, which it should soon after the drain starts, and then
    /// exports the remaining telemetry.
    pub async fn run<E>(self, service: impl Future<Output = Result<(), E>>) -> Result<Exit, E> {
        let ended = run_bounded(&self.drain, self.patience, service).await;
        if let Some(exporting) = self.exporting {
            exporting.flush().await;
        }
        self.telemetry.flush().await;
        ended
    }
}

/// Bounds the drain. A service that has to be stopped did not shut down gracefully, and the exit
/// code shows it.
async fn run_bounded<E>(
    drain: &Drain,
    patience: Duration,
    service: impl Future<Output = Result<(), E>>,
) -> Result<Exit, E> {
    match drain.bound(patience, service).await {
        Some(ended) => ended.map(|()| Exit::OK),
        None => {
            tracing::error!("graceful shutdown timed out after {} s", patience.as_secs());
            Ok(Exit::FAILED)
        }
    }
}

/// The first signal starts the drain, the second ends the process.
fn drain_on_signal(drain: Drain) -> io::Result<()> {
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        signals.next().await;
        let seconds = limits::DRAIN_TIMEOUT.as_secs();
        tracing::info!("draining for at most {seconds} s; a second signal exits at once");
        drain.start();
        let number = signals.next().await;
        std::process::exit(128 + number);
    });
    Ok(())
}

/// Prints the line that scripts wait for, and flushes it.
pub fn print_ready_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Polls a condition, and logs a warning with `what` when it takes long. Returns `false` if `drain`
/// starts first.
pub async fn wait_until<F>(drain: &Drain, what: &str, mut is_so: impl FnMut() -> F) -> bool
where
    F: Future<Output = bool>,
{
    let polling = async {
        let mut pauses = POLL.start();
        while !is_so().await {
            sleep(pauses.next_pause()).await;
        }
    };
    let warning = async {
        sleep(WAIT_WARNING_AFTER).await;
        tracing::warn!("waiting for {what}");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = polling => true,
        () = warning => false,
        () = drain.signalled() => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn service_that_outlives_its_drain_is_stopped_with_an_error_code() {
        let drain = Drain::new();
        let patience = Duration::from_millis(20);
        let leaving = async {
            drain.signalled().await;
            Ok::<(), &str>(())
        };
        drain.start();
        assert_eq!(run_bounded(&drain, patience, leaving).await, Ok(Exit::OK));
        let hanging = std::future::pending::<Result<(), &str>>();
        assert_eq!(run_bounded(&drain, patience, hanging).await, Ok(Exit::FAILED));
        let failing = async { Err("it broke") };
        assert_eq!(run_bounded(&drain, patience, failing).await, Err("it broke"));
    }
}
