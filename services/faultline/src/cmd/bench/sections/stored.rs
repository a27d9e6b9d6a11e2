//! The cost of many stored tasks: the same calls to a mesh with few stored tasks and to one with
//! many, in turns. The latency of a call must not depend on the number of old tasks.

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use faultline_coordinator::SeedTask;
use serde_json::{Value, json};

use crate::cmd::bench::{
    Args, Report, Shape,
    chain::{
        Chain, in_turns,
        postgres::{self, Postgres},
        process::ScratchDir,
    },
    figures::{
        Figures,
        disk::{Fsync, fsync},
        human, micros, round,
        table::table,
    },
    load::{
        driver::{self, Fleet},
        rpc::{call, request},
    },
    progress,
};

/// Bound on the latency ratio of the large store to the small one.
const RATIO_MAX: f64 = 2.0;
/// Every second task belongs to the caller; the others are divided among this many principals.
const OTHERS: usize = 20;
/// The number of tasks per context.
const PER_CONTEXT: usize = 10;
const AGENTS: [&str; 3] = ["echo", "planner", "research"];
/// The age of the oldest task.
const HISTORY: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The age of the youngest seeded task, so that none of them changes during the measurement.
const RECENT: Duration = Duration::from_secs(60);
/// The number of different tasks that are read.
const ASKED: usize = 1000;
const PAGE: usize = 100;

const EXAMPLES: &str = "\
Examples:
  faultline bench stored
  faultline bench stored --tasks 1000,100000
  faultline bench stored --postgres postgres://postgres@127.0.0.1:5432/postgres";

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", postgres::HELP))]
pub(crate) struct Options {
    /// The number of tasks in the small and in the large store.
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1,
          default_values_t = [10_000, 1_000_000],
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1000..))]
    tasks: Vec<usize>,
    /// Measure on PostgreSQL as well: a server on which databases may be created.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
}

/// A mesh with a filled store. `start` fills it; the measurement does not change it.
struct FilledMesh {
    chain: Chain,
    filled: Duration,
    /// Requests for different tasks of the caller.
    gets: Arc<[Arc<[u8]>]>,
    /// The token of a page in the middle of the caller's list.
    middle: String,
    /// Last, so that it is dropped after the processes that use it.
    database: Option<Postgres>,
}

/// The figures of one kind of call on the small and on the large store.
struct Point {
    store: &'static str,
    call: &'static str,
    small: Figures,
    large: Figures,
}

impl Point {
    /// The ratios of p50 and p99.
    fn ratios(&self) -> (f64, f64) {
        let ratio =
            |large: Duration, small: Duration| large.as_secs_f64() / small.as_secs_f64().max(1e-9);
        (ratio(self.large.p50, self.small.p50), ratio(self.large.p99, self.small.p99))
    }
}

pub(crate) async fn run(args: &Args, options: &Options) -> anyhow::Result<Report> {
    let [small, large] = options.tasks[..] else { anyhow::bail!("--tasks takes SMALL,LARGE") };
    let scratch = ScratchDir::new("stored")?;
    let disk = fsync(scratch.path())?;
    let concurrency = *args.concurrency(&[1]).first().context("no concurrency")?;
    let mut points = Vec::new();
    let mut filled = Vec::new();
    let stores = [("SQLite", None)].into_iter();
    let stores = stores.chain(options.postgres.as_deref().map(|url| ("PostgreSQL", Some(url))));
    for (store, server) in stores {
        let few = FilledMesh::start(scratch.path(), server, small).await?;
        let many = FilledMesh::start(scratch.path(), server, large).await?;
        filled.push((store, many.filled));
        for (call, few_requests, many_requests) in calls(&few, &many) {
            progress(&format!("{store}: {call}"));
            let few_fleet = Fleet::open_with(few.chain.address, concurrency, few_requests).await?;
            let many_fleet =
                Fleet::open_with(many.chain.address, concurrency, many_requests).await?;
            let sides = [(&few.chain, few_fleet), (&many.chain, many_fleet)];
            let [small, large] = in_turns(sides, args.seconds).await?;
            points.push(Point { store, call, small, large });
        }
        few.stop().await?;
        many.stop().await?;
    }
    Ok(report((small, large), concurrency, disk, &filled, &points))
}

type Requests = Arc<[Arc<[u8]>]>;

/// The calls to both meshes. Dispatch is last, because it adds tasks to the stores.
fn calls(few: &FilledMesh, many: &FilledMesh) -> [(&'static str, Requests, Requests); 4] {
    let list = |params: Value| -> Requests { [request("/", "ListTasks", &params).into()].into() };
    let deep = |side: &FilledMesh| list(json!({ "pageToken": side.middle }));
    let send = || -> Requests { [driver::request(Shape::Send)].into() };
    [
        ("get", Arc::clone(&few.gets), Arc::clone(&many.gets)),
        ("list, first page", list(json!({})), list(json!({}))),
        ("list, in the middle", deep(few), deep(many)),
        ("dispatch", send(), send()),
    ]
}

impl FilledMesh {
    async fn start(dir: &Path, server: Option<&str>, count: usize) -> anyhow::Result<Self> {
        let dir = dir.join(format!("{}-{count}", server.map_or("sqlite", |_| "postgres")));
        fs::create_dir_all(&dir)?;
        let database = match server {
            None => None,
            Some(server) => Some(Postgres::on(server).await?),
        };
        let file = format!("sqlite:{}", dir.join("db").display());
        let store = database.as_ref().map_or(&*file, Postgres::url);
        progress(&format!("storing {count} tasks"));
        let start = std::time::Instant::now();
        let ids = faultline_coordinator::seed(store, seed_tasks(count)).await;
        let ids = ids.context("cannot fill the store")?;
        let filled = start.elapsed();
        if let Some(database) = &database {
            progress(&format!("vacuuming {count} tasks"));
            database.settle().await?;
        }
        let ours: Vec<_> = ids.iter().step_by(2).collect();
        let gets = ours.iter().step_by((ours.len() / ASKED).max(1)).map(|id| -> Arc<[u8]> {
            request("/", "GetTask", &json!({ "id": id.to_string() })).into()
        });
        let gets = gets.collect();
        let chain = Chain::mesh_on(&dir, store, "echo").await?;
        chain.first_answer(&driver::request(Shape::Send)).await?;
        let middle = middle_page_token(&chain, ours.len()).await?;
        Ok(Self { chain, filled, gets, middle, database })
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.chain.stop().await?;
        drop(self.database);
        Ok(())
    }
}

/// The tasks of a store, the oldest first.
fn seed_tasks(count: usize) -> impl Iterator<Item = SeedTask> {
    let apart = (HISTORY - RECENT).as_millis() as u64 / count as u64;
    (0..count).map(move |n| {
        let principal = match n % 2 {
            0 => SeedTask::default().principal,
            _ => format!("principal-{}", n / 2 % OTHERS),
        };
        let with_it = if n % 2 == 0 { 2 * PER_CONTEXT } else { 2 * OTHERS * PER_CONTEXT };
        SeedTask {
            agent: AGENTS[n / 2 % AGENTS.len()].to_owned(),
            context: format!("context-{principal}-{}", n / with_it),
            principal,
            ago: RECENT + Duration::from_millis(apart * (count - n) as u64),
            took: Duration::from_millis(n as u64 * 37 % 2000),
            ..SeedTask::default()
        }
    })
}

/// Reads the list of the caller up to its middle and checks that every page is complete.
async fn middle_page_token(chain: &Chain, ours: usize) -> anyhow::Result<String> {
    let mut token = String::new();
    let pages = (ours / 2).div_ceil(PAGE);
    for page in 0..pages {
        if page % 100 == 0 {
            progress(&format!("reading a list, page {page} of {pages}"));
        }
        let params = json!({ "pageToken": token, "pageSize": PAGE });
        let list = call(chain.address, &request("/", "ListTasks", &params)).await?;
        let shown = list["result"]["tasks"].as_array().map_or(0, Vec::len);
        ensure!(shown == PAGE, "a page of {shown}: {list:.300}");
        let next = list["result"]["nextPageToken"].as_str();
        token = next.context("the list ends early")?.to_owned();
    }
    Ok(token)
}

fn report(
    (small, large): (usize, usize),
    concurrency: u16,
    disk: Fsync,
    filled: &[(&'static str, Duration)],
    points: &[Point],
) -> Report {
    let few = format!("{small}: rps");
    let many = format!("{large}: rps");
    let head = ["", "", &few, "p50", "p99", &many, "p50", "p99", "p50 ratio", "p99 ratio"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut verdicts = String::new();
    let mut failures = String::new();
    for point in points {
        let (p50, p99) = point.ratios();
        let mut row = vec![point.store.to_owned(), point.call.to_owned()];
        for figures in [&point.small, &point.large] {
            row.extend(figures.cells().into_iter().take(3));
            failures.extend(figures.first_failure.as_ref().map(|error| format!("{error}\n")));
        }
        row.extend([format!("{p50:.2}"), format!("{p99:.2}")]);
        rows.push(row);
    }
    for (store, took) in filled {
        let of = points.iter().filter(|point| point.store == *store).map(Point::ratios);
        let (p50, p99) =
            of.fold((0.0_f64, 0.0_f64), |worst, of| (worst.0.max(of.0), worst.1.max(of.1)));
        let holds = |worst: f64| if worst <= RATIO_MAX { "holds" } else { "DOES NOT HOLD" };
        verdicts.push_str(&format!(
            "{store}: at worst {p50:.2} × the p50, within {RATIO_MAX}×: {}; {p99:.2} × the p99: {} \
             (stored in {})\n",
            holds(p50),
            holds(p99),
            human(*took),
        ));
    }
    let text = format!(
        "{small} and {large} stored tasks, half of them the caller's, {concurrency} at once\n\n{}\n\
         {verdicts}fsync of the disk (4 KiB append): p50 {}, p99 {}\n{failures}",
        table(&rows),
        human(disk.p50),
        human(disk.p99),
    );
    let json = json!({
        "tasks": { "small": small, "large": large },
        "concurrency": concurrency,
        "points": points.iter().map(|point| json!({
            "store": point.store,
            "call": point.call,
            "small": point.small.to_json(),
            "large": point.large.to_json(),
            "p50_ratio": round(point.ratios().0, 3),
            "p99_ratio": round(point.ratios().1, 3),
        })).collect::<Vec<_>>(),
        "ratio_max": RATIO_MAX,
        "filled_s": filled.iter().map(|(store, took)| json!({
            "store": store,
            "seconds": round(took.as_secs_f64(), 1),
        })).collect::<Vec<_>>(),
        "fsync_us": { "p50": micros(disk.p50), "p99": micros(disk.p99) },
    });
    let failed = points.iter().map(|point| point.small.failed + point.large.failed).sum();
    Report { text, json, failed }
}
