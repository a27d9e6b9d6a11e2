//! Metrics as OTLP messages. Sums are cumulative since the start: a lost export is repaired by the
//! next one.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, metric::Data, number_data_point,
    },
    resource::v1::Resource,
};

use super::set::{Kind, Point, Set, Value};

/// One export of all metrics. `resource` has the attributes of the sender.
pub(super) fn request(
    sets: &[Set],
    resource: &[(String, String)],
    since: SystemTime,
    now: SystemTime,
) -> ExportMetricsServiceRequest {
    let time = Time { since: nanos(since), now: nanos(now) };
    // The resource has it.
    let sets = sets.iter().filter(|set| set.name != super::TARGET.name && !set.points.is_empty());
    let scope = InstrumentationScope {
        name: "faultline".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_metrics = vec![ScopeMetrics {
        scope: Some(scope),
        metrics: sets.map(|set| metric(set, time)).collect(),
        schema_url: String::new(),
    }];
    let attributes = resource.iter().map(|(key, value)| attribute(key, value)).collect();
    let resource = Some(Resource { attributes, ..Resource::default() });
    let resource_metrics = ResourceMetrics { resource, scope_metrics, schema_url: String::new() };
    ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }
}

#[derive(Clone, Copy)]
struct Time {
    since: u64,
    now: u64,
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn metric(set: &Set, time: Time) -> Metric {
    let cumulative = AggregationTemporality::Cumulative as i32;
    let numbers = || set.points.iter().filter_map(|point| number(set, point, time)).collect();
    let data = match set.kind {
        Kind::Counter => Data::Sum(Sum {
            data_points: numbers(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        Kind::Gauge => Data::Gauge(Gauge { data_points: numbers() }),
        Kind::Histogram => Data::Histogram(Histogram {
            data_points: set.points.iter().filter_map(|p| histogram(set, p, time)).collect(),
            aggregation_temporality: cumulative,
        }),
    };
    Metric {
        name: set.name.to_owned(),
        description: set.help.to_owned(),
        unit: set.ucum(),
        data: Some(data),
        ..Metric::default()
    }
}

fn number(set: &Set, point: &Point, time: Time) -> Option<NumberDataPoint> {
    let Value::Number(number) = point.value else { return None };
    Some(NumberDataPoint {
        attributes: attributes(set, point),
        start_time_unix_nano: time.since,
        time_unix_nano: time.now,
        value: Some(number_data_point::Value::AsDouble(number)),
        ..NumberDataPoint::default()
    })
}

fn histogram(set: &Set, point: &Point, time: Time) -> Option<HistogramDataPoint> {
    let Value::Histogram { bounds, counts, sum } = &point.value else { return None };
    Some(HistogramDataPoint {
        attributes: attributes(set, point),
        start_time_unix_nano: time.since,
        time_unix_nano: time.now,
        count: counts.iter().sum(),
        sum: Some(*sum),
        bucket_counts: counts.clone(),
        explicit_bounds: bounds.clone(),
        ..HistogramDataPoint::default()
    })
}

fn attributes(set: &Set, point: &Point) -> Vec<KeyValue> {
    let pairs = set.labels.iter().zip(&point.labels);
    // An empty label is left out: Prometheus regards both as the same.
    pairs.filter(|(_, value)| !value.is_empty()).map(|(key, value)| attribute(key, value)).collect()
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = any_value::Value::StringValue(value.to_owned());
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
