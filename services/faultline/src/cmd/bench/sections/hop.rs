//! The hop from gateway to coordinator with two transports, without the services: a unary call per
//! request on a shared HTTP/2 connection, or one long-lived stream for all requests. The evidence
//! for `link.proto`.

use std::fmt::Write;

use serde_json::json;

use crate::cmd::bench::{
    Args, Report, Shape,
    chain::{Chain, alternate, process::ScratchDir},
    figures::{round, table::table},
    load::driver::request,
    progress,
    roles::Hop,
};

const CONCURRENCY: [u16; 3] = [1, 64, 256];

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let scratch = ScratchDir::new("hop")?;
    let unary = Chain::hop(scratch.path(), Hop::Unary).await?;
    let link = Chain::hop(scratch.path(), Hop::Link).await?;
    let request = request(Shape::Send);
    unary.first_answer(&request).await?;
    link.first_answer(&request).await?;
    let head =
        ["conc", "unary rps", "p50", "p99", "CPU", "link rps", "p50", "p99", "CPU", "link/unary"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut points = Vec::new();
    let mut failures = String::new();
    let mut failed = 0;
    for concurrency in args.concurrency(&CONCURRENCY) {
        progress(&format!("hop × {concurrency}"));
        let both = alternate([&unary, &link], &request, concurrency, args.seconds).await?;
        let [by_unary, by_link] = both;
        let ratio = by_link.rps / by_unary.rps.max(1e-9);
        let mut row = vec![concurrency.to_string()];
        row.extend(by_unary.cells());
        row.extend(by_link.cells());
        row.push(format!("{ratio:.2}"));
        rows.push(row);
        points.push(json!({
            "concurrency": concurrency,
            "unary": by_unary.to_json(),
            "link": by_link.to_json(),
            "ratio": round(ratio, 3),
        }));
        for figures in [by_unary, by_link] {
            failed += figures.failed;
            if let Some(error) = figures.first_failure {
                let _ = writeln!(failures, "{} failed: {error}", figures.failed);
            }
        }
    }
    unary.stop().await?;
    link.stop().await?;
    let text = format!(
        "Gateway to coordinator, bare: a unary call per request, or one stream for all\n\n{}\n\
         CPU: user and system of both servers, ms per 1000 requests\n{failures}",
        table(&rows)
    );
    Ok(Report { text, json: json!({ "points": points }), failed })
}
