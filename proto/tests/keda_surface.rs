//! Pins KEDA's contract: the tests compile both sides from this repository's file, so only a
//! comparison of its names and numbers with KEDA's shows that KEDA would understand it.

#![allow(clippy::unwrap_used)]

use faultline_proto::DESCRIPTOR_SET;
use prost_reflect::DescriptorPool;

const MESSAGES: &[(&str, &[&str])] = &[
    ("GetMetricSpecResponse", &["metricSpecs=1"]),
    ("GetMetricsRequest", &["scaledObjectRef=1", "metricName=2"]),
    ("GetMetricsResponse", &["metricValues=1"]),
    ("IsActiveResponse", &["result=1"]),
    ("MetricSpec", &["metricName=1", "targetSize=2", "targetSizeFloat=3"]),
    ("MetricValue", &["metricName=1", "metricValue=2", "metricValueFloat=3"]),
    ("ScaledObjectRef", &["name=1", "namespace=2", "scalerMetadata=3"]),
];

#[test]
fn scaler_contract_has_the_names_and_numbers_of_keda() {
    let pool = DescriptorPool::decode(DESCRIPTOR_SET).unwrap();
    let service = pool.get_service_by_name("externalscaler.ExternalScaler").unwrap();
    let methods = service.methods().map(|method| {
        let streams = if method.is_server_streaming() { "stream " } else { "" };
        let name = method.name();
        let input = method.input();
        let output = method.output();
        format!("{name}({}) {streams}{}", input.name(), output.name())
    });
    assert_eq!(
        methods.collect::<Vec<_>>(),
        [
            "IsActive(ScaledObjectRef) IsActiveResponse",
            "StreamIsActive(ScaledObjectRef) stream IsActiveResponse",
            "GetMetricSpec(ScaledObjectRef) GetMetricSpecResponse",
            "GetMetrics(GetMetricsRequest) GetMetricsResponse",
        ]
    );
    for (name, expected) in MESSAGES {
        let message = pool.get_message_by_name(&format!("externalscaler.{name}")).unwrap();
        let fields = message.fields().map(|field| format!("{}={}", field.name(), field.number()));
        assert_eq!(fields.collect::<Vec<_>>(), *expected, "{name}");
    }
}
