//! Many subscribers: whether all subscribers of a task receive the same events, the throughput of
//! events, and the memory of an idle stream.

use std::{
    fmt::Write,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::cmd::bench::{
    Report,
    chain::{Chain, process::ScratchDir},
    figures::{human, round},
    load::{
        http1::Connection,
        rpc::{call, message, request},
    },
    progress,
};

const AGENT: &str = "/agents/script";
const TASKS: usize = 200;
const STREAMS: usize = 2000;
/// The number of chunks that each task writes after its question is answered.
const CHUNKS: usize = 20;
/// The number of events that each subscriber then receives: working, every chunk, and the end.
const EVENTS: usize = CHUNKS + 2;
/// Bound on the memory of an idle stream in the gateway and the coordinator together.
const IDLE_BYTES_MAX: u64 = 40 * 1024;
/// The pause before the memory of a process is read.
const SETTLE: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn run() -> anyhow::Result<Report> {
    faultline_chassis::descriptors::raise_limit();
    let scratch = ScratchDir::new("streams")?;
    let mesh = Chain::mesh(scratch.path(), "script").await?;
    progress("starting tasks");
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(start_task(mesh.address).await?);
    }
    sleep(SETTLE).await;
    let before = mesh.memory()?;
    progress("subscribing");
    let mut streams = Vec::new();
    for n in 0..STREAMS {
        let task = n % TASKS;
        let mut connection = Connection::open(mesh.address).await.context("cannot connect")?;
        let request = request(AGENT, "SubscribeToTask", &json!({ "id": tasks[task] }));
        timeout(TIMEOUT, connection.begin(&request)).await.context("no snapshot")??;
        streams.push((task, connection));
    }
    sleep(SETTLE).await;
    let after = mesh.memory()?;
    progress("letting them all speak");
    let start = Instant::now();
    let readers = tokio::spawn(read_all(streams));
    for task in &tasks {
        answer(mesh.address, task).await?;
    }
    let seen = readers.await.context("the readers broke")??;
    let elapsed = start.elapsed();
    mesh.stop().await?;
    Ok(report(&before, &after, &seen, elapsed))
}

/// Starts a task that waits for the answer to its question; its id.
async fn start_task(address: SocketAddr) -> anyhow::Result<String> {
    let script = format!("ask \"go?\"\n{}", "chunk \"a piece of text \"\n".repeat(CHUNKS));
    let params = message(&json!({ "parts": [{ "text": script }] }));
    let answer = call(address, &request(AGENT, "SendMessage", &params)).await?;
    let id = answer["result"]["task"]["id"].as_str().map(str::to_owned);
    id.with_context(|| format!("no task: {answer}"))
}

async fn answer(address: SocketAddr, task: &str) -> anyhow::Result<()> {
    let params = message(&json!({ "taskId": task, "parts": [{ "text": "go" }] }));
    let answer = call(address, &request(AGENT, "SendMessage", &params)).await?;
    ensure!(answer["error"].is_null(), "an answer was refused: {answer}");
    Ok(())
}

/// Reads every stream to its end and compares its events with those of the task's first reader.
async fn read_all(streams: Vec<(usize, Connection)>) -> anyhow::Result<StreamCounts> {
    let mut reading = JoinSet::new();
    for (task, mut connection) in streams {
        reading.spawn(async move {
            let read = timeout(TIMEOUT, connection.finish()).await.context("no end in time")?;
            anyhow::Ok((task, events(read?)?))
        });
    }
    let mut seen = StreamCounts { of_task: vec![None; TASKS], ..StreamCounts::default() };
    while let Some(read) = reading.join_next().await {
        let (task, events) = read.context("a reader broke")??;
        seen.events += events.len();
        seen.streams += 1;
        seen.lacking += u64::from(events.len() != EVENTS);
        match &seen.of_task[task] {
            None => seen.of_task[task] = Some(events),
            Some(first) if *first == events => {}
            Some(_) => seen.others += 1,
        }
    }
    Ok(seen)
}

#[derive(Default)]
struct StreamCounts {
    of_task: Vec<Option<Vec<String>>>,
    streams: usize,
    events: usize,
    /// The number of streams with missing or additional events.
    lacking: u64,
    /// The number of streams that differ from the first one of their task.
    others: u64,
}

/// The events of a stream, without the comments that keep it alive.
fn events(body: &[u8]) -> anyhow::Result<Vec<String>> {
    let text = std::str::from_utf8(body).context("a stream that is not text")?;
    let events: Vec<String> =
        text.split("\n\n").filter(|e| e.contains("data:")).map(str::to_owned).collect();
    match events.last() {
        Some(last) if last.contains("TASK_STATE_COMPLETED") => Ok(events),
        last => bail!("a stream ended with {last:?}"),
    }
}

fn report(before: &[u64], after: &[u64], seen: &StreamCounts, elapsed: Duration) -> Report {
    // The chain is coordinator, worker, gateway; the worker does not serve subscribers.
    let grown = |at: usize| after[at].saturating_sub(before[at]) / STREAMS as u64;
    let coordinator = grown(0);
    let gateway = grown(2);
    let idle = coordinator + gateway;
    let per_second = seen.events as f64 / elapsed.as_secs_f64().max(1e-9);
    let kib = |bytes: u64| round(bytes as f64 / 1024.0, 1);
    let is_over = idle > IDLE_BYTES_MAX;
    let verdict = if is_over { "OVER" } else { "within" };
    let missing = STREAMS.abs_diff(seen.streams) as u64;
    let mut text = String::new();
    let _ = writeln!(text, "{STREAMS} subscribers of {TASKS} tasks over {STREAMS} connections");
    let _ = writeln!(
        text,
        "  an idle stream takes {} KiB: gateway {}, coordinator {} ({verdict} the bound of {} KiB)",
        kib(idle),
        kib(gateway),
        kib(coordinator),
        IDLE_BYTES_MAX / 1024,
    );
    let _ = writeln!(
        text,
        "  {} events reached them in {}, {per_second:.0} a second; {} streams differed, {} did not \
         have the {EVENTS} there were",
        seen.events,
        human(elapsed),
        seen.others,
        seen.lacking + missing,
    );
    let json = json!({
        "streams": STREAMS,
        "tasks": TASKS,
        "idle_bytes": { "gateway": gateway, "coordinator": coordinator, "max": IDLE_BYTES_MAX },
        "events": seen.events,
        "events_per_second": round(per_second, 0),
        "elapsed_ms": round(elapsed.as_secs_f64() * 1e3, 1),
        "events_each": EVENTS,
        "streams_that_differed": seen.others,
        "streams_that_lacked_events": seen.lacking + missing,
    });
    let failed = seen.others + seen.lacking + missing + u64::from(is_over);
    Report { text, json, failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(idle_bytes: u64, change: impl FnOnce(&mut StreamCounts)) -> u64 {
        let mut seen =
            StreamCounts { streams: STREAMS, events: STREAMS * EVENTS, ..StreamCounts::default() };
        change(&mut seen);
        let grown = idle_bytes * STREAMS as u64;
        report(&[0, 0, 7], &[0, 0, 7 + grown], &seen, Duration::from_secs(1)).failed
    }

    #[test]
    fn stream_above_the_memory_bound_or_without_all_events_fails_the_run() {
        assert_eq!(failed(IDLE_BYTES_MAX, |_| {}), 0);
        assert_eq!(failed(IDLE_BYTES_MAX + 1, |_| {}), 1);
        assert_eq!(failed(0, |seen| seen.others = 1), 1);
        assert_eq!(failed(0, |seen| seen.lacking = 2), 2);
        assert_eq!(failed(0, |seen| seen.streams -= 3), 3);
    }
}
