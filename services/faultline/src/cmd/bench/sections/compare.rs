//! The mesh against a bare chain of the same hops in the same run: requests per second, latency,
//! CPU, and their ratio.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::cmd::bench::{
    Args, Report, Shape,
    chain::{Chain, alternate, process::ScratchDir},
    figures::{
        Figures,
        disk::{Fsync, fsync},
        human, micros, round,
        table::table,
    },
    load::driver::request,
    progress,
};

const CONCURRENCY: [u16; 4] = [1, 16, 64, 256];

struct Point {
    shape: Shape,
    concurrency: u16,
    mesh: Figures,
    bare: Figures,
}

impl Point {
    fn ratio(&self) -> f64 {
        self.mesh.rps / self.bare.rps.max(1e-9)
    }
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    // Declared first and so dropped last: running processes must not lose their files.
    let scratch = ScratchDir::new("bench")?;
    progress("measuring the disk");
    let disk = fsync(scratch.path())?;
    progress("starting the mesh and the bare chain");
    let mesh = Chain::mesh(scratch.path(), "echo").await?;
    let bare = Chain::bare(scratch.path()).await?;
    let mut points = Vec::new();
    let mut answers = Vec::new();
    for shape in args.shapes() {
        let request = request(shape);
        let of_mesh = mesh.first_answer(&request).await?;
        let of_bare = bare.first_answer(&request).await?;
        answers.push((shape, of_mesh, of_bare));
        for concurrency in args.concurrency(&CONCURRENCY) {
            progress(&format!("{} × {concurrency}", shape.name()));
            let both = alternate([&mesh, &bare], &request, concurrency, args.seconds).await?;
            let [mesh, bare] = both;
            points.push(Point { shape, concurrency, mesh, bare });
        }
    }
    mesh.stop().await?;
    bare.stop().await?;
    Ok(report(disk, &points, &answers))
}

/// The frames and bytes of one response of the mesh and of the bare chain.
type Answers = (Shape, (usize, usize), (usize, usize));

fn report(disk: Fsync, points: &[Point], answers: &[Answers]) -> Report {
    let failed = points.iter().map(|p| p.mesh.failed + p.bare.failed).sum();
    Report { text: text(disk, points, answers), json: to_json(disk, points, answers), failed }
}

fn text(disk: Fsync, points: &[Point], answers: &[Answers]) -> String {
    let mut out = String::new();
    for (shape, of_mesh, of_bare) in answers {
        let describe = |(frames, bytes): &(usize, usize)| match frames {
            0 => format!("{bytes} bytes"),
            frames => format!("{frames} frames, {bytes} bytes"),
        };
        let method = shape.method();
        let mesh = describe(of_mesh);
        let bare = describe(of_bare);
        let _ = writeln!(out, "{method}: the mesh answers {mesh}, the bare chain {bare}");
    }
    let head =
        ["", "conc", "mesh rps", "p50", "p99", "CPU", "bare rps", "p50", "p99", "CPU", "mesh/bare"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        let mut row = vec![point.shape.name().to_owned(), point.concurrency.to_string()];
        row.extend(point.mesh.cells());
        row.extend(point.bare.cells());
        row.push(format!("{:.2}", point.ratio()));
        rows.push(row);
    }
    let _ = writeln!(out, "\n{}", table(&rows));
    out.push_str("CPU: user and system of the three servers, ms per 1000 requests\n");
    let p50 = human(disk.p50);
    let p99 = human(disk.p99);
    let _ = writeln!(out, "fsync of the disk (4 KiB append): p50 {p50}, p99 {p99}");
    for point in points.iter().filter(|p| p.concurrency == 1) {
        let (bound, holds) = latency_check(point, disk);
        let _ = writeln!(
            out,
            "{}, one at a time: p99 mesh {} {} {} = 3 × p99 bare + 2 fsyncs: {}",
            point.shape.name(),
            human(point.mesh.p99),
            if holds { "≤" } else { ">" },
            human(bound),
            if holds { "holds" } else { "does not hold" },
        );
    }
    for point in points {
        for (side, figures) in [("mesh", &point.mesh), ("bare", &point.bare)] {
            if let Some(error) = &figures.first_failure {
                let shape = point.shape.name();
                let n = point.concurrency;
                let _ = writeln!(out, "{shape} × {n}, {side}: {} failed: {error}", figures.failed);
            }
        }
    }
    out
}

/// The latency bound of three bare chains and two fsyncs, and whether the mesh is within it.
fn latency_check(point: &Point, disk: Fsync) -> (std::time::Duration, bool) {
    let bound = point.bare.p99 * 3 + disk.p99 * 2;
    (bound, point.mesh.p99 <= bound)
}

fn to_json(disk: Fsync, points: &[Point], answers: &[Answers]) -> Value {
    let mut ratios = Map::new();
    for point in points {
        let of_shape = ratios.entry(point.shape.name()).or_insert_with(|| json!({}));
        of_shape[point.concurrency.to_string()] = json!(round(point.ratio(), 3));
    }
    let checks = points.iter().filter(|p| p.concurrency == 1).map(|point| {
        let (bound, holds) = latency_check(point, disk);
        json!({
            "shape": point.shape.name(),
            "mesh_p99_us": micros(point.mesh.p99),
            "bound_us": micros(bound),
            "holds": holds,
        })
    });
    let answers = answers.iter().map(|(shape, of_mesh, of_bare)| {
        let side = |(frames, bytes): &(usize, usize)| json!({ "frames": frames, "bytes": bytes });
        json!({ "shape": shape.name(), "mesh": side(of_mesh), "bare": side(of_bare) })
    });
    json!({
        "ratios": ratios,
        "points": points.iter().map(|point| json!({
            "shape": point.shape.name(),
            "concurrency": point.concurrency,
            "mesh": point.mesh.to_json(),
            "bare": point.bare.to_json(),
            "ratio": round(point.ratio(), 3),
        })).collect::<Vec<_>>(),
        "answers": answers.collect::<Vec<_>>(),
        "fsync_us": { "p50": micros(disk.p50), "p99": micros(disk.p99) },
        "latency_checks": checks.collect::<Vec<_>>(),
    })
}
