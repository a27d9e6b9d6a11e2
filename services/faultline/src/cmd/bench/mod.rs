//! `faultline bench`: benchmarks of the mesh on this machine. The mesh and a bare chain of the same
//! hops run as processes of this binary, and load is applied to both in turns; the ratio is the
//! relevant figure, because machines are noisy. Speed is reported and not asserted; a failed
//! request is an error.
//!
//! Folders, each of which may use those before it: roles, load, figures, chain, sections.

mod chain;
mod figures;
mod load;
mod roles;
mod sections;

use std::{
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Subcommand, ValueEnum};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use roles::Args as RoleArgs;

use crate::exit::Exit;

use sections::{
    cancel, cluster, compare, failing, hop, idle, json, recovery, stored, streams, tracing,
};

const EXAMPLES: &str = "\
Examples:
  faultline bench                       the mesh against a bare chain of the same hops
  faultline bench --concurrency 64      only this concurrency
  faultline bench json                  the cost of ProtoJSON
  faultline bench recovery              memory and restart with many stored tasks
  faultline bench streams               many subscribers, and the memory of an idle one
  faultline bench cancel                one cancel of 500 tasks on 20 workers
  faultline bench failing               the CPU of a failed task against a successful one
  faultline bench tracing               the cost of exporting every span
  faultline bench hop --json            two ways from the gateway to the coordinator
  faultline bench idle                  the cost of 1,000 idle workers
  faultline bench stored                calls with 10,000 and with 1,000,000 stored tasks
  faultline bench cluster --postgres …  several coordinators on PostgreSQL, and many workers";

/// Measure the mesh on this machine, against a bare chain of the same hops.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    section: Option<Section>,
    /// Print one JSON object instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// The duration of load on each chain at each concurrency.
    #[arg(long, value_name = "SECONDS", global = true, default_value = "2.4",
          value_parser = seconds)]
    seconds: Duration,
    /// The number of concurrent connections [default: 1,16,64,256; hop: 1,64,256;
    /// failing: 1,16; stored: 1; cluster: 64].
    #[arg(long, value_name = "N", global = true, value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Vec<u16>,
    /// Only this kind of call.
    #[arg(long, global = true)]
    shape: Option<Shape>,
}

#[derive(Clone, Debug, Subcommand)]
enum Section {
    /// ProtoJSON of a typical task, encoded and decoded.
    Json,
    /// Memory with many stored tasks, and the time to serve again after kill -9.
    Recovery,
    /// 2,000 subscribers of 200 tasks: whether all see the same events, and the memory of an idle
    /// one.
    Streams,
    /// One cancel of a root with 500 live descendants on 20 workers: the time until all have
    /// stopped.
    Cancel,
    /// Three hops that fail at the bottom, against three that succeed: the CPU of each.
    Failing,
    /// Every span exported to a collector, against none: the loss of throughput.
    Tracing,
    /// Gateway to coordinator: a unary call per request, or one long-lived stream for all.
    Hop,
    /// Idle workers: the memory and the CPU of their coordinator.
    Idle(idle::Options),
    /// Get, list and dispatch with few stored tasks and with many.
    Stored(stored::Options),
    /// One, two and three coordinators on PostgreSQL, and 1 to 16 workers: the gain of each.
    Cluster(cluster::Options),
}

/// The kind of call under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shape {
    Send,
    Stream,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Send => "send",
            Shape::Stream => "stream",
        }
    }

    fn method(self) -> &'static str {
        match self {
            Shape::Send => "SendMessage",
            Shape::Stream => "SendStreamingMessage",
        }
    }
}

/// The result of a section, as text and as JSON.
struct Report {
    text: String,
    json: Value,
    /// The number of failed requests and violated bounds.
    failed: u64,
}

impl Args {
    /// Measures and prints. One thread only: the load generator shares the machine with the
    /// servers.
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let measured = crate::service::runtime(1).context("no runtime")?.block_on(self.measure());
        progress("");
        let report = measured?;
        let text = if self.json { format!("{:#}\n", report.json) } else { report.text };
        std::io::stdout().write_all(text.as_bytes())?;
        if report.failed > 0 {
            eprintln!("{} requests or bounds failed", report.failed);
            return Ok(Exit::FAILED);
        }
        Ok(Exit::OK)
    }

    /// Runs the section. A signal drops it, with its processes and directories.
    async fn measure(&self) -> anyhow::Result<Report> {
        let mut terminate = signal(SignalKind::terminate()).context("no signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("no signals")?;
        tokio::select! {
            report = self.section() => report,
            _ = terminate.recv() => bail!("interrupted"),
            _ = interrupt.recv() => bail!("interrupted"),
        }
    }

    async fn section(&self) -> anyhow::Result<Report> {
        match &self.section {
            None => compare::run(self).await,
            Some(Section::Json) => Ok(json::run()),
            Some(Section::Recovery) => recovery::run().await,
            Some(Section::Streams) => streams::run().await,
            Some(Section::Cancel) => cancel::run().await,
            Some(Section::Failing) => failing::run(self).await,
            Some(Section::Tracing) => tracing::run(self).await,
            Some(Section::Hop) => hop::run(self).await,
            Some(Section::Idle(options)) => idle::run(self, options).await,
            Some(Section::Stored(options)) => stored::run(self, options).await,
            Some(Section::Cluster(options)) => cluster::run(self, options).await,
        }
    }

    fn concurrency(&self, default: &[u16]) -> Vec<u16> {
        match self.concurrency.as_slice() {
            [] => default.to_vec(),
            chosen => chosen.to_vec(),
        }
    }

    fn shapes(&self) -> Vec<Shape> {
        self.shape.map_or_else(|| vec![Shape::Send, Shape::Stream], |shape| vec![shape])
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("between 0.1 and 600".to_owned()),
    }
}

/// Shows the live line, on a terminal only. An empty text erases it.
fn progress(text: &str) {
    if stderr().is_terminal() {
        // An error of the terminal must not end the bench.
        let _ = stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
    }
}
