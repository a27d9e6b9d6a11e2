//! The way to the collector: by both protocols, whole to the last span, and never in the way of a
//! task.

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
async fn spans_travel_by_http_when_the_standard_variables_say_so() {
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
async fn nothing_is_lost_when_processes_are_asked_to_leave() {
    let collector = Collector::start().await;
    // Nothing would be sent for an hour, were it not for the end.
    let mut cluster = exporting(&collector).env("OTEL_BSP_SCHEDULE_DELAY", "3600000").start().await;
    let (trace_id, header) = trace();
    let rpc = cluster.rpc().agent("script").header("traceparent", header);
    for _ in 0..20 {
        rpc.send("chunk a").await;
    }
    assert_eq!(tree(&collector.spans(&trace_id)), "");
    for process in cluster.gateways.iter_mut().chain(&mut cluster.workers) {
        process.terminate().await;
        let ended = process.exit_within(SOON).await.expect("it leaves");
        assert!(ended.success(), "{ended:?}");
    }
    cluster.coordinators[0].terminate().await;
    assert!(cluster.coordinators[0].exit_within(SOON).await.expect("it leaves").success());
    assert_eq!(collector.spans(&trace_id).len(), 20 * 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_slows_no_task_and_is_said_once() {
    let nowhere = free_address();
    let plan = Plan::default()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{nowhere}"))
        .env("OTEL_BSP_SCHEDULE_DELAY", "20")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "40");
    let mut cluster = plan.start().await;
    let rpc = cluster.rpc().agent("script");
    let said = "cannot export spans";
    until("the coordinator said so", SOON, async || {
        let task = rpc.send("chunk a").await;
        assert_eq!(task::state(&task), COMPLETED);
        cluster.coordinators[0].log().contains(said).then_some(())
    })
    .await;
    for _ in 0..100 {
        rpc.send("chunk a").await;
    }
    assert_eq!(cluster.coordinators[0].log().matches(said).count(), 1);
    // It comes back: what was kept arrives, and how much was not is said.
    let collector = Collector::start_at(nowhere).await;
    let (trace_id, header) = trace();
    rpc.header("traceparent", header).send("chunk b").await;
    assert_eq!(collector.until(&trace_id, 6).await.len(), 6);
    until("that is said, too", SOON, async || {
        cluster.coordinators[0].log().contains("exporting spans again").then_some(())
    })
    .await;
    // And it may go away in the very end.
    drop(collector);
    rpc.send("chunk c").await;
    let since = Instant::now();
    cluster.coordinators[0].terminate().await;
    assert!(cluster.coordinators[0].exit_within(SOON).await.expect("it leaves").success());
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_exported_on_request_and_lead_to_their_span() {
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
    let record = until("the record of the failure is here", SOON, async || {
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
    // The lines on stderr say the same.
    let line = cluster.workers[0].log();
    let line = line.lines().find(|line| line.contains(&failure)).expect("the worker's log has it");
    let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
    assert_eq!((&line["trace.id"], &line["task.id"]), (&trace_id.into(), &task["id"]));
}
