//! A snapshot of one metric, from which the Prometheus text and the OTLP export are made.

use super::instrument::{Def, Unit};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric and all its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub name: &'static str,
    pub unit: Unit,
    pub help: &'static str,
    pub kind: Kind,
    pub labels: Vec<&'static str>,
    pub points: Vec<Point>,
}

/// One series: the values of its labels, in order, and its own value.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub labels: Vec<String>,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    /// One count more than bounds; each count is of its own bucket only.
    Histogram {
        bounds: Vec<f64>,
        counts: Vec<u64>,
        sum: f64,
    },
}

impl Set {
    pub(super) fn of<const N: usize>(def: &Def<N>, kind: Kind) -> Self {
        Self {
            name: def.name,
            unit: def.unit,
            help: def.help,
            kind,
            labels: def.labels.to_vec(),
            points: Vec::new(),
        }
    }

    /// The name in Prometheus: underscores for dots, then the unit and the suffix of the kind.
    pub fn prometheus_name(&self) -> String {
        let mut name = self.name.replace('.', "_");
        name.push_str(match self.unit {
            Unit::Seconds => "_seconds",
            Unit::Bytes => "_bytes",
            Unit::Of(_) | Unit::None => "",
        });
        if self.kind == Kind::Counter {
            name.push_str("_total");
        }
        name
    }

    /// The unit in UCUM, as OpenTelemetry uses it.
    pub fn ucum(&self) -> String {
        match self.unit {
            Unit::Seconds => "s".to_owned(),
            Unit::Bytes => "By".to_owned(),
            Unit::Of(what) => format!("{{{what}}}"),
            // "1" would be a ratio.
            Unit::None => String::new(),
        }
    }
}
