//! Rules for pods: no root, bounded resources, probes, and time to drain. A function lists the
//! violations, and a test breaks each rule once.

use std::collections::BTreeSet;

use faultline_chassis::limits::DRAIN_TIMEOUT;
use serde_json::{Value, json};

use crate::{SIZES, kind, list, name, of_kind, put, rendered, selects, text, workloads};

/// Time after the drain, for the final export of spans and metrics.
const EXPORT_SECONDS: u64 = 5;

/// Delay during which a draining gateway still accepts requests. The image has no shell for a sleep
/// in a hook.
const DRAIN_DELAY: &str = "FAULTLINE_GATEWAY__DRAIN_DELAY_MS";

/// Violations of the rules by the pods of a release.
fn violations(objects: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    for workload in workloads(objects) {
        let mut add = |problem: &str| found.push(format!("{}: {problem}", name(workload)));
        let pod = &workload["spec"]["template"]["spec"];
        check_pod(pod, &mut add);
        for container in list(pod, "/containers") {
            check_container(container, pod, &mut add);
        }
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        if !selects(&workload["spec"]["selector"]["matchLabels"], labels) {
            add("its selector does not match its own pods");
        }
        for spread in list(pod, "/topologySpreadConstraints") {
            if !selects(&spread["labelSelector"]["matchLabels"], labels) {
                add("its spread constraint does not match its own pods");
            }
            if spread["nodeTaintsPolicy"] != "Honor" {
                add("its spread ignores taints: pods stay pending when a zone is lost");
            }
        }
        let accounts = of_kind(objects, "ServiceAccount");
        let account = accounts.iter().find(|a| name(a) == text(pod, "/serviceAccountName"));
        if account.is_none_or(|account| account["automountServiceAccountToken"] != false) {
            add("it has no service account, or one with a token");
        }
    }
    found
}

fn check_pod(pod: &Value, add: &mut impl FnMut(&str)) {
    let security = &pod["securityContext"];
    if security["runAsNonRoot"] != true || security["runAsUser"].as_u64().is_none_or(|id| id == 0) {
        add("it may run as root");
    }
    if security["seccompProfile"]["type"] != "RuntimeDefault" {
        add("system calls are not filtered");
    }
    if pod["automountServiceAccountToken"] != false || pod["enableServiceLinks"] != false {
        add("it has access to the cluster that it does not need");
    }
    if ["hostNetwork", "hostPID", "hostIPC"].iter().any(|key| pod[key] == true) {
        add("it shares a namespace of the host");
    }
    if list(pod, "/topologySpreadConstraints").len() != 2 {
        add("it is not spread over nodes and zones");
    }
}

fn check_container(container: &Value, pod: &Value, add: &mut impl FnMut(&str)) {
    let security = &container["securityContext"];
    if security["readOnlyRootFilesystem"] != true {
        add("its root file system is writable");
    }
    if security["allowPrivilegeEscalation"] != false || security["privileged"] == true {
        add("it may escalate its privileges");
    }
    if security["capabilities"] != json!({"drop": ["ALL"]}) {
        add("it has capabilities");
    }
    for pointer in ["requests/cpu", "requests/memory", "limits/cpu", "limits/memory"] {
        if container.pointer(&format!("/resources/{pointer}")).is_none() {
            add(&format!("it has no {pointer}"));
        }
    }
    let image = text(container, "/image");
    let tag = image.rsplit_once('/').map_or(image, |(_, last)| last).split_once(':');
    if tag.is_none_or(|(_, tag)| tag.is_empty() || tag == "latest") {
        add("the tag of its image is not fixed");
    }
    let ports = list(container, "/ports").iter().map(|port| text(port, "/name"));
    let ports: BTreeSet<_> = ports.collect();
    for probe in ["startup", "liveness", "readiness"] {
        let probe = &container[format!("{probe}Probe")]["httpGet"];
        // A pool with its own image may have no admin port.
        if ports.contains("admin") && text(probe, "/port") != "admin" {
            add("it is not probed at its admin port");
        }
    }
    let delay = list(container, "/env").iter().find(|v| v["name"] == DRAIN_DELAY);
    let delay = delay.and_then(|v| text(v, "/value").parse::<u64>().ok());
    let wait = delay.unwrap_or(0).div_ceil(1000);
    let needed = wait + DRAIN_TIMEOUT.as_secs() + EXPORT_SECONDS;
    if pod["terminationGracePeriodSeconds"].as_u64().is_none_or(|grace| grace < needed) {
        add("it is killed before it has drained");
    }
    // Clients follow the endpoints of a service within a few seconds.
    if ports.contains("http") && wait < 5 {
        add("it stops serving before clients know");
    }
    for variable in list(container, "/env") {
        let secret =
            ["TOKEN", "KEY", "PASSWORD"].iter().any(|w| text(variable, "/name").ends_with(w));
        let inline =
            variable.get("value").is_some_and(|value| !value.as_str().is_some_and(is_path));
        if secret && inline {
            add("a secret is in its variables");
        }
    }
}

fn is_path(value: &str) -> bool {
    value.starts_with("/etc/faultline/")
}

#[test]
fn pods_of_every_size_obey_all_rules() {
    for size in SIZES {
        let objects = rendered(size);
        assert_eq!(violations(&objects), Vec::<String>::new(), "{size:?}");
        assert!(of_kind(&objects, "Secret").is_empty(), "{size:?}: secrets are only referred to");
    }
}

#[test]
fn each_pod_rule_detects_a_violation() {
    let pod = "/spec/template/spec";
    let first = "/spec/template/spec/containers/0";
    let whole = rendered(&[]);
    for (inside, pointer, value, says) in [
        (pod, "/securityContext/runAsNonRoot", json!(false), "may run as root"),
        (pod, "/securityContext/runAsUser", json!(0), "may run as root"),
        (pod, "/securityContext/seccompProfile", json!(null), "not filtered"),
        (pod, "/automountServiceAccountToken", json!(null), "access to the cluster"),
        (pod, "/hostNetwork", json!(true), "namespace of the host"),
        (pod, "/topologySpreadConstraints", json!([]), "not spread"),
        (pod, "/topologySpreadConstraints/1/nodeTaintsPolicy", json!(null), "when a zone is lost"),
        (pod, "/terminationGracePeriodSeconds", json!(15), "killed before it has drained"),
        (pod, "/serviceAccountName", json!("default"), "no service account"),
        (first, "/securityContext/readOnlyRootFilesystem", json!(null), "file system is writable"),
        (first, "/securityContext/allowPrivilegeEscalation", json!(true), "escalate"),
        (first, "/securityContext/capabilities/drop", json!(["NET_RAW"]), "capabilities"),
        (first, "/resources/limits/memory", json!(null), "no limits/memory"),
        (first, "/image", json!("registry:5000/faultline"), "is not fixed"),
        (first, "/image", json!("faultline:latest"), "is not fixed"),
        (first, "/readinessProbe", json!(null), "not probed"),
        (first, "/env", json!([]), "before clients know"),
        (first, "/env/0", json!({"name": DRAIN_DELAY, "value": "60000"}), "killed before"),
        (first, "/env/1", json!({"name": "FAULTLINE_MESH__TOKEN", "value": "x"}), "a secret"),
        (
            "/spec/template/metadata",
            "/labels/app.kubernetes.io~1name",
            json!("x"),
            "does not match",
        ),
    ] {
        let mut objects = whole.clone();
        let gateway = objects.iter_mut().find(|object| kind(object) == "Deployment");
        put(gateway.expect("there is a gateway"), &format!("{inside}{pointer}"), value);
        let found = violations(&objects);
        assert!(found.iter().any(|problem| problem.contains(says)), "{pointer}: {found:?}");
    }
}

/// Gateways and coordinators are spread over zones. Workers start in any zone: waiting tasks are
/// worse than an uneven spread.
#[test]
fn only_workers_tolerate_an_uneven_zone_spread() {
    for workload in workloads(&rendered(SIZES[2])) {
        let spread = list(workload, "/spec/template/spec/topologySpreadConstraints").iter();
        let over = spread.map(|s| (text(s, "/topologyKey"), text(s, "/whenUnsatisfiable")));
        let is_worker = name(workload).contains("-worker-");
        let strict = if is_worker { "ScheduleAnyway" } else { "DoNotSchedule" };
        let expected =
            [("kubernetes.io/hostname", "ScheduleAnyway"), ("topology.kubernetes.io/zone", strict)];
        assert_eq!(over.collect::<Vec<_>>(), expected, "{}", name(workload));
    }
}

#[test]
fn replicated_workloads_have_a_disruption_budget() {
    for size in SIZES {
        let objects = rendered(size);
        let budgets = of_kind(&objects, "PodDisruptionBudget");
        for workload in workloads(&objects) {
            let labels = &workload["spec"]["template"]["metadata"]["labels"];
            let selects_it = |b: &&&Value| selects(&b["spec"]["selector"]["matchLabels"], labels);
            let own: Vec<_> = budgets.iter().filter(selects_it).collect();
            // A budget over a single pod would only block the drain of its node.
            let single = workload["spec"]["replicas"] == 1 && own.is_empty();
            assert!(single || own.len() == 1, "{size:?}: {}", name(workload));
        }
    }
}

/// A database outage makes every coordinator unready, and must not block the drain of nodes.
#[test]
fn disruption_budgets_let_unready_pods_be_evicted() {
    for size in SIZES {
        for budget in of_kind(&rendered(size), "PodDisruptionBudget") {
            let policy = text(budget, "/spec/unhealthyPodEvictionPolicy");
            assert_eq!(policy, "AlwaysAllow", "{size:?}: {}", name(budget));
        }
    }
}

#[test]
fn coordinators_on_postgres_roll_with_surge() {
    for size in [SIZES[2], SIZES[5]] {
        let objects = rendered(size);
        let deployments = of_kind(&objects, "Deployment");
        let coordinator = deployments.iter().find(|d| name(d).ends_with("-coordinator"));
        let spec = &coordinator.expect("on a database it is a deployment")["spec"];
        assert!(spec["replicas"].as_u64().is_some_and(|n| n > 1), "{size:?}");
        let rolls = json!({
            "type": "RollingUpdate",
            "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 },
        });
        assert_eq!(spec["strategy"], rolls);
        // The time that clients may cache a DNS answer.
        assert!(spec["minReadySeconds"].as_u64().is_some_and(|seconds| seconds >= 30));
        // All state is in the database: there is no volume.
        let volumes = list(spec, "/template/spec/volumes").iter();
        let kept = volumes.filter(|volume| volume.get("persistentVolumeClaim").is_some());
        assert_eq!(kept.count(), 0, "{size:?}");
        for pointer in ["/template/spec/containers/0/lifecycle", "/volumeClaimTemplates"] {
            assert!(spec.pointer(pointer).is_none(), "{size:?}: {pointer}");
        }
    }
}

#[test]
fn sqlite_coordinator_is_a_stateful_set_of_one() {
    for size in SIZES {
        let objects = rendered(size);
        let workloads = workloads(&objects);
        let coordinator = workloads.iter().find(|w| name(w).ends_with("-coordinator"));
        let coordinator = coordinator.expect("there is a coordinator");
        let container = &coordinator["spec"]["template"]["spec"]["containers"][0];
        let variables = list(container, "/env");
        let is_store = |v: &&Value| v["name"] == "FAULTLINE_COORDINATOR__STORE";
        let store = variables.iter().find(is_store).expect("its store is set");
        let Some(store) = store["value"].as_str() else {
            assert_eq!(store["valueFrom"]["secretKeyRef"]["key"], "url", "{size:?}");
            continue;
        };
        assert_eq!(
            (kind(coordinator), &coordinator["spec"]["replicas"]),
            ("StatefulSet", &json!(1))
        );
        let claims = list(coordinator, "/spec/volumeClaimTemplates");
        let mounts = list(container, "/volumeMounts");
        let data = mounts.iter().find(|mount| mount["name"] == claims[0]["metadata"]["name"]);
        let path = text(data.expect("the claim is mounted"), "/mountPath");
        assert!(store.starts_with(&format!("sqlite:{path}/")), "{store} is not in {path}");
    }
}
