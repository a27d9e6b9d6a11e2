//! The figures of a period of load: requests per second, two percentiles, CPU.
//!
//! May use: load.

pub(crate) mod disk;
pub(crate) mod machine;
pub(crate) mod table;

use std::time::Duration;

use serde_json::{Value, json};

use crate::cmd::bench::load::driver::Tally;

/// The figures of one period of load, computed once from its counts.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) requests: usize,
    pub(crate) rps: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// CPU of all servers per 1000 requests; `None` without /proc.
    pub(crate) cpu_ms_per_1000: Option<f64>,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<String>,
}

impl Figures {
    pub(crate) fn of(mut tally: Tally, cpu: Option<Duration>) -> Self {
        tally.latencies.sort_unstable();
        let requests = tally.latencies.len();
        let at = |share| percentile(&tally.latencies, share).map_or(0, u64::from);
        let per_1000 = |cpu: Duration| cpu.as_secs_f64() * 1e6 / requests.max(1) as f64;
        Self {
            requests,
            rps: requests as f64 / tally.elapsed.as_secs_f64().max(1e-9),
            p50: Duration::from_nanos(at(0.50)),
            p99: Duration::from_nanos(at(0.99)),
            cpu_ms_per_1000: cpu.map(per_1000),
            failed: tally.failed,
            first_failure: tally.first_failure,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "requests": self.requests,
            "rps": round(self.rps, 1),
            "p50_us": micros(self.p50),
            "p99_us": micros(self.p99),
            "cpu_ms_per_1000": self.cpu_ms_per_1000.map(|cpu| round(cpu, 2)),
            "failed": self.failed,
            "first_failure": self.first_failure,
        })
    }

    /// Requests per second, p50, p99 and CPU as cells of a table.
    pub(crate) fn cells(&self) -> [String; 4] {
        let cpu = self.cpu_ms_per_1000.map_or("-".to_owned(), |cpu| format!("{cpu:.1}"));
        [format!("{:.0}", self.rps), human(self.p50), human(self.p99), cpu]
    }
}

/// A percentile of sorted values; `None` for an empty slice.
pub(crate) fn percentile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((share * last as f64).round() as usize).copied()
}

pub(crate) fn micros(span: Duration) -> f64 {
    round(span.as_secs_f64() * 1e6, 1)
}

pub(crate) fn round(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

pub(crate) fn human(span: Duration) -> String {
    match span.as_secs_f64() {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.1 => format!("{:.2} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_computed_from_latencies_and_cpu() {
        let latencies = (1..=100).rev().map(|ms| ms * 1_000_000).collect();
        let elapsed = Duration::from_secs(2);
        let tally = Tally { latencies, elapsed, ..Tally::default() };
        let figures = Figures::of(tally, Some(Duration::from_millis(20)));
        assert_eq!((figures.requests, figures.rps), (100, 50.0));
        assert_eq!(figures.p99, Duration::from_millis(99));
        assert_eq!(figures.cpu_ms_per_1000, Some(200.0));
        assert_eq!(figures.cells(), ["50", "51.00 ms", "99.00 ms", "200.0"]);
    }

    #[test]
    fn empty_slice_has_no_percentile() {
        assert_eq!(percentile::<u32>(&[], 0.5), None);
        assert_eq!(percentile(&[7], 0.99), Some(7));
    }
}
