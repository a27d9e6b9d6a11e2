//! Custom resources of KEDA and the Prometheus operator, which the schemas of Kubernetes do not
//! contain: their form, and their references to objects and metrics of this release.

use std::fs;

use faultline_chassis::client::{Channel, Dial};
use faultline_proto::keda::{ScaledObjectRef, external_scaler_client::ExternalScalerClient};
use faultline_tests::in_process;
use serde_json::{Value, json};
use yaml_rust2::YamlLoader;

use crate::{NAME, SIZES, kind, list, name, of_kind, put, rendered, root, text};

pub(crate) const KINDS: [&str; 4] =
    ["ScaledObject", "TriggerAuthentication", "ServiceMonitor", "PrometheusRule"];

/// A kind, its version, and its paths with their types.
type Form = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The part of each kind that the chart uses: every allowed path and its type; `!` is required. `*`
/// is any item or key.
const FORMS: &[Form] = &[
    (
        "ScaledObject",
        "keda.sh/v1alpha1",
        &[
            ("spec.scaleTargetRef.name", "text!"),
            ("spec.minReplicaCount", "number"),
            ("spec.maxReplicaCount", "number"),
            ("spec.cooldownPeriod", "number"),
            ("spec.pollingInterval", "number"),
            ("spec.triggers.*.type", "text!"),
            ("spec.triggers.*.metadata.*", "text!"),
            ("spec.triggers.*.authenticationRef.name", "text"),
        ],
    ),
    (
        "TriggerAuthentication",
        "keda.sh/v1alpha1",
        &[
            ("spec.secretTargetRef.*.parameter", "text!"),
            ("spec.secretTargetRef.*.name", "text!"),
            ("spec.secretTargetRef.*.key", "text!"),
        ],
    ),
    (
        "ServiceMonitor",
        "monitoring.coreos.com/v1",
        &[
            ("spec.selector.matchLabels.*", "text!"),
            ("spec.endpoints.*.port", "text!"),
            ("spec.endpoints.*.path", "text"),
            ("spec.endpoints.*.interval", "text"),
            ("spec.endpoints.*.relabelings.*.targetLabel", "text"),
            ("spec.endpoints.*.relabelings.*.replacement", "text"),
        ],
    ),
    (
        "PrometheusRule",
        "monitoring.coreos.com/v1",
        &[
            ("spec.groups.*.name", "text!"),
            ("spec.groups.*.rules.*.alert", "text"),
            ("spec.groups.*.rules.*.record", "text"),
            ("spec.groups.*.rules.*.expr", "text!"),
            ("spec.groups.*.rules.*.for", "text"),
            ("spec.groups.*.rules.*.labels.*", "text"),
            ("spec.groups.*.rules.*.annotations.*", "text"),
        ],
    ),
];

/// Every leaf, with its path.
fn leaves(value: &Value, path: &str, found: &mut Vec<(String, &'static str)>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| leaves(v, &below(k), found)),
        Value::Array(items) => items.iter().for_each(|item| leaves(item, &below("*"), found)),
        Value::String(_) => found.push((path.to_owned(), "text")),
        Value::Number(_) => found.push((path.to_owned(), "number")),
        Value::Bool(_) => found.push((path.to_owned(), "boolean")),
        Value::Null => found.push((path.to_owned(), "null")),
    }
}

fn fits(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('.').peekable(), path.split('.'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            // Keys of labels and annotations may have dots in them.
            (Some("*"), Some(_)) if pattern.peek().is_none() => return true,
            (Some("*"), Some(_)) => {}
            (Some(expected), Some(actual)) if expected == actual => {}
            _ => return false,
        }
    }
}

/// Differences of an object from its form.
fn deformed(object: &Value) -> Vec<String> {
    let (_, version, form) =
        FORMS.iter().find(|form| form.0 == kind(object)).expect("a known kind");
    let mut wrong = Vec::new();
    if text(object, "/apiVersion") != *version {
        wrong.push(format!("its version is not {version}"));
    }
    let mut found = Vec::new();
    leaves(&object["spec"], "spec", &mut found);
    for (path, actual) in &found {
        let known = form.iter().find(|(pattern, _)| fits(pattern, path));
        match known {
            Some((_, expected)) if expected.trim_end_matches('!') == *actual => {}
            Some((_, expected)) => wrong.push(format!("{path} is {actual}, not {expected}")),
            None => wrong.push(format!("{path} is not known")),
        }
    }
    for (pattern, _) in form.iter().filter(|(_, expected)| expected.ends_with('!')) {
        if !found.iter().any(|(path, _)| fits(pattern, path)) {
            wrong.push(format!("{pattern} is missing"));
        }
    }
    wrong
}

#[test]
fn custom_resources_match_their_forms() {
    let mut seen = std::collections::BTreeSet::new();
    for size in SIZES {
        for object in rendered(size).iter().filter(|object| KINDS.contains(&kind(object))) {
            assert_eq!(deformed(object), Vec::<String>::new(), "{size:?}: {}", name(object));
            seen.insert(kind(object).to_owned());
        }
    }
    assert_eq!(seen.len(), KINDS.len(), "all of them were seen: {seen:?}");
    let default = rendered(&[]);
    for kind in KINDS {
        assert!(of_kind(&default, kind).is_empty(), "{kind} is off by default");
    }
}

#[test]
fn form_check_rejects_wrong_custom_resources() {
    let objects = rendered(SIZES[1]);
    for (pointer, value, says) in [
        ("/spec/triggers/0/metadata/slots", json!(64), "is number, not text!"),
        ("/spec/triggers/0/metadata", json!(null), "spec.triggers.*.metadata.* is missing"),
        ("/spec/minReplicas", json!(1), "spec.minReplicas is not known"),
        ("/apiVersion", json!("keda.sh/v1"), "its version is not keda.sh/v1alpha1"),
    ] {
        let mut object = of_kind(&objects, "ScaledObject")[0].clone();
        put(&mut object, pointer, value);
        let found = deformed(&object);
        assert!(found.iter().any(|problem| problem.contains(says)), "{pointer}: {found:?}");
    }
}

#[test]
fn each_pool_has_at_most_one_scaler() {
    for (size, by) in SIZES.iter().zip(["", "ScaledObject", "ScaledObject", "HPA", "", "HPA"]) {
        let objects = rendered(size);
        let scaled = of_kind(&objects, "ScaledObject");
        let hpas = of_kind(&objects, "HorizontalPodAutoscaler");
        assert_eq!((!scaled.is_empty(), !hpas.is_empty()), (by == "ScaledObject", by == "HPA"));
        for pool in of_kind(&objects, "Deployment").iter().filter(|d| name(d).contains("-worker-"))
        {
            let is = |o: &&&Value| text(o, "/spec/scaleTargetRef/name") == name(pool);
            let scalers = scaled.iter().filter(is).count() + hpas.iter().filter(is).count();
            assert_eq!(scalers, usize::from(!by.is_empty()), "{size:?}: {}", name(pool));
            // A fixed number of replicas would undo the scaling with each upgrade.
            assert_eq!(pool["spec"]["replicas"].is_null(), scalers == 1, "{}", name(pool));
        }
    }
}

/// Two releases in a namespace do not start workers for each other's tasks. The Prometheus operator
/// sets the label `service` to the name of the scraped service.
#[test]
fn hpa_reads_metrics_of_its_own_release_only() {
    let of = |objects: &[Value]| -> Vec<Value> {
        let hpas = of_kind(objects, "HorizontalPodAutoscaler").into_iter();
        hpas.map(|hpa| hpa["spec"]["metrics"][0]["external"]["metric"]["selector"].clone())
            .collect()
    };
    let objects = rendered(SIZES[3]);
    let monitor = of_kind(&objects, "ServiceMonitor")[0];
    let services = of_kind(&objects, "Service").into_iter();
    let mut scraped = services.filter(|service| {
        crate::selects(&monitor["spec"]["selector"]["matchLabels"], &service["metadata"]["labels"])
    });
    let labels = json!({"service": name(scraped.next().expect("it scrapes a service"))});
    let selectors = of(&objects);
    assert_eq!(selectors.len(), 2);
    assert!(selectors.iter().all(|s| s["matchLabels"] == labels), "{selectors:?}");
    // Other ways to scrape may not set this label.
    let otherwise = of(&rendered(&[SIZES[3], &["--set", "serviceMonitor.enabled=false"]].concat()));
    assert!(otherwise.iter().all(|s| s.get("matchLabels").is_none()), "{otherwise:?}");
}

/// The metadata of the trigger is valid for the coordinator.
#[tokio::test(flavor = "multi_thread")]
async fn coordinator_answers_the_keda_trigger() {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mesh = faultline::LocalMesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let dial = Dial { address: format!("http://{}", mesh.hub_addr()), ..Dial::default() };
    let mut scaler = ExternalScalerClient::new(Channel::lazy(&dial).expect("an address"));
    for size in &SIZES[1..3] {
        let objects = rendered(size);
        for object in of_kind(&objects, "ScaledObject") {
            let trigger = &object["spec"]["triggers"][0];
            assert_eq!(trigger["type"], "external-push");
            let metadata = trigger["metadata"].as_object().expect("it has some");
            // Every coordinator answers for all, so the service of all is dialled.
            let address = format!("{NAME}-coordinator.agents.svc:8081");
            assert_eq!(metadata["scalerAddress"], json!(address));
            let pair = |(k, v): (&String, &Value)| (k.clone(), v.as_str().unwrap().to_owned());
            let scaler_metadata = metadata.iter().map(pair).collect();
            let asked = ScaledObjectRef { scaler_metadata, ..ScaledObjectRef::default() };
            let spec = scaler.get_metric_spec(asked.clone()).await.expect("it is answered");
            let slots = metadata["slots"].as_str().unwrap();
            assert_eq!(spec.get_ref().metric_specs[0].target_size.to_string(), slots);
            assert!(!scaler.is_active(asked).await.expect("it is answered").get_ref().result);
        }
        // With TLS, KEDA needs the CA of the coordinator.
        let secure = !of_kind(&objects, "TriggerAuthentication").is_empty();
        let referred = &of_kind(&objects, "ScaledObject")[0]["spec"]["triggers"][0];
        assert_eq!(referred.get("authenticationRef").is_some(), secure, "{size:?}");
        for auth in of_kind(&objects, "TriggerAuthentication") {
            assert_eq!(referred["authenticationRef"]["name"], auth["metadata"]["name"]);
            assert_eq!(auth["spec"]["secretTargetRef"][0]["parameter"], "caCert");
        }
    }
    mesh.stop().await.expect("it drains");
}

#[test]
fn service_monitor_selects_every_pod_and_rules_are_complete() {
    let objects = rendered(SIZES[1]);
    let monitor = of_kind(&objects, "ServiceMonitor")[0];
    let services = of_kind(&objects, "Service");
    let found = services.iter().filter(|service| {
        crate::selects(&monitor["spec"]["selector"]["matchLabels"], &service["metadata"]["labels"])
    });
    let [service] = found.collect::<Vec<_>>()[..] else { panic!("one service is selected") };
    assert_eq!(service["spec"]["ports"][0]["name"], monitor["spec"]["endpoints"][0]["port"]);
    for workload in crate::workloads(&objects) {
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        assert!(crate::selects(&service["spec"]["selector"], labels), "{}", name(workload));
    }
    let rules = root().join("deploy/prometheus/rules.yaml");
    let rules = fs::read_to_string(rules).expect("there are rules");
    let rules = crate::json(&YamlLoader::load_from_str(&rules).expect("it is YAML")[0]);
    assert_eq!(of_kind(&objects, "PrometheusRule")[0]["spec"]["groups"], rules["groups"]);
    // The rules select the mesh by the label `job`.
    let relabelings = list(&monitor["spec"]["endpoints"][0], "/relabelings");
    assert_eq!(relabelings, [json!({"targetLabel": "job", "replacement": "faultline"})]);
}
