//! Scaling: several coordinators on one PostgreSQL, and an increasing number of workers. All
//! processes share this machine, so CPU is reported beside the throughput, and ratios compare
//! figures of the same run.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use serde_json::{Value, json};

use crate::cmd::bench::{
    Args, Report, Shape,
    chain::{
        Attached, Chain, Layout,
        postgres::{self, Postgres},
        process::ScratchDir,
    },
    figures::{
        Figures,
        disk::{Fsync, fsync},
        human,
        machine::CpuTime,
        micros, round,
        table::table,
    },
    load::{
        driver::{Fleet, Tally, request},
        rpc::{self, message},
    },
    progress,
};

const CONCURRENCY: u16 = 64;
const COORDINATORS: [usize; 3] = [1, 2, 3];
/// The number of workers while coordinators are varied; each has slots for all concurrent requests.
const ECHO_WORKERS: usize = 6;
const WORKERS: [usize; 5] = [1, 2, 4, 8, 16];
/// The slots and the script of each worker while workers are varied.
const SLOTS: u32 = 4;
const WORK: &str = "sleep 50ms; chunk done";
/// The number of concurrent requests per slot, so that the queues are never empty.
const ASKED_PER_SLOT: u32 = 2;
const STRETCHES: u32 = 4;
/// The number of successful requests before a mesh counts as ready.
const ANSWERS: usize = 20;
const WARM_UP: Duration = Duration::from_millis(300);

const EXAMPLES: &str = "\
Examples:
  faultline bench cluster --postgres postgres://postgres@127.0.0.1:5432/postgres
  faultline bench cluster --postgres … --workers 1,4 --seconds 10";

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", postgres::HELP))]
pub(crate) struct Options {
    /// A PostgreSQL server on which databases may be created.
    #[arg(long, value_name = "URL")]
    postgres: String,
    /// The numbers of coordinators that share the store.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = COORDINATORS,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=16))]
    coordinators: Vec<usize>,
    /// The numbers of workers.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = WORKERS,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    workers: Vec<usize>,
}

/// The mesh that is compared.
#[derive(Clone, Copy)]
struct Topology {
    /// `None`: one coordinator on SQLite.
    coordinators: Option<usize>,
    attached: Attached,
}

/// The figures of one mesh, computed once after its load.
struct Point {
    /// `None`: one coordinator on SQLite.
    coordinators: Option<usize>,
    workers: usize,
    attached: Attached,
    concurrency: u16,
    figures: Figures,
    /// The CPU time of PostgreSQL in ms per 1000 requests.
    database: Option<f64>,
    busy: CpuTime,
}

pub(crate) async fn run(args: &Args, options: &Options) -> anyhow::Result<Report> {
    faultline_chassis::descriptors::raise_limit();
    let scratch = ScratchDir::new("cluster")?;
    let disk = fsync(scratch.path())?;
    let concurrency = *args.concurrency(&[CONCURRENCY]).first().context("no concurrency")?;
    let coordinator_scaling =
        coordinator_scaling(scratch.path(), options, concurrency, args.seconds).await?;
    let worker_scaling = worker_scaling(scratch.path(), options, args.seconds).await?;
    Ok(report(disk, &coordinator_scaling, &worker_scaling))
}

/// One mesh of a comparison with its counts so far. `drive` updates them after each period.
struct MeshUnderLoad {
    chain: Chain,
    database: Option<Postgres>,
    fleet: Fleet,
    tally: Tally,
    mesh: Option<Duration>,
    server: Option<Duration>,
    busy: CpuTime,
}

impl MeshUnderLoad {
    async fn new(
        chain: Chain,
        database: Option<Postgres>,
        request: Arc<[u8]>,
        concurrency: u16,
    ) -> anyhow::Result<Self> {
        // Coordinators learn of agents one after the other, and a gateway calls them in turn.
        for _ in 0..ANSWERS {
            chain.first_answer(&request).await?;
        }
        let fleet = Fleet::open(chain.address, concurrency, request).await?;
        let zero = Some(Duration::ZERO);
        let tally = Tally::default();
        let busy = CpuTime::default();
        Ok(Self { chain, database, fleet, tally, mesh: zero, server: zero, busy })
    }

    fn counters(&self) -> (Option<Duration>, Option<Duration>, CpuTime) {
        let server = self.database.as_ref().and_then(Postgres::cpu);
        (self.chain.cpu(), server, CpuTime::now())
    }

    async fn drive(&mut self, span: Duration) -> anyhow::Result<()> {
        let before = self.counters();
        self.tally.append(self.fleet.drive(span).await?);
        let after = self.counters();
        let add = |sum: Option<Duration>, after: Option<Duration>, before: Option<Duration>| {
            Some(sum? + after?.saturating_sub(before?))
        };
        self.mesh = add(self.mesh, after.0, before.0);
        self.server = add(self.server, after.1, before.1);
        self.busy = self.busy + (after.2 - before.2);
        Ok(())
    }

    fn point(&mut self, of: Topology, workers: usize, concurrency: u16) -> Point {
        let figures = Figures::of(std::mem::take(&mut self.tally), self.mesh);
        let requests = figures.requests.max(1) as f64;
        let database = self.server.map(|cpu| cpu.as_secs_f64() * 1e6 / requests);
        let Topology { coordinators, attached } = of;
        Point { coordinators, workers, attached, concurrency, figures, database, busy: self.busy }
    }
}

/// The same load on one coordinator with SQLite and on several with PostgreSQL, in turns.
async fn coordinator_scaling(
    dir: &Path,
    options: &Options,
    concurrency: u16,
    span: Duration,
) -> anyhow::Result<Vec<Point>> {
    let spread = |coordinators| Topology { coordinators, attached: Attached::InTurn };
    let most = options.coordinators.iter().copied().max().filter(|most| *most > 1);
    let apart = most.map(|most| Topology { attached: Attached::ToFirst, ..spread(Some(most)) });
    let counted = options.coordinators.iter().map(|count| spread(Some(*count)));
    let mut sides = Vec::new();
    for (n, mesh) in [spread(None)].into_iter().chain(counted).chain(apart).enumerate() {
        progress(&format!("starting mesh {}", n + 1));
        let dir = dir.join(n.to_string());
        std::fs::create_dir_all(&dir)?;
        let database = match mesh.coordinators {
            None => None,
            Some(_) => Some(Postgres::on(&options.postgres).await?),
        };
        let file = format!("sqlite:{}", dir.join("db").display());
        let layout = Layout {
            store: database.as_ref().map_or(&file, Postgres::url),
            coordinators: mesh.coordinators.unwrap_or(1),
            workers: ECHO_WORKERS,
            agents: "echo",
            slots: concurrency.into(),
            attached: mesh.attached,
        };
        let chain = Chain::cluster(&dir, &layout).await?;
        sides.push((
            mesh,
            MeshUnderLoad::new(chain, database, request(Shape::Send), concurrency).await?,
        ));
    }
    for (_, side) in &mut sides {
        side.fleet.drive(WARM_UP).await?;
    }
    for stretch in 0..STRETCHES {
        progress(&format!("coordinators, {} of {STRETCHES}", stretch + 1));
        for (_, side) in &mut sides {
            side.drive(span / STRETCHES).await?;
        }
    }
    let mut points = Vec::new();
    for (mesh, mut side) in sides {
        points.push(side.point(mesh, ECHO_WORKERS, concurrency));
        side.chain.stop().await?;
    }
    Ok(points)
}

/// Load on one mesh with an increasing number of workers.
async fn worker_scaling(
    dir: &Path,
    options: &Options,
    span: Duration,
) -> anyhow::Result<Vec<Point>> {
    let dir = dir.join("workers");
    std::fs::create_dir_all(&dir)?;
    let coordinators = options.coordinators.iter().copied().max().context("no coordinator")?;
    let database = Postgres::on(&options.postgres).await?;
    let url = database.url().to_owned();
    let mesh = Topology { coordinators: Some(coordinators), attached: Attached::Anywhere };
    let layout = |workers| Layout {
        store: &url,
        coordinators,
        workers,
        agents: "script",
        slots: SLOTS,
        attached: mesh.attached,
    };
    let mut counts = options.workers.clone();
    counts.sort_unstable();
    let first = layout(*counts.first().context("no worker")?);
    let mut chain = Chain::cluster(&dir, &first).await?;
    let mut database = Some(database);
    let params = message(&json!({ "parts": [{ "text": WORK }] }));
    let request: Arc<[u8]> = rpc::request("/agents/script", "SendMessage", &params).into();
    let mut points = Vec::new();
    for workers in counts {
        progress(&format!("{workers} workers"));
        chain.grow(&dir, &layout(workers)).await?;
        let asked = workers as u64 * u64::from(SLOTS * ASKED_PER_SLOT);
        let concurrency = u16::try_from(asked).unwrap_or(u16::MAX);
        let mut side = MeshUnderLoad::new(chain, database, request.clone(), concurrency).await?;
        side.fleet.drive(WARM_UP).await?;
        side.drive(span).await?;
        points.push(side.point(mesh, workers, concurrency));
        (chain, database) = (side.chain, side.database);
    }
    chain.stop().await?;
    Ok(points)
}

fn report(disk: Fsync, coordinator_scaling: &[Point], worker_scaling: &[Point]) -> Report {
    let ratio = |point: &Point, to: Option<&Point>| {
        to.map(|to| point.figures.rps / to.figures.rps.max(1e-9))
    };
    let cell = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let sqlite = coordinator_scaling.iter().find(|point| point.coordinators.is_none());
    let alone = coordinator_scaling.iter().find(|point| point.coordinators == Some(1));
    let head =
        ["", "coordinators", "rps", "p50", "p99", "CPU", "of PG", "busy", "/SQLite", "/1 on PG"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in coordinator_scaling {
        let store = match (point.coordinators, point.attached) {
            (None, _) => "SQLite",
            (Some(_), Attached::ToFirst) => "PostgreSQL, all workers at one",
            (Some(_), _) => "PostgreSQL",
        };
        let mut row = vec![store.to_owned(), point.coordinators.unwrap_or(1).to_string()];
        row.extend(cells(point));
        row.push(cell(ratio(point, sqlite)));
        row.push(cell(point.coordinators.and(ratio(point, alone))));
        rows.push(row);
    }
    let one = worker_scaling.first();
    let head = ["workers", "asked at once", "rps", "p50", "p99", "CPU", "of PG", "busy", "ratio"];
    let mut worked = vec![head.map(str::to_owned).to_vec()];
    for point in worker_scaling {
        let mut row = vec![point.workers.to_string(), point.concurrency.to_string()];
        row.extend(cells(point));
        row.push(cell(ratio(point, one)));
        worked.push(row);
    }
    let concurrency = coordinator_scaling.first().map_or(0, |point| point.concurrency);
    let coordinators = one.and_then(|point| point.coordinators).unwrap_or(0);
    let failures: String = coordinator_scaling
        .iter()
        .chain(worker_scaling)
        .filter_map(|point| point.figures.first_failure.as_ref())
        .map(|failure| format!("{failure}\n"))
        .collect();
    let text = format!(
        "SendMessage to echo, {concurrency} at once, {ECHO_WORKERS} workers, everything on this \
         machine\n\n{}\nWorkers of {SLOTS} slots, each task of `{WORK}`, {coordinators} \
         coordinators on PostgreSQL\n\n{}\n\
         CPU: user and system of the mesh, ms per 1000 requests; of PG: of PostgreSQL\n\
         busy: of all cores, the driver included\n\
         fsync of the disk (4 KiB append): p50 {}, p99 {}\n{failures}",
        table(&rows),
        table(&worked),
        human(disk.p50),
        human(disk.p99),
    );
    let to_json = |point: &Point, of: &[(&str, Option<f64>)]| {
        let mut value: Value = json!({
            "store": point.coordinators.map_or("sqlite", |_| "postgres"),
            "coordinators": point.coordinators.unwrap_or(1),
            "workers": point.workers,
            "attached": match point.attached {
                Attached::Anywhere => "anywhere",
                Attached::InTurn => "in turn",
                Attached::ToFirst => "to the first",
            },
            "concurrency": point.concurrency,
            "mesh": point.figures.to_json(),
            "postgres_cpu_ms_per_1000": point.database.map(|cpu| round(cpu, 2)),
            "busy": point.busy.share().map(|share| round(share, 3)),
        });
        for (name, ratio) in of {
            value[*name] = json!(ratio.map(|ratio| round(ratio, 3)));
        }
        value
    };
    let echoed = coordinator_scaling.iter().map(|point| {
        let alone = point.coordinators.and(ratio(point, alone));
        to_json(point, &[("to_sqlite", ratio(point, sqlite)), ("to_one", alone)])
    });
    let json = json!({
        "coordinators": echoed.collect::<Vec<_>>(),
        "workers": worker_scaling
            .iter()
            .map(|point| to_json(point, &[("to_fewest", ratio(point, one))]))
            .collect::<Vec<_>>(),
        "slots": SLOTS,
        "work": WORK,
        "fsync_us": { "p50": micros(disk.p50), "p99": micros(disk.p99) },
    });
    let failed =
        coordinator_scaling.iter().chain(worker_scaling).map(|point| point.figures.failed).sum();
    Report { text, json, failed }
}

/// Requests per second, p50, p99, CPU of the mesh and of PostgreSQL, and the utilization of the
/// machine.
fn cells(point: &Point) -> Vec<String> {
    let database = point.database.map_or("-".to_owned(), |cpu| format!("{cpu:.1}"));
    point.figures.cells().into_iter().chain([database, point.busy.cell()]).collect()
}
