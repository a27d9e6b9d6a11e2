//! Counters, gauges and histograms: a few atomics each, so that an update costs some nanoseconds. A
//! family has one series for each combination of label values; frequent users keep a series.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::RwLock;

use super::set::{Kind, Point, Set, Value};
use crate::limits;

/// The label value of the overflow series.
pub const OTHER: &str = "other";

/// Bounds for the duration of calls, in microseconds: far finer than the web's usual bounds, and up
/// to minutes for a call that waits for its task.
pub const CALL_BOUNDS: &[u64] = &[
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
];
/// Bounds for the duration of tasks and of answers of people: up to a day.
pub const WORK_BOUNDS: &[u64] = &[
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
    14_400_000_000,
    86_400_000_000,
];
/// Bounds for numbers of items.
pub const SIZE_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Bytes,
    /// A number of these.
    Of(&'static str),
    /// A boolean, or an enumerated state.
    None,
}

impl Unit {
    /// The number of recorded units in one exposed unit.
    pub(super) fn scale(self) -> f64 {
        match self {
            Unit::Seconds => 1e6,
            Unit::Bytes | Unit::Of(_) | Unit::None => 1.0,
        }
    }
}

/// The definition of a metric: its OpenTelemetry name, unit, help and labels.
#[derive(Clone, Copy, Debug)]
pub struct Def<const N: usize> {
    pub name: &'static str,
    pub unit: Unit,
    pub help: &'static str,
    pub labels: [&'static str; N],
    /// Upper bounds of a histogram: microseconds if the unit is seconds.
    pub bounds: &'static [u64],
}

impl<const N: usize> Def<N> {
    pub const fn new(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Self {
        Self { name, unit, help, labels, bounds: &[] }
    }

    /// A histogram of durations.
    pub const fn time(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        bounds: &'static [u64],
    ) -> Self {
        Self { name, unit: Unit::Seconds, help, labels, bounds }
    }
}

/// A value that only increases.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
}

/// A value that increases and decreases.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Adds one for as long as the guard lives.
    pub fn guard(&self) -> GaugeGuard {
        self.add(1);
        GaugeGuard(self.clone())
    }
}

/// One unit of a gauge.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// A distribution of values.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    bounds: &'static [u64],
    /// One more than there are bounds.
    counts: Box<[AtomicU64]>,
    /// Overflows after half a million years of seconds.
    sum: AtomicU64,
}

impl Histogram {
    pub fn record(&self, time: Duration) {
        // Rounds to the nearest microsecond: truncation would lose half a microsecond of every
        // value.
        let nanos = time.as_nanos().saturating_add(500);
        self.put(u64::try_from(nanos / 1000).unwrap_or(u64::MAX));
    }

    pub fn record_size(&self, n: usize) {
        self.put(n as u64);
    }

    fn put(&self, value: u64) {
        let at = self.0.bounds.partition_point(|bound| *bound < value);
        self.0.counts[at].fetch_add(1, Relaxed);
        self.0.sum.fetch_add(value, Relaxed);
    }
}

/// An instrument of a family.
pub trait Cell: Clone + Send + Sync + 'static {
    #[doc(hidden)]
    fn new(bounds: &'static [u64]) -> Self;
    #[doc(hidden)]
    fn kind() -> Kind;
    #[doc(hidden)]
    fn read(&self, scale: f64) -> Value;
}

impl Cell for Counter {
    fn new(_: &'static [u64]) -> Self {
        Self::default()
    }

    fn kind() -> Kind {
        Kind::Counter
    }

    fn read(&self, _: f64) -> Value {
        Value::Number(self.0.load(Relaxed) as f64)
    }
}

impl Cell for Gauge {
    fn new(_: &'static [u64]) -> Self {
        Self::default()
    }

    fn kind() -> Kind {
        Kind::Gauge
    }

    fn read(&self, _: f64) -> Value {
        Value::Number(self.0.load(Relaxed) as f64)
    }
}

impl Cell for Histogram {
    fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Buckets { bounds, counts, sum: AtomicU64::new(0) }))
    }

    fn kind() -> Kind {
        Kind::Histogram
    }

    fn read(&self, scale: f64) -> Value {
        Value::Histogram {
            bounds: self.0.bounds.iter().map(|bound| *bound as f64 / scale).collect(),
            counts: self.0.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum: self.0.sum.load(Relaxed) as f64 / scale,
        }
    }
}

/// One metric with all its series.
#[derive(Debug)]
pub struct Family<T, const N: usize>(Arc<Series<T, N>>);

impl<T, const N: usize> Clone for Family<T, N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
pub(super) struct Series<T, const N: usize> {
    def: Def<N>,
    /// Sorted by the hash of their labels, so that a look-up reads the labels once.
    cells: RwLock<Vec<Member<T, N>>>,
}

#[derive(Debug)]
struct Member<T, const N: usize> {
    hash: u64,
    labels: [Box<str>; N],
    cell: T,
}

impl<T: Cell, const N: usize> Series<T, N> {
    pub(super) fn new(def: Def<N>) -> Self {
        Self { def, cells: RwLock::default() }
    }

    pub(super) fn read(&self) -> Set {
        let cells = self.cells.read();
        let scale = self.def.unit.scale();
        let points = cells.iter().map(|member| Point {
            labels: member.labels.iter().map(|label| label.to_string()).collect(),
            value: member.cell.read(scale),
        });
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.labels.cmp(&b.labels));
        Set { points, ..Set::of(&self.def, T::kind()) }
    }
}

impl<T: Cell, const N: usize> Family<T, N> {
    pub(super) fn new(series: Arc<Series<T, N>>) -> Self {
        Self(series)
    }

    /// Calls `work` with the series of these labels, which is created if necessary.
    pub fn at(&self, labels: [&str; N], work: impl FnOnce(&T)) {
        let cells = self.0.cells.read();
        match find(&cells, labels) {
            Ok(at) => work(&cells[at].cell),
            Err(_) => {
                drop(cells);
                work(&self.made(labels));
            }
        }
    }

    /// The series of these labels, to keep.
    pub fn with(&self, labels: [&str; N]) -> T {
        let cells = self.0.cells.read();
        match find(&cells, labels) {
            Ok(at) => cells[at].cell.clone(),
            Err(_) => {
                drop(cells);
                self.made(labels)
            }
        }
    }

    fn made(&self, labels: [&str; N]) -> T {
        let mut cells = self.0.cells.write();
        let known = find(&cells, labels).is_ok();
        let labels =
            if cells.len() < limits::METRIC_SERIES_MAX || known { labels } else { [OTHER; N] };
        match find(&cells, labels) {
            Ok(at) => cells[at].cell.clone(),
            Err(at) => {
                let cell = T::new(self.0.def.bounds);
                let hash = hash(labels);
                let labels = labels.map(Box::from);
                cells.insert(at, Member { hash, labels, cell: cell.clone() });
                cell
            }
        }
    }
}

/// The index of the series of these labels, or the index to insert it at.
fn find<T, const N: usize>(cells: &[Member<T, N>], labels: [&str; N]) -> Result<usize, usize> {
    let hash = hash(labels);
    let mut at = cells.partition_point(|member| member.hash < hash);
    while let Some(member) = cells.get(at).filter(|member| member.hash == hash) {
        if member.labels.iter().zip(labels).all(|(known, label)| **known == *label) {
            return Ok(at);
        }
        at += 1;
    }
    Err(at)
}

/// A fast hash without protection against chosen collisions: callers cannot choose labels.
fn hash<const N: usize>(labels: [&str; N]) -> u64 {
    let mix =
        |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    labels.iter().fold(0, |hash, label| {
        let (words, rest) = label.as_bytes().as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        mix(mix(hash, u64::from_le_bytes(last)), label.len() as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Def<1> =
        Def { bounds: &[10, 20], ..Def::new("size", Unit::Of("thing"), "Sizes.", ["of"]) };

    fn family<T: Cell>(def: Def<1>) -> Family<T, 1> {
        Family::new(Arc::new(Series::new(def)))
    }

    #[test]
    fn value_at_a_bound_is_in_the_bucket_below_it() {
        let sizes = family::<Histogram>(SIZES);
        for n in [0, 10, 11, 20, 21] {
            sizes.with(["x"]).record_size(n);
        }
        let Value::Histogram { bounds, counts, sum } = &sizes.0.read().points[0].value else {
            panic!("no histogram")
        };
        assert_eq!(
            (bounds.as_slice(), counts.as_slice(), *sum),
            (&[10., 20.][..], &[2, 2, 1][..], 62.)
        );
    }

    #[test]
    fn durations_are_exposed_in_seconds_to_the_microsecond() {
        let times = family::<Histogram>(Def::time("time", "Times.", ["of"], CALL_BOUNDS));
        times.with(["x"]).record(Duration::from_nanos(1_500_600));
        times.with(["x"]).record(Duration::MAX);
        let Value::Histogram { counts, bounds, .. } = &times.0.read().points[0].value else {
            panic!("no histogram")
        };
        assert_eq!((counts[2], counts[CALL_BOUNDS.len()]), (1, 1));
        assert_eq!((bounds[0], bounds[2]), (0.0005, 0.0025));
    }

    #[test]
    fn series_above_the_limit_share_one() {
        let counters = family::<Counter>(SIZES);
        for n in 0..2 * limits::METRIC_SERIES_MAX {
            counters.at([&n.to_string()], |counter| counter.add(1));
        }
        let set = counters.0.read();
        assert_eq!(set.points.len(), limits::METRIC_SERIES_MAX + 1);
        let other = set.points.iter().find(|point| point.labels == [OTHER]).unwrap();
        assert_eq!(other.value, Value::Number(limits::METRIC_SERIES_MAX as f64));
        counters.at(["0"], |counter| counter.add(1));
        let zero = counters.0.read().points.into_iter().find(|p| p.labels == ["0"]).unwrap();
        assert_eq!(zero.value, Value::Number(2.), "existing series stay");
    }

    #[test]
    fn gauge_counts_its_live_guards() {
        let gauges = family::<Gauge>(SIZES);
        let held = [gauges.with(["x"]).guard(), gauges.with(["x"]).guard()];
        let value = || gauges.0.read().points[0].value.clone();
        assert_eq!(value(), Value::Number(2.));
        drop(held);
        assert_eq!(value(), Value::Number(0.));
    }
}
