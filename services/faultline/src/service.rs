//! The flags and the runtime that `up`, `coordinator`, `gateway` and `worker` have in common.

use std::{io, net::SocketAddr, path::PathBuf};

use anyhow::Context;
use faultline_chassis::{Drain, MeshConfig, admin::Probes, process::Process, tls};
use tokio::runtime::{Builder, Runtime};

use crate::exit::Exit;

/// The flag for the admin port.
#[derive(Debug, clap::Args)]
pub(crate) struct AdminFlag {
    /// The address of the admin port with the probes (/livez, /readyz, /startupz) and /metrics,
    /// without authentication; port 0 takes any free one [default: none].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<SocketAddr>,
}

/// The flag for the number of threads.
#[derive(Debug, clap::Args)]
pub(crate) struct ThreadsFlag {
    /// Threads that serve; above 1 the runtime distributes work among them.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

impl ThreadsFlag {
    pub(crate) fn count(&self) -> usize {
        self.threads.into()
    }
}

/// The flag for the directory with the generated token of a mesh on one machine.
#[derive(Debug, clap::Args)]
pub(crate) struct DataFlag {
    /// The data directory of the mesh, with the generated token in mesh.token below it [default:
    /// .faultline].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl DataFlag {
    /// Overrides the configured value with the flag.
    pub(crate) fn apply(self, mesh: &mut MeshConfig) {
        mesh.data = self.data.or(mesh.data.take());
    }
}

/// The flags for the certificate of a listener.
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
    /// Overrides the configured files with the flags.
    pub(crate) fn apply(self, tls: &mut Option<tls::Files>) {
        if let (Some(cert), Some(key)) = (self.tls_cert, self.tls_key) {
            *tls = Some(tls::Files { cert, key });
        }
    }
}

/// A runtime with so many threads; zero means one per core. With one thread the runtime has no
/// work stealing, which gives more throughput on that thread.
pub(crate) fn runtime(threads: usize) -> io::Result<Runtime> {
    match threads {
        0 => Builder::new_multi_thread().enable_all().build(),
        1 => Builder::new_current_thread().enable_all().build(),
        n => Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    }
}

/// Runs a service until `service` returns, which it should do soon after the drain starts.
/// `service` marks the startup probe as passed.
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
