//! Pools with their own image: a user-written worker reads the environment of the chart and has the
//! same probes as every other pod.

use std::fs;

use faultline_worker::Settings;
use serde_json::{Value, json};

use crate::{
    NAME, NAMESPACE, SIZES,
    agreement::{LoadedRelease, environment, port},
    list, name, rendered, text, workloads,
};

const ADMIN: &str = "FAULTLINE_WORKER__ADMIN";

/// The container of the pool with its own image.
fn own(objects: &[Value]) -> &Value {
    let pool = format!("{NAME}-worker-mine");
    let workloads = workloads(objects);
    let deployment = workloads.into_iter().find(|workload| name(workload) == pool);
    &list(deployment.expect("the pool is there"), "/spec/template/spec/containers")[0]
}

#[test]
fn user_written_worker_reads_the_chart_environment_and_is_probed() {
    let release = LoadedRelease::of(SIZES[4]);
    let container = own(&release.objects);
    assert_eq!(text(container, "/image"), "registry.example/refunds:1.2.3");
    assert_eq!(container["args"], json!([]), "`worker` is a command of the binary");
    let env = environment(container);
    assert!(!env.contains_key("FAULTLINE_WORKER__AGENTS"), "it has no built-in agents");
    let path = release.dir.path().join("faultline.toml");
    fs::write(&path, release.file()).expect("a file can be written");
    let settings = Settings::load_from(Some(&path), env);
    let settings =
        settings.unwrap_or_else(|e| panic!("the worker crate refuses the configuration: {e}"));
    assert_eq!(settings.worker.slots, 8);
    let hub = format!("http://{NAME}-coordinator-headless.{NAMESPACE}.svc:8081");
    assert_eq!(settings.worker.coordinator, hub);
    let token = settings.mesh.token.as_ref().map(|token| token.reveal());
    assert_eq!(token, Some("token-of-faultline-mesh-worker-mine"), "the token of its own pool");
    assert!(settings.log.json, "[log] of the shared file applies");
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
fn pool_without_an_admin_port_is_not_probed() {
    let pool = r#"workers=[{"name":"mine","agents":["refunds"],"probes":false,"args":["serve"],
        "image":{"repository":"registry.example/refunds","tag":"1.2.3"}}]"#;
    let objects = rendered(&["--set-json", pool]);
    let container = own(&objects);
    assert_eq!(container["args"], json!(["serve"]), "the arguments of the pool");
    let has_admin = list(container, "/env").iter().any(|variable| variable["name"] == ADMIN);
    assert!(!has_admin && container.get("ports").is_none());
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(container.get(probe).is_none(), "{probe}");
    }
}
