//! The cost of idle workers: the memory and the CPU of a coordinator with many of them. The workers
//! run in this process, each with its own connection and heartbeats.

use std::{
    fmt::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use faultline_chassis::{Drain, MeshConfig};
use faultline_worker::Config;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::cmd::bench::{
    Args, Report,
    chain::{
        Chain,
        postgres::{self, Postgres},
        process::{Process, ScratchDir, TOKEN},
    },
    figures::round,
    load::rpc::{call, post},
    progress,
};

/// The measurement lasts this many times `--seconds`, because an idle coordinator uses little CPU.
const MEASURED_SECONDS_FACTOR: u32 = 5;
/// The pause before memory is read and the measurement begins.
const SETTLE: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Examples:
  faultline bench idle
  faultline bench idle --workers 5000 --postgres postgres://postgres@127.0.0.1:5432/postgres";

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", postgres::HELP))]
pub(crate) struct Options {
    /// The number of attached workers.
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=9000))]
    workers: usize,
    /// Measure on PostgreSQL as well: a server on which databases may be created.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
}

/// The memory and CPU of an idle coordinator.
#[derive(Clone, Copy)]
struct Rest {
    memory: u64,
    /// Seconds of CPU time per second.
    cpu: f64,
}

/// The figures without workers and with them.
struct Point {
    store: &'static str,
    before: Rest,
    after: Rest,
}

pub(crate) async fn run(args: &Args, options: &Options) -> anyhow::Result<Report> {
    faultline_chassis::descriptors::raise_limit();
    let scratch = ScratchDir::new("idle")?;
    let watched = args.seconds * MEASURED_SECONDS_FACTOR;
    let mut points = Vec::new();
    let store = format!("sqlite:{}", scratch.path().join("db").display());
    let (before, after) = rest(scratch.path(), &store, options.workers, watched).await?;
    points.push(Point { store: "SQLite", before, after });
    if let Some(server) = &options.postgres {
        let database = Postgres::on(server).await?;
        let (before, after) =
            rest(scratch.path(), database.url(), options.workers, watched).await?;
        points.push(Point { store: "PostgreSQL", before, after });
    }
    Ok(report(options.workers, watched, &points))
}

async fn rest(
    dir: &Path,
    store: &str,
    workers: usize,
    watched: Duration,
) -> anyhow::Result<(Rest, Rest)> {
    let mut mesh = Chain::mesh_on(dir, store, "echo").await?;
    progress("a coordinator at rest");
    let before = measure_idle(mesh.coordinator_mut()?, watched).await?;
    progress("attaching workers");
    let to = format!("http://{}", mesh.coordinator_mut()?.address);
    let attached = attach(&to, workers).await?;
    wait_until_attached(&mesh, workers).await?;
    progress("a coordinator with idle workers");
    let after = measure_idle(mesh.coordinator_mut()?, watched).await?;
    // A worker that was disconnected meanwhile would falsify the figures.
    wait_until_attached(&mesh, workers).await?;
    drop(attached);
    mesh.stop().await?;
    Ok((before, after))
}

async fn measure_idle(process: &Process, watched: Duration) -> anyhow::Result<Rest> {
    sleep(SETTLE).await;
    let start = Instant::now();
    let before = process.cpu().context("no /proc to read CPU from")?;
    sleep(watched).await;
    let used = process.cpu().context("the coordinator is gone")?.saturating_sub(before);
    let memory = process.memory().context("no /proc to read memory from")?;
    Ok(Rest { memory, cpu: used.as_secs_f64() / start.elapsed().as_secs_f64() })
}

/// Attaches workers. A drop of the handles stops them.
async fn attach(coordinator: &str, count: usize) -> anyhow::Result<Vec<AbortOnDropHandle<()>>> {
    let mut workers = Vec::new();
    for n in 0..count {
        let config = Config {
            coordinator: coordinator.to_owned(),
            agents: vec!["echo".to_owned()],
            name: Some(format!("idle-{n}")),
            mesh: MeshConfig { token: Some(TOKEN.clone()), ..MeshConfig::default() },
            ..Config::default()
        };
        let service = config.bind().await.context("a worker cannot start")?;
        let running = async move {
            if let Err(error) = service.run(Drain::new()).await {
                eprintln!("a worker of the bench ended: {error}");
            }
        };
        workers.push(AbortOnDropHandle::new(tokio::spawn(running)));
    }
    Ok(workers)
}

async fn wait_until_attached(mesh: &Chain, workers: usize) -> anyhow::Result<()> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let seen = call(mesh.address, &post("/mesh/Workers", &json!({}))).await?;
        let seen = seen["workers"].as_array().context("no workers")?;
        let attached = seen.iter().filter(|worker| worker["attached"] == true).count();
        // Every mesh of the bench has one more worker.
        if attached == workers + 1 {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{attached} workers are attached and not {}", workers + 1);
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn report(workers: usize, watched: Duration, points: &[Point]) -> Report {
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let mut text = format!(
        "{workers} idle workers of one coordinator, each on a connection of its own with its \
         heartbeats, watched for {:.0} s\n",
        watched.as_secs_f64()
    );
    let mut stores = Vec::new();
    for Point { store, before, after } in points {
        let bytes = (after.memory as f64 - before.memory as f64) / workers as f64;
        let cpu = (after.cpu - before.cpu) / workers as f64;
        let _ = writeln!(
            text,
            "  {store}: {:.1} MiB instead of {:.1} MiB, {:.1} KiB a worker; {:.1} ms of CPU a \
             second instead of {:.1} ms, {:.1} µs a worker",
            mib(after.memory),
            mib(before.memory),
            bytes / 1024.0,
            after.cpu * 1e3,
            before.cpu * 1e3,
            cpu * 1e6,
        );
        let rest = |rest: &Rest| -> Value {
            json!({ "bytes": rest.memory, "cpu_ms_per_second": round(rest.cpu * 1e3, 2) })
        };
        stores.push(json!({
            "store": store,
            "without": rest(before),
            "with": rest(after),
            "bytes_per_worker": round(bytes, 0),
            "cpu_us_per_second_per_worker": round(cpu * 1e6, 2),
        }));
    }
    let json = json!({ "workers": workers, "stores": stores });
    Report { text, json, failed: 0 }
}
