//! The metrics of one process, or of a mesh in one process: instruments that services update
//! (`instrument`), and observers that run at each collection. Exposed as text for Prometheus
//! (`text`) and exported by OTLP (`otlp`, `export`). Each service defines its own metrics in a file
//! of its own. May depend on `net` and `client`.
//!
//! No label may have values that callers choose: ids, principals, texts.
//!
//! May use: net and client.

pub mod calls;
pub mod export;
pub mod failures;
mod instrument;
mod otlp;
mod process;
mod set;
pub mod text;

use std::{any::Any, collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use parking_lot::Mutex;

pub use instrument::{
    CALL_BOUNDS, Cell, Counter, Def, Family, Gauge, GaugeGuard, Histogram, OTHER, SIZE_BOUNDS,
    Unit, WORK_BOUNDS,
};
pub use set::{Kind, Point, Set, Value};

use instrument::Series;

pub type Counters<const N: usize> = Family<Counter, N>;
pub type Gauges<const N: usize> = Family<Gauge, N>;
pub type Histograms<const N: usize> = Family<Histogram, N>;

const TARGET: Def<2> = Def::new(
    "target_info",
    Unit::None,
    "What this is; always 1.",
    ["service.name", "service.version"],
);

/// The registry of metrics. Cheap to clone; all clones share their state.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    service: String,
    since: SystemTime,
    families: Mutex<BTreeMap<&'static str, Arc<dyn Collect>>>,
    observers: Mutex<Vec<Observer>>,
}

type Observer = Box<dyn Fn(&mut Observed) -> bool + Send + Sync>;

trait Collect: Any + Send + Sync {
    fn collect(&self) -> Set;
}

impl<T: Cell, const N: usize> Collect for Series<T, N> {
    fn collect(&self) -> Set {
        self.read()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::of("faultline")
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metrics({})", self.0.service)
    }
}

/// The registry is no part of a configuration's value, so any two are equal.
impl PartialEq for Metrics {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Metrics {}

impl Metrics {
    /// The registry of the service of this name.
    pub fn of(service: &str) -> Self {
        Self(Arc::new(Inner {
            service: service.to_owned(),
            since: SystemTime::now(),
            families: Mutex::default(),
            observers: Mutex::default(),
        }))
    }

    /// The counters of this definition: every call returns the same ones.
    pub fn counter<const N: usize>(&self, def: &Def<N>) -> Counters<N> {
        self.family(def)
    }

    pub fn gauge<const N: usize>(&self, def: &Def<N>) -> Gauges<N> {
        self.family(def)
    }

    pub fn histogram<const N: usize>(&self, def: &Def<N>) -> Histograms<N> {
        self.family(def)
    }

    fn family<T: Cell, const N: usize>(&self, def: &Def<N>) -> Family<T, N> {
        let mut families = self.0.families.lock();
        let known = families.entry(def.name).or_insert_with(|| Arc::new(Series::<T, N>::new(*def)));
        let known: Arc<dyn Any + Send + Sync> = Arc::clone(known) as _;
        Family::new(known.downcast().expect("a metric has one kind and one number of labels"))
    }

    /// Calls `look` at every collection, until it returns false.
    pub fn observe(&self, look: impl Fn(&mut Observed) -> bool + Send + Sync + 'static) {
        let mut observers = self.0.observers.lock();
        observers.push(Box::new(look));
    }

    /// The current values, by name.
    pub fn read(&self) -> Vec<Set> {
        let mut seen = Observed::default();
        process::observe(&mut seen);
        seen.gauge(&TARGET, [&self.0.service, env!("CARGO_PKG_VERSION")], 1.);
        {
            let mut observers = self.0.observers.lock();
            observers.retain(|look| look(&mut seen));
        }
        let families = self.0.families.lock();
        let families: Vec<_> = families.values().map(Arc::clone).collect();
        let mut sets = seen.0;
        sets.extend(families.iter().map(|family| family.collect()).map(|set| (set.name, set)));
        sets.into_values().collect()
    }

    /// The current values in the text format of Prometheus.
    pub fn text(&self) -> String {
        text::render(&self.read())
    }
}

/// Values that observers report at a collection.
#[derive(Default)]
pub struct Observed(BTreeMap<&'static str, Set>);

impl Observed {
    /// Reports a current value. Values of the same labels are added up.
    pub fn gauge<const N: usize>(&mut self, def: &Def<N>, labels: [&str; N], value: f64) {
        self.put(def, Kind::Gauge, labels, value);
    }

    /// Reports a total that is counted elsewhere.
    pub fn counter<const N: usize>(&mut self, def: &Def<N>, labels: [&str; N], value: f64) {
        self.put(def, Kind::Counter, labels, value);
    }

    fn put<const N: usize>(&mut self, def: &Def<N>, kind: Kind, labels: [&str; N], value: f64) {
        let set = self.0.entry(def.name).or_insert_with(|| Set::of(def, kind));
        let same = |point: &&mut Point| point.labels == labels;
        match set.points.iter_mut().find(same).map(|point| &mut point.value) {
            Some(Value::Number(number)) => *number += value,
            _ => {
                let labels = labels.map(str::to_owned).to_vec();
                set.points.push(Point { labels, value: Value::Number(value) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const SEEN: Def<1> = Def::new("seen", Unit::Of("thing"), "Things.", ["of"]);

    fn numbers(metrics: &Metrics, name: &str) -> Vec<(Vec<String>, Value)> {
        let sets = metrics.read().into_iter().filter(|set| set.name == name);
        sets.flat_map(|set| set.points).map(|point| (point.labels, point.value)).collect()
    }

    #[test]
    fn metric_of_one_name_exists_once() {
        let metrics = Metrics::default();
        for _ in 0..3 {
            metrics.clone().counter(&SEEN).with(["x"]).add(1);
        }
        assert_eq!(numbers(&metrics, "seen"), [(vec!["x".to_owned()], Value::Number(3.))]);
    }

    #[test]
    fn observer_is_removed_after_false_and_equal_labels_add_up() {
        let metrics = Metrics::default();
        let there = Arc::new(AtomicBool::new(true));
        metrics.observe({
            let there = Arc::clone(&there);
            move |seen| {
                seen.gauge(&SEEN, ["x"], 1.);
                seen.gauge(&SEEN, ["x"], 2.);
                seen.gauge(&SEEN, ["y"], 4.);
                there.load(Ordering::Relaxed)
            }
        });
        let number = |n| Value::Number(n);
        let all = [(vec!["x".to_owned()], number(3.)), (vec!["y".to_owned()], number(4.))];
        assert_eq!(numbers(&metrics, "seen"), all);
        there.store(false, Ordering::Relaxed);
        metrics.read();
        assert_eq!(numbers(&metrics, "seen"), []);
    }
}
