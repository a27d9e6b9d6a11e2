//! Recovery: the memory of a coordinator with many stored tasks, and the time until the mesh serves
//! again after its coordinator was killed.

use std::{
    fmt::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use faultline_coordinator::SeedTask;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cmd::bench::{
    Report, Shape,
    chain::{Chain, coordinator, process::ScratchDir},
    figures::{human, round},
    load::driver::{ask, ask_until_served, request},
    progress,
};

const TASKS_IN_MEMORY: usize = 10_000;
const TASKS_RESTARTED: usize = 100_000;
/// The number of kills; the time of a reconnect varies.
const KILLS: usize = 5;
/// The duration of load before each kill, and the pause between two requests.
const LOAD: Duration = Duration::from_millis(500);
const LOAD_PAUSE: Duration = Duration::from_millis(5);
/// The pause before the memory of a process is read.
const SETTLE: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn run() -> anyhow::Result<Report> {
    let scratch = ScratchDir::new("recovery")?;
    let dir = scratch.path();
    progress("memory of an empty coordinator");
    let empty = memory(dir, "empty").await?;
    progress("memory of a full coordinator");
    fill(&dir.join("full"), TASKS_IN_MEMORY).await?;
    let full = memory(dir, "full").await?;
    progress("filling a large store");
    let start = Instant::now();
    fill(&dir.join("db"), TASKS_RESTARTED).await?;
    let filled = start.elapsed();
    let restarts = restarts(dir).await?;
    Ok(report(empty, full, filled, &restarts))
}

async fn fill(store: &Path, count: usize) -> anyhow::Result<()> {
    let tasks = std::iter::repeat_n(SeedTask::default(), count);
    let store = format!("sqlite:{}", store.display());
    faultline_coordinator::seed(&store, tasks).await.context("cannot fill the store")?;
    Ok(())
}

/// The resident memory of an idle coordinator in bytes.
async fn memory(dir: &Path, store: &str) -> anyhow::Result<u64> {
    let store = format!("sqlite:{}", dir.join(store).display());
    let mut process = coordinator(dir, "127.0.0.1:0", &store).await?;
    sleep(SETTLE).await;
    let bytes = process.memory().context("no /proc to read memory from")?;
    process.kill().await?;
    Ok(bytes)
}

/// The times of one restart, counted from the kill.
struct Restart {
    ready: Duration,
    served: Duration,
}

async fn restarts(dir: &Path) -> anyhow::Result<Vec<Restart>> {
    let request = request(Shape::Send);
    let store = format!("sqlite:{}", dir.join("db").display());
    let mut mesh = Chain::mesh(dir, "echo").await?;
    mesh.first_answer(&request).await?;
    let mut restarts = Vec::new();
    for kill in 0..KILLS {
        progress(&format!("kill {} of {KILLS}", kill + 1));
        let until = Instant::now() + LOAD;
        while Instant::now() < until {
            ask_until_served(mesh.address, &request, TIMEOUT, LOAD_PAUSE).await?;
            sleep(LOAD_PAUSE).await;
        }
        // A request is under way during the kill, so that there is a task to recover.
        let caught = tokio::spawn({
            let address = mesh.address;
            let request = request.clone();
            async move { ask(address, &request).await }
        });
        tokio::task::yield_now().await;
        let killed = Instant::now();
        let old = mesh.coordinator_mut()?;
        let listen = old.address.clone();
        old.kill().await?;
        *old = coordinator(dir, &listen, &store).await?;
        let ready = killed.elapsed();
        ask_until_served(mesh.address, &request, TIMEOUT, LOAD_PAUSE).await?;
        restarts.push(Restart { ready, served: killed.elapsed() });
        // Each outcome is valid: a response before the kill, a lost call, or a response after it.
        let _ = caught.await;
    }
    mesh.stop().await?;
    Ok(restarts)
}

fn report(empty: u64, full: u64, filled: Duration, restarts: &[Restart]) -> Report {
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let per_task = (full as f64 - empty as f64) / TASKS_IN_MEMORY as f64;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Memory of a coordinator: empty {:.1} MiB, with {TASKS_IN_MEMORY} finished tasks {:.1} MiB \
         ({per_task:+.0} bytes a task)",
        mib(empty),
        mib(full),
    );
    let _ = writeln!(
        text,
        "\nkill -9 of the coordinator under light load, {TASKS_RESTARTED} stored tasks (filled in \
         {}):",
        human(filled)
    );
    for restart in restarts {
        let ready = human(restart.ready);
        let served = human(restart.served);
        let _ = writeln!(text, "  serves after {ready}, the gateway answers after {served}");
    }
    let mut served: Vec<_> = restarts.iter().map(|r| r.served).collect();
    served.sort_unstable();
    let median = served.get(served.len() / 2).copied().unwrap_or_default();
    let _ = writeln!(text, "  median: the gateway answers after {}", human(median));
    let ms = |span: Duration| round(span.as_secs_f64() * 1e3, 1);
    let restarts: Vec<Value> = restarts
        .iter()
        .map(|r| json!({ "coordinator_ready_ms": ms(r.ready), "served_ms": ms(r.served) }))
        .collect();
    let json = json!({
        "memory": {
            "tasks": TASKS_IN_MEMORY,
            "empty_bytes": empty,
            "full_bytes": full,
            "bytes_per_task": round(per_task, 1),
        },
        "restart": {
            "tasks": TASKS_RESTARTED,
            "kills": restarts,
            "served_median_ms": ms(median),
        },
    });
    Report { text, json, failed: 0 }
}
