//! `faultline bench`: what the mesh costs. It starts the mesh and a bare chain of the same hops as
//! processes of this very binary and drives both in turns; the ratio is the figure that counts,
//! because machines are noisy. Speed is reported, never asserted; a request that fails is an error.
//!
//! Its folders, each of which may use those before it: roles, load, figures, chain, sections.

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
  faultline bench --concurrency 64      only that one
  faultline bench json                  what ProtoJSON costs
  faultline bench recovery              memory and restart with many stored tasks
  faultline bench streams               many subscribers, and what an idle one costs
  faultline bench cancel                one stop for 500 tasks on 20 workers
  faultline bench failing               what a failed task costs beside one that succeeds
  faultline bench tracing               what it costs to export every span
  faultline bench hop --json            two ways from the gateway to the coordinator
  faultline bench idle                  what 1,000 workers cost that have nothing to do
  faultline bench stored                calls with 10,000 and with 1,000,000 stored tasks
  faultline bench cluster --postgres …  several coordinators on PostgreSQL, and many workers";

/// Measure the mesh on this machine, against a bare chain of the same hops.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    section: Option<Section>,
    /// One JSON object instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// How long each chain is driven at each concurrency.
    #[arg(long, value_name = "SECONDS", global = true, default_value = "2.4",
          value_parser = seconds)]
    seconds: Duration,
    /// How many connections ask at the same time [default: 1,16,64,256; hop: 1,64,256;
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
    /// ProtoJSON of a typical task, out and in.
    Json,
    /// Memory with many stored tasks, and the time to serve again after kill -9.
    Recovery,
    /// 2,000 subscribers of 200 tasks: whether all see the same, and what an idle one costs.
    Streams,
    /// One cancel of a root with 500 live descendants on 20 workers: until all of it has stopped.
    Cancel,
    /// Three hops that fail at the bottom, against three that succeed: the CPU of each.
    Failing,
    /// Every span exported to a collector, against none: what is left of the throughput.
    Tracing,
    /// Gateway to coordinator: a unary call per request, or one long-lived stream for all.
    Hop,
    /// Workers that have nothing to do: the memory and the CPU of their coordinator.
    Idle(idle::Options),
    /// Get, list and dispatch with few stored tasks and with many: what a long past costs.
    Stored(stored::Options),
    /// One, two and three coordinators on PostgreSQL, and 1 to 16 workers: what each adds.
    Cluster(cluster::Options),
}

/// The kind of call that is made.
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

/// What a section found, for people and for scripts.
struct Report {
    text: String,
    json: Value,
    /// Requests that failed, and bounds that did not hold.
    failed: u64,
}

impl Args {
    /// Measures and prints. On one thread: the driver must not compete with what it drives.
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

    /// A signal drops the section, and with it every process and directory it made.
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

/// The one live line, on a terminal only. Empty: it goes away.
fn progress(text: &str) {
    if stderr().is_terminal() {
        // A terminal that is gone is no reason to stop.
        let _ = stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
    }
}
