//! Pools with an image of their own: a program of the worker crate, which takes what the chart
//! tells it and is probed like every other pod.

use std::fs;

use faultline_worker::Settings;
use serde_json::{Value, json};

use crate::{
    NAME, NAMESPACE, SIZES,
    agreement::{Understood, environment, port},
    list, name, rendered, text, workloads,
};

const ADMIN: &str = "FAULTLINE_WORKER__ADMIN";

/// The container of the pool with an image of its own.
fn own(objects: &[Value]) -> &Value {
    let pool = format!("{NAME}-worker-mine");
    let workloads = workloads(objects);
    let deployment = workloads.into_iter().find(|workload| name(workload) == pool);
    &list(deployment.expect("the pool is there"), "/spec/template/spec/containers")[0]
}

#[test]
fn a_program_of_the_worker_crate_takes_what_the_chart_tells_it_and_is_probed() {
    let understood = Understood::of(SIZES[4]);
    let container = own(&understood.objects);
    assert_eq!(text(container, "/image"), "registry.example/refunds:1.2.3");
    assert_eq!(container["args"], json!([]), "`worker` is a command of the binary");
    let env = environment(container);
    assert!(!env.contains_key("FAULTLINE_WORKER__AGENTS"), "it has no built-in agents");
    let path = understood.dir.path().join("faultline.toml");
    fs::write(&path, understood.file()).expect("a file can be written");
    let settings = Settings::load_from(Some(&path), env);
    let settings = settings.unwrap_or_else(|e| panic!("the worker crate does not take it: {e}"));
    assert_eq!(settings.worker.slots, 8);
    let hub = format!("http://{NAME}-coordinator-headless.{NAMESPACE}.svc:8081");
    assert_eq!(settings.worker.coordinator, hub);
    let token = settings.mesh.token.as_ref().map(|token| token.reveal());
    assert_eq!(token, Some("token-of-faultline-mesh-worker-mine"), "that of its own pool");
    assert!(settings.log.json, "[log] of the shared file is its own too");
    let endpoint = Some("http://collector.observability:4317");
    assert_eq!(settings.log.otlp_endpoint.as_deref(), endpoint);
    let admin = settings.worker.admin.expect("it has an admin port");
    assert!(admin.ip().is_unspecified(), "the kubelet reaches it");
    assert_eq!(Some(admin.port()), port(container, "admin"));
    for (probe, path) in
        [("startup", "/startupz"), ("liveness", "/livez"), ("readiness", "/readyz")]
    {
        let http = &container[format!("{probe}Probe")]["httpGet"];
        assert_eq!(http, &json!({"path": path, "port": "admin"}), "{probe}");
    }
}

#[test]
fn a_pool_whose_program_has_no_admin_port_is_not_probed() {
    let pool = r#"workers=[{"name":"mine","agents":["refunds"],"probes":false,"args":["serve"],
        "image":{"repository":"registry.example/refunds","tag":"1.2.3"}}]"#;
    let objects = rendered(&["--set-json", pool]);
    let container = own(&objects);
    assert_eq!(container["args"], json!(["serve"]), "as the pool says");
    let told = list(container, "/env").iter().any(|variable| variable["name"] == ADMIN);
    assert!(!told && container.get("ports").is_none());
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(container.get(probe).is_none(), "{probe}");
    }
}
