//! Flags and the runtime that all long-running commands share.

use std::{io, net::SocketAddr, path::PathBuf};

use anyhow::Context;
use faultline_chassis::{Drain, MeshConfig, admin::Probes, process::Process, tls};
use tokio::runtime::{Builder, Runtime};

use crate::exit::Exit;

/// The port of operators.
#[derive(Debug, clap::Args)]
pub(crate) struct AdminFlag {
    /// Where probes (/livez, /readyz, /startupz) and /metrics are served, to whoever reaches it;
    /// port 0 takes any free one [default: nowhere].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<SocketAddr>,
}

/// How many threads a role serves with.
#[derive(Debug, clap::Args)]
pub(crate) struct ThreadsFlag {
    /// Threads that serve; above 1 the work is shared among them.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

impl ThreadsFlag {
    pub(crate) fn count(&self) -> usize {
        self.threads.into()
    }
}

/// The directory with the token of a mesh on one machine.
#[derive(Debug, clap::Args)]
pub(crate) struct DataFlag {
    /// The data directory of the mesh, with the generated token in mesh.token below it [default:
    /// .faultline].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl DataFlag {
    /// Lays the flag over what was configured.
    pub(crate) fn apply(self, mesh: &mut MeshConfig) {
        mesh.data = self.data.or(mesh.data.take());
    }
}

/// The certificate of a listener.
#[derive(Debug, clap::Args)]
pub(crate) struct TlsFlags {
    /// The certificate to serve with, a PEM file [default: no TLS].
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsFlags {
    /// Lays the flags over what was configured.
    pub(crate) fn apply(self, tls: &mut Option<tls::Files>) {
        if let (Some(cert), Some(key)) = (self.tls_cert, self.tls_key) {
            *tls = Some(tls::Files { cert, key });
        }
    }
}

/// One thread is a runtime without work stealing, which serves more on it; zero is as many as
/// there are cores.
pub(crate) fn runtime(threads: usize) -> io::Result<Runtime> {
    match threads {
        0 => Builder::new_multi_thread().enable_all().build(),
        1 => Builder::new_current_thread().enable_all().build(),
        n => Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    }
}

/// Runs a service in its process to its end: until `service` returns, which it should soon after
/// the drain starts. `service` tells the probes when it has started.
pub(crate) fn serve<S>(
    threads: usize,
    process: Process,
    service: impl FnOnce(Drain, Probes) -> S,
) -> anyhow::Result<Exit>
where
    S: Future<Output = anyhow::Result<()>>,
{
    runtime(threads).context("no runtime")?.block_on(async {
        let started = process.start().await?;
        let service = service(started.drain(), started.probes());
        started.run(service).await
    })
}
