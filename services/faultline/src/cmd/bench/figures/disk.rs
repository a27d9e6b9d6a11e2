//! The fsync latency of the disk under the store, which is the lower bound of every commit.

use std::{
    fs::File,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use crate::cmd::bench::figures::percentile;

const PAGE: [u8; 4096] = [0x5a; 4096];
const WRITES_MAX: usize = 300;
const TIME_MAX: Duration = Duration::from_secs(2);

/// The percentiles of the fsync latency.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fsync {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Appends pages to a file and syncs each of them, as a write-ahead log does.
pub(crate) fn fsync(dir: &Path) -> std::io::Result<Fsync> {
    let mut file = File::create(dir.join("fsync"))?;
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < WRITES_MAX && start.elapsed() < TIME_MAX {
        let before = Instant::now();
        file.write_all(&PAGE)?;
        file.sync_data()?;
        times.push(before.elapsed());
    }
    times.sort_unstable();
    let at = |share| percentile(&times, share).unwrap_or_default();
    Ok(Fsync { p50: at(0.50), p99: at(0.99) })
}
