//! What all long-running commands share: a runtime, telemetry, signals, and the line that says
//! that it serves.

use std::{
    io::{self, Write},
    path::PathBuf,
    process,
    time::Duration,
};

use anyhow::Context;
use faultline_chassis::{Drain, admin::Probes, descriptors, limits, telemetry, tls};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};

use crate::{config::Log, exit::Exit, watch::Watch};

/// How many threads a role serves with.
#[derive(Debug, clap::Args)]
pub(crate) struct Threads {
    /// Threads that serve; above 1 the work is shared among them.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

impl Threads {
    pub(crate) fn count(&self) -> usize {
        self.threads.into()
    }
}

/// What a listener shows and whom it lets in.
#[derive(Debug, clap::Args)]
pub(crate) struct Guard {
    /// The certificate to serve with, a PEM file [default: no TLS].
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve other machines without asking anybody for a token.
    #[arg(long)]
    insecure: bool,
}

impl Guard {
    /// Lays the flags over what was configured.
    pub(crate) fn over(self, tls: &mut Option<tls::Files>, insecure: &mut bool) {
        if let (Some(cert), Some(key)) = (self.tls_cert, self.tls_key) {
            *tls = Some(tls::Files { cert, key });
        }
        *insecure |= self.insecure;
    }
}

/// Before this much time nobody wonders what a service waits for.
const PATIENCE: Duration = Duration::from_secs(2);

/// One thread is a runtime without work stealing, which serves more on it; zero is as many as
/// there are cores.
pub(crate) fn runtime(threads: usize) -> io::Result<Runtime> {
    match threads {
        0 => Builder::new_multi_thread().enable_all().build(),
        1 => Builder::new_current_thread().enable_all().build(),
        n => Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    }
}

/// Runs a service to its end: until `work` returns, which it should soon after the drain starts.
/// `work` tells the probes when it has started.
pub(crate) fn serve<W>(
    threads: usize,
    log: Log,
    service: &str,
    watch: Watch,
    work: impl FnOnce(Drain, Probes) -> W,
) -> anyhow::Result<Exit>
where
    W: Future<Output = anyhow::Result<()>>,
{
    runtime(threads).context("no runtime")?.block_on(async {
        let telemetry = telemetry::start(log.options(service))?;
        descriptors::raise_limit();
        let drain = Drain::new();
        watch_signals(drain.clone())?;
        let patience = watch.delay + limits::DRAIN_TIMEOUT + Duration::from_millis(500);
        let watched = watch.start(&drain).await?;
        let ended = out(&drain, patience, work(drain.clone(), watched.probes.clone())).await;
        watched.end().await;
        telemetry.flush().await;
        ended
    })
}

/// Sees `work` out, for so long after the drain has started. Whoever has to be cut off then did not
/// leave in order, and the code says so: nobody reads the log of what is gone.
async fn out(
    drain: &Drain,
    patience: Duration,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Exit> {
    match drain.bound(patience, work).await {
        Some(ended) => ended.map(|()| Exit::OK),
        None => {
            tracing::error!("cut off after {} s of leaving", patience.as_secs());
            Ok(Exit::FAILED)
        }
    }
}

/// The first signal starts the drain, the second ends the process.
fn watch_signals(drain: Drain) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("no signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("no signals")?;
    tokio::spawn(async move {
        next_signal(&mut terminate, &mut interrupt).await;
        let seconds = limits::DRAIN_TIMEOUT.as_secs();
        tracing::info!("leaving, within {seconds} s; once more to stop at once");
        drain.start();
        let number = next_signal(&mut terminate, &mut interrupt).await;
        process::exit(128 + number);
    });
    Ok(())
}

async fn next_signal(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
    let kind = tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    };
    kind.as_raw_value()
}

/// The line that scripts wait for, out at once whatever stdout is.
pub(crate) fn ready(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Waits for `is_so` and says what for, when it takes long. Ends early when `drain` starts.
pub(crate) async fn until<F>(drain: &Drain, what: &str, mut is_so: impl FnMut() -> F) -> bool
where
    F: Future<Output = bool>,
{
    let looking = async {
        let mut pause = Duration::from_millis(10);
        while !is_so().await {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    };
    let wondering = async {
        sleep(PATIENCE).await;
        tracing::warn!("waiting for {what}");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = looking => true,
        () = wondering => false,
        () = drain.signalled() => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_service_that_does_not_leave_is_cut_off_and_its_code_says_so() {
        let (drain, patience) = (Drain::new(), Duration::from_millis(20));
        let leaving = async {
            drain.signalled().await;
            Ok(())
        };
        drain.start();
        assert_eq!(out(&drain, patience, leaving).await.unwrap(), Exit::OK);
        let hanging = std::future::pending();
        assert_eq!(out(&drain, patience, hanging).await.unwrap(), Exit::FAILED);
        let failing = async { anyhow::bail!("it broke") };
        assert!(out(&drain, patience, failing).await.is_err());
    }
}
