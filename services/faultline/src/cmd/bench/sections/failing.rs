//! The cost of a failure: a task that fails three hops down, against one that succeeds there. Both
//! run on the same mesh in turns; the ratio of their CPU is the relevant figure.

use std::sync::Arc;

use serde_json::json;

use crate::cmd::bench::{
    Args, Report,
    chain::{Chain, in_turns, process::ScratchDir},
    figures::{round, table::table},
    load::{
        driver::Fleet,
        rpc::{message, request},
    },
    progress,
};

const CONCURRENCY: [u16; 2] = [1, 16];
/// Bound on the CPU ratio of a failed task to a successful one.
const RATIO_MAX: f64 = 1.5;
/// Both scripts write about the same amount, and the failure is not retryable.
const SUCCEEDS: &str = "delegate script { delegate script { chunk \"the answer is 42\" } }";
const FAILS: &str =
    "delegate script { delegate script { fail INVALID_ARGUMENT text=\"there is no answer\" } }";
const FAILED: &str = "TASK_STATE_FAILED";

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let scratch = ScratchDir::new("failing")?;
    let mesh = Chain::mesh(scratch.path(), "script").await?;
    let [well, badly] = [SUCCEEDS, FAILS].map(|script| -> Arc<[u8]> {
        let params = message(&json!({ "parts": [{ "text": script }] }));
        request("/agents/script", "SendMessage", &params).into()
    });
    mesh.first_answer(&well).await?;
    let head =
        ["conc", "well rps", "p50", "p99", "CPU", "failed rps", "p50", "p99", "CPU", "CPU ratio"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut points = Vec::new();
    let mut failures = String::new();
    let mut failed = 0;
    let mut worst: Option<f64> = None;
    for concurrency in args.concurrency(&CONCURRENCY) {
        progress(&format!("failing × {concurrency}"));
        let open = |request: &Arc<[u8]>| Fleet::open(mesh.address, concurrency, request.clone());
        let ups = open(&well).await?;
        let downs = open(&badly).await?.expecting(FAILED);
        let [ups, downs] = in_turns([(&mesh, ups), (&mesh, downs)], args.seconds).await?;
        let costs = ups.cpu_ms_per_1000.zip(downs.cpu_ms_per_1000);
        let ratio = costs.map(|(up, down)| down / up.max(1e-9));
        worst = ratio.into_iter().chain(worst).reduce(f64::max);
        let mut row = vec![concurrency.to_string()];
        row.extend(ups.cells());
        row.extend(downs.cells());
        row.push(ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
        rows.push(row);
        points.push(json!({
            "concurrency": concurrency,
            "well": ups.to_json(),
            "failed": downs.to_json(),
            "cpu_ratio": ratio.map(|ratio| round(ratio, 3)),
        }));
        for figures in [ups, downs] {
            failed += figures.failed;
            failures.extend(figures.first_failure.map(|error| format!("{error}\n")));
        }
    }
    let verdict = worst.map(|worst| {
        let (sign, holds) =
            if worst <= RATIO_MAX { ("≤", "holds") } else { (">", "DOES NOT HOLD") };
        format!("a failed task takes {worst:.2} {sign} {RATIO_MAX} × the CPU: {holds}\n")
    });
    mesh.stop().await?;
    let text = format!(
        "Three hops that fail at the bottom, against three that succeed\n\n{}\n\
         CPU: user and system of the three servers, ms per 1000 tasks at the top\n{}{failures}",
        table(&rows),
        verdict.unwrap_or_default(),
    );
    let json = json!({ "points": points, "cpu_ratio_max": RATIO_MAX });
    Ok(Report { text, json, failed })
}
