//! Export of metrics by OTLP over gRPC and HTTP, to a collector on a real socket.

use std::{net::SocketAddr, time::Duration};

use faultline::testing::{Peer, Reply};
use faultline_chassis::{
    Metrics,
    metrics::{CALL_BOUNDS, Def, Unit, export},
};
use faultline_tests::{Process, Rpc, cluster::free_address, wait::SOON};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{Metric, metric::Data, number_data_point},
};
use prost::Message;
use serde_json::json;
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, transport::Server};

/// Records each request with its API key.
struct Collector(mpsc::Sender<(Option<String>, ExportMetricsServiceRequest)>);

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let key = request.metadata().get("api-key").and_then(|key| key.to_str().ok());
        let sent = (key.map(str::to_owned), request.into_inner());
        self.0.send(sent).await.expect("the test receives everything");
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

type Sent = mpsc::Receiver<(Option<String>, ExportMetricsServiceRequest)>;

async fn collector() -> (SocketAddr, Sent, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, sent) = mpsc::channel(64);
    let serving = tokio::spawn(async move {
        let service = MetricsServiceServer::new(Collector(sender));
        let incoming = TcpListenerStream::new(listener);
        Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
    });
    (address, sent, AbortOnDropHandle::new(serving))
}

fn options(pairs: &[(&str, &str)], endpoint: &str) -> export::Options {
    let env = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let complain = |problem| panic!("{problem}");
    export::options(&env, Some(endpoint), complain).expect("an endpoint is set")
}

/// The metrics of a process with three counted calls.
fn counted() -> Metrics {
    let metrics = Metrics::of("counted");
    let calls = Def::new("test.calls", Unit::Of("call"), "Calls.", ["agent"]);
    metrics.counter(&calls).with(["echo"]).add(3);
    let times = Def::time("test.duration", "Times.", [], CALL_BOUNDS);
    metrics.histogram(&times).with([]).record(Duration::from_millis(2));
    metrics
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|pair| pair.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn metric<'a>(request: &'a ExportMetricsServiceRequest, name: &str) -> &'a Metric {
    let scopes = request.resource_metrics.iter().flat_map(|r| &r.scope_metrics);
    let mut metrics = scopes.flat_map(|scope| &scope.metrics);
    metrics.find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}"))
}

/// The sum of a counter, over all its series.
fn total(request: &ExportMetricsServiceRequest, name: &str) -> f64 {
    let Some(Data::Sum(sum)) = &metric(request, name).data else { panic!("{name} is no counter") };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{sum:?}");
    let value = |value: &Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsDouble(n)) => *n,
        other => panic!("{other:?}"),
    };
    sum.data_points.iter().map(|point| value(&point.value)).sum()
}

fn check(request: &ExportMetricsServiceRequest) {
    let resource = &request.resource_metrics[0].resource.as_ref().unwrap().attributes;
    assert_eq!(attribute(resource, "service.name"), Some("counted"));
    assert!(attribute(resource, "service.instance.id").is_some());
    assert_eq!(attribute(resource, "deployment.environment.name"), Some("a test"));
    assert_eq!(total(request, "test.calls"), 3.);
    let calls = metric(request, "test.calls");
    let Some(Data::Sum(sum)) = &calls.data else { panic!("{calls:?}") };
    assert_eq!(attribute(&sum.data_points[0].attributes, "agent"), Some("echo"));
    assert!(sum.data_points[0].start_time_unix_nano <= sum.data_points[0].time_unix_nano);
    let times = metric(request, "test.duration");
    let Some(Data::Histogram(times)) = &times.data else { panic!("{times:?}") };
    let point = &times.data_points[0];
    assert_eq!((point.count, point.sum), (1, Some(0.002)));
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    let bucket = point.bucket_counts.iter().position(|n| *n == 1).unwrap();
    assert_eq!(point.explicit_bounds[bucket], 0.0025);
    assert_eq!(metric(request, "process.memory.usage").unit, "By");
}

const ATTRIBUTES: (&str, &str) =
    ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=a%20test");
const OFTEN: (&str, &str) = ("OTEL_METRIC_EXPORT_INTERVAL", "50");

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_exported_periodically_by_grpc() {
    let (address, mut sent, _serving) = collector().await;
    let key = ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret");
    let options = options(&[ATTRIBUTES, OFTEN, key], &format!("http://{address}"));
    let exporting = export::start(counted(), options).unwrap();
    for _ in 0..2 {
        let (key, request) = sent.recv().await.unwrap();
        assert_eq!(key.as_deref(), Some("s3cret"));
        check(&request);
    }
    exporting.flush().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_exported_as_protobuf_over_http() {
    let peer = Peer::answering(|_, _| Reply::json(200, json!({}))).await.unwrap();
    let protocol = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    let exporting = export::start(counted(), options(&[ATTRIBUTES, protocol], &peer.url()));
    // The interval is a minute: only the final export arrives.
    exporting.unwrap().flush().await;
    let calls = peer.calls();
    assert_eq!(calls.len(), 1);
    let head = (calls[0].verb.as_str(), calls[0].path.as_str(), calls[0].header("content-type"));
    assert_eq!(head, ("POST", "/v1/metrics", Some("application/x-protobuf")));
    check(&ExportMetricsServiceRequest::decode(calls[0].body.as_slice()).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_collector_does_not_delay_the_exit() {
    let away = format!("http://{}", free_address());
    let export_timeout = ("OTEL_EXPORTER_OTLP_TIMEOUT", "200");
    let exporting = export::start(counted(), options(&[OFTEN, export_timeout], &away)).unwrap();
    let ended = timeout(Duration::from_secs(10), exporting.flush()).await;
    assert!(ended.is_ok(), "the final export is bounded");
}

#[tokio::test(flavor = "multi_thread")]
async fn final_metrics_are_exported_on_shutdown() {
    let (address, mut sent, _serving) = collector().await;
    let dir = tempfile::tempdir().unwrap();
    let config = format!("[log]\notlp_endpoint = 'http://{address}'\n");
    std::fs::write(dir.path().join("faultline.toml"), config).unwrap();
    let any = "127.0.0.1:0";
    let mut up = Process::start(dir.path(), "up", &["up", "--listen", any, "--hub", any]).await;
    let gateway = up.ready().strip_prefix("http://").unwrap().parse().unwrap();
    Rpc::at(gateway).agent("script").send("fail NOT_FOUND").await;
    up.terminate().await;
    assert!(up.exit_within(SOON).await.unwrap().success());
    let last = timeout(SOON, sent.recv()).await.unwrap().unwrap().1;
    let resource = &last.resource_metrics[0].resource.as_ref().unwrap().attributes;
    assert_eq!(attribute(resource, "service.name"), Some("faultline"));
    assert_eq!(total(&last, "faultline.failures"), 1.);
}
