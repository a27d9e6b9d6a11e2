//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use super::set::{Kind, Set, Value};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Renders all metrics.
pub fn render(sets: &[Set]) -> String {
    let mut out = String::with_capacity(16 * 1024);
    for set in sets.iter().filter(|set| !set.points.is_empty()) {
        write(set, &mut out).expect("a String takes everything");
    }
    out
}

fn write(set: &Set, out: &mut String) -> std::fmt::Result {
    let name = set.prometheus_name();
    let kind = match set.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    writeln!(out, "# HELP {name} {}", set.help.replace('\\', r"\\").replace('\n', r"\n"))?;
    writeln!(out, "# TYPE {name} {kind}")?;
    for point in &set.points {
        let labels = labels(set, &point.labels);
        match &point.value {
            Value::Number(number) => writeln!(out, "{name}{} {number}", braced(&labels, None))?,
            Value::Histogram { bounds, counts, sum } => {
                let mut below = 0;
                let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
                for (bound, count) in bounds.zip(counts) {
                    below += count;
                    writeln!(out, "{name}_bucket{} {below}", braced(&labels, Some(&bound)))?;
                }
                writeln!(out, "{name}_sum{} {sum}", braced(&labels, None))?;
                writeln!(out, "{name}_count{} {below}", braced(&labels, None))?;
            }
        }
    }
    Ok(())
}

fn labels(set: &Set, values: &[String]) -> String {
    let pairs = set.labels.iter().zip(values).map(|(name, value)| {
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        format!("{}=\"{value}\"", name.replace('.', "_"))
    });
    pairs.collect::<Vec<_>>().join(",")
}

fn braced(labels: &str, bound: Option<&str>) -> String {
    match (labels, bound) {
        ("", None) => String::new(),
        (labels, None) => format!("{{{labels}}}"),
        ("", Some(bound)) => format!("{{le=\"{bound}\"}}"),
        (labels, Some(bound)) => format!("{{{labels},le=\"{bound}\"}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Metrics,
            instrument::{Def, SIZE_BOUNDS, Unit},
        },
        *,
    };

    #[test]
    fn text_format_is_valid_prometheus() {
        let metrics = Metrics::default();
        let calls = Def::new("a.calls", Unit::Of("call"), "How\nmany.", ["rpc.method"]);
        metrics.counter(&calls).with(["with \"quotes\" and \\"]).add(3);
        let sizes =
            Def { bounds: &SIZE_BOUNDS[..2], ..Def::new("a.size", Unit::Bytes, "Sizes.", []) };
        metrics.histogram(&sizes).with([]).record_size(2);
        metrics.histogram(&sizes).with([]).record_size(9);
        metrics.counter(&Def::new("a.unused", Unit::Of("x"), "Never.", ["y"]));
        let ours: Vec<_> =
            metrics.read().into_iter().filter(|set| set.name.starts_with("a.")).collect();
        assert_eq!(
            render(&ours),
            r#"# HELP a_calls_total How\nmany.
# TYPE a_calls_total counter
a_calls_total{rpc_method="with \"quotes\" and \\"} 3
# HELP a_size_bytes Sizes.
# TYPE a_size_bytes histogram
a_size_bytes_bucket{le="1"} 0
a_size_bytes_bucket{le="2"} 1
a_size_bytes_bucket{le="+Inf"} 2
a_size_bytes_sum 11
a_size_bytes_count 2
"#
        );
    }
}
