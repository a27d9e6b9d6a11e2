//! The cost of tracing: a mesh that exports every span to a collector, against one that exports
//! none, under load in turns. The collector shares the machine, so the ratio includes its work.

use std::{fs, time::Duration};

use anyhow::Context;
use serde_json::json;
use tokio::time::sleep;

use crate::cmd::bench::{
    Args, Report,
    chain::{
        Chain, alternate,
        process::{Process, ScratchDir},
    },
    figures::{round, table::table},
    load::{driver::request, http1::Connection},
    progress,
};

const CONCURRENCY: [u16; 4] = [1, 16, 64, 256];
/// Bound on the loss of throughput.
const LOSS_MAX: f64 = 0.15;
/// The number of spans of one task.
const SPANS_PER_TASK: u64 = 6;
/// The wait for the last batch of each process.
const LAST: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let scratch = ScratchDir::new("tracing")?;
    let dir = |name: &str| {
        let path = scratch.path().join(name);
        fs::create_dir_all(&path).map(|()| path)
    };
    let collector = Process::start(scratch.path(), "collector", &["collector"]).await?;
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    let off = Chain::mesh(&dir("off")?, "echo").await?;
    let on = Chain::mesh_with(&dir("on")?, "echo", &env).await?;
    let head =
        ["", "conc", "off rps", "p50", "p99", "CPU", "on rps", "p50", "p99", "CPU", "on/off"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut points = Vec::new();
    let mut failures = String::new();
    let mut failed = 0;
    let mut kept = Vec::new();
    let mut worst = f64::INFINITY;
    for shape in args.shapes() {
        let request = request(shape);
        off.first_answer(&request).await?;
        on.first_answer(&request).await?;
        for concurrency in args.concurrency(&CONCURRENCY) {
            progress(&format!("{} × {concurrency}", shape.name()));
            let [without, with] =
                alternate([&off, &on], &request, concurrency, args.seconds).await?;
            let ratio = with.rps / without.rps.max(1e-9);
            // A ratio above 1 is noise of the machine.
            kept.push(ratio.min(1.0));
            worst = worst.min(ratio);
            let mut row = vec![shape.name().to_owned(), concurrency.to_string()];
            row.extend(without.cells());
            row.extend(with.cells());
            row.push(format!("{ratio:.2}"));
            rows.push(row);
            points.push(json!({
                "shape": shape.name(),
                "concurrency": concurrency,
                "off": without.to_json(),
                "on": with.to_json(),
                "ratio": round(ratio, 3),
            }));
            for figures in [without, with] {
                failed += figures.failed;
                failures.extend(figures.first_failure.map(|error| format!("{error}\n")));
            }
        }
    }
    sleep(LAST).await;
    let received = count(&collector).await?;
    off.stop().await?;
    on.stop().await?;
    let mean = kept.iter().sum::<f64>() / kept.len().max(1) as f64;
    let loss = 1.0 - mean;
    let (sign, holds) = if loss <= LOSS_MAX { ("≤", "holds") } else { (">", "DOES NOT HOLD") };
    let text = format!(
        "Every span exported, against none\n\n{}\n\
         CPU: user and system of the three servers, ms per 1000 requests\n\
         the collector took {received} spans, {SPANS_PER_TASK} of each task\n\
         tracing takes {:.0} % {sign} {:.0} % of the throughput on average, {:.0} % at worst: \
         {holds}\n{failures}",
        table(&rows),
        loss * 100.0,
        LOSS_MAX * 100.0,
        (1.0 - worst) * 100.0,
    );
    let json = json!({
        "points": points,
        "spans": received,
        "loss": round(loss, 3),
        "loss_max": LOSS_MAX,
    });
    Ok(Report { text, json, failed })
}

async fn count(collector: &Process) -> anyhow::Result<u64> {
    let address = collector.address.trim_start_matches("http://").parse()?;
    let mut connection = Connection::open(address).await?;
    let (_, body) = connection.exchange(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
    let text = std::str::from_utf8(body)?;
    text.parse().with_context(|| format!("no number: '{text}'"))
}
