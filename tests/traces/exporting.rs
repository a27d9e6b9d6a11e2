//! Export of spans and logs: both OTLP protocols, the final flush, and a collector that is down.

use std::time::{Duration, Instant};

use faultline_tests::{
    Collector, Plan,
    cluster::free_address,
    otlp::tree,
    task::{self, COMPLETED},
    until,
    wait::SOON,
};

use crate::{exporting, trace};

#[tokio::test(flavor = "multi_thread")]
async fn standard_otel_variables_select_export_by_http() {
    let collector = Collector::start().await;
    let plan = Plan::default()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.http())
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue%20team")
        .env("OTEL_SERVICE_NAME", "mine")
        .env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let cluster = plan.start().await;
    let (trace_id, header) = trace();
    cluster.rpc().agent("script").header("traceparent", header).send("chunk a").await;
    let spans = collector.until(&trace_id, 6).await;
    assert_eq!(spans.len(), 6, "{}", tree(&spans));
    assert!(spans.iter().all(|s| s.resource["service.name"] == "mine"), "{spans:?}");
    assert!(collector.headers().iter().all(|h| h["x-tenant"] == "blue team"));
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_exports_all_remaining_spans() {
    let collector = Collector::start().await;
    // The schedule is one hour: only the final flush exports.
    let mut cluster = exporting(&collector).env("OTEL_BSP_SCHEDULE_DELAY", "3600000").start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("script").header("traceparent", header);
    for _ in 0..20 {
        rpc.send("chunk a").await;
    }
    assert_eq!(tree(&collector.spans(&trace_id)), "");
    for process in cluster.gateways.iter_mut().chain(&mut cluster.workers) {
        process.terminate().await;
        let ended = process.exit_within(SOON).await.expect("it exits");
        assert!(ended.success(), "{ended:?}");
    }
    cluster.coordinators[0].terminate().await;
    assert!(cluster.coordinators[0].exit_within(SOON).await.expect("it exits").success());
    assert_eq!(collector.spans(&trace_id).len(), 20 * 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_collector_delays_no_task_and_is_logged_once() {
    let unused = free_address();
    let plan = Plan::default()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{unused}"))
        .env("OTEL_BSP_SCHEDULE_DELAY", "20")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "40");
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let warning = "cannot export spans";
    until("the coordinator has logged it", SOON, async || {
        let task = rpc.send("chunk a").await;
        assert_eq!(task::state(&task), COMPLETED);
        cluster.coordinators[0].log().contains(warning).then_some(())
    })
    .await;
    for _ in 0..100 {
        rpc.send("chunk a").await;
    }
    assert_eq!(cluster.coordinators[0].log().matches(warning).count(), 1);
    // The collector is back: queued spans arrive, and the number of dropped ones is logged.
    let collector = Collector::start_at(unused).await;
    let (trace_id, header) = trace();
    rpc.header("traceparent", header).send("chunk b").await;
    assert_eq!(collector.until(&trace_id, 6).await.len(), 6);
    until("the recovery is logged", SOON, async || {
        cluster.coordinators[0].log().contains("exporting spans again").then_some(())
    })
    .await;
    // The collector is down again during the shutdown.
    drop(collector);
    rpc.send("chunk c").await;
    let since = Instant::now();
    cluster.coordinators[0].terminate().await;
    assert!(cluster.coordinators[0].exit_within(SOON).await.expect("it exits").success());
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_logs_refer_to_their_span() {
    let collector = Collector::start().await;
    let plan = exporting(&collector)
        .env("OTEL_LOGS_EXPORTER", "otlp")
        .env("OTEL_BLRP_SCHEDULE_DELAY", "50")
        .env("FAULTLINE_LOG__JSON", "true");
    let cluster = plan.start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("script").header("traceparent", header);
    let task = rpc.send("panic").await;
    let failure = task["metadata"]["faultline.dev/failure"]["id"].as_str().unwrap().to_owned();
    let record = until("the record of the failure has arrived", SOON, async || {
        let records = collector.logs();
        records.into_iter().find(|r| format!("{r:?}").contains(&failure))
    })
    .await;
    let hex: String = record.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((hex.as_str(), record.severity_text.as_str()), (trace_id.as_str(), "WARN"));
    assert!(format!("{record:?}").contains(task::id(&task)), "{record:?}");
    let spans = collector.until(&trace_id, 6).await;
    let born = spans.iter().find(|s| s.event_names().contains(&"exception")).unwrap();
    let span: String = record.span_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(span, born.id);
    // The lines on stderr have the same ids.
    let line = cluster.workers[0].log();
    let line = line.lines().find(|line| line.contains(&failure)).expect("the worker's log has it");
    let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
    assert_eq!((&line["trace.id"], &line["task.id"]), (&trace_id.into(), &task["id"]));
}
