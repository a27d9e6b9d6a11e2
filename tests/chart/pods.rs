//! What every pod must be: nobody's root, bounded, probed, and given the time to leave. The rules
//! are a function that lists what breaks them, so that each can be seen to fail.

use std::collections::BTreeSet;

use faultline_chassis::limits::DRAIN_TIMEOUT;
use serde_json::{Value, json};

use crate::{SIZES, kind, list, name, of_kind, put, rendered, selects, text, workloads};

/// Beside the drain: the last spans and numbers are sent, and the process ends.
const LAST_WORDS_SECONDS: u64 = 5;

/// What tells a gateway how long it still takes what comes. The image has no shell that could
/// sleep.
const DRAIN_DELAY: &str = "FAULTLINE_GATEWAY__DRAIN_DELAY_MS";

/// What is wrong with the pods of a release.
fn wrong(objects: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    for workload in workloads(objects) {
        let mut say = |what: &str| wrong.push(format!("{}: {what}", name(workload)));
        let pod = &workload["spec"]["template"]["spec"];
        wrong_pod(pod, &mut say);
        for container in list(pod, "/containers") {
            wrong_container(container, pod, &mut say);
        }
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        if !selects(&workload["spec"]["selector"]["matchLabels"], labels) {
            say("its selector does not find its own pods");
        }
        for spread in list(pod, "/topologySpreadConstraints") {
            if !selects(&spread["labelSelector"]["matchLabels"], labels) {
                say("it is spread over the pods of somebody else");
            }
            if spread["nodeTaintsPolicy"] != "Honor" {
                say("it waits for a zone that is lost");
            }
        }
        let accounts = of_kind(objects, "ServiceAccount");
        let account = accounts.iter().find(|a| name(a) == text(pod, "/serviceAccountName"));
        if account.is_none_or(|account| account["automountServiceAccountToken"] != false) {
            say("it has no service account, or one with a token");
        }
    }
    wrong
}

fn wrong_pod(pod: &Value, say: &mut impl FnMut(&str)) {
    let security = &pod["securityContext"];
    if security["runAsNonRoot"] != true || security["runAsUser"].as_u64().is_none_or(|id| id == 0) {
        say("it may be root's");
    }
    if security["seccompProfile"]["type"] != "RuntimeDefault" {
        say("system calls are not filtered");
    }
    if pod["automountServiceAccountToken"] != false || pod["enableServiceLinks"] != false {
        say("it is told of the cluster what it does not need");
    }
    if ["hostNetwork", "hostPID", "hostIPC"].iter().any(|key| pod[key] == true) {
        say("it shares the host's");
    }
    if list(pod, "/topologySpreadConstraints").len() != 2 {
        say("it is not spread over nodes and zones");
    }
}

fn wrong_container(container: &Value, pod: &Value, say: &mut impl FnMut(&str)) {
    let security = &container["securityContext"];
    if security["readOnlyRootFilesystem"] != true {
        say("its root can be written");
    }
    if security["allowPrivilegeEscalation"] != false || security["privileged"] == true {
        say("it may become more than it is");
    }
    if security["capabilities"] != json!({"drop": ["ALL"]}) {
        say("it has capabilities");
    }
    for pointer in ["requests/cpu", "requests/memory", "limits/cpu", "limits/memory"] {
        if container.pointer(&format!("/resources/{pointer}")).is_none() {
            say(&format!("it has no {pointer}"));
        }
    }
    let image = text(container, "/image");
    let tag = image.rsplit_once('/').map_or(image, |(_, last)| last).split_once(':');
    if tag.is_none_or(|(_, tag)| tag.is_empty() || tag == "latest") {
        say("its image may be another tomorrow");
    }
    let ports = list(container, "/ports").iter().map(|port| text(port, "/name"));
    let ports: BTreeSet<_> = ports.collect();
    for probe in ["startup", "liveness", "readiness"] {
        let probe = &container[format!("{probe}Probe")]["httpGet"];
        // Whose image it is says whether it has a port to probe.
        if ports.contains("admin") && text(probe, "/port") != "admin" {
            say("it is not probed where it tells how it is");
        }
    }
    let delay = list(container, "/env").iter().find(|v| v["name"] == DRAIN_DELAY);
    let delay = delay.and_then(|v| text(v, "/value").parse::<u64>().ok());
    let wait = delay.unwrap_or(0).div_ceil(1000);
    let needed = wait + DRAIN_TIMEOUT.as_secs() + LAST_WORDS_SECONDS;
    if pod["terminationGracePeriodSeconds"].as_u64().is_none_or(|grace| grace < needed) {
        say("it is killed before it has left");
    }
    // The endpoints of a service are followed by everybody within a few seconds.
    if ports.contains("http") && wait < 5 {
        say("it stops serving before clients know");
    }
    for variable in list(container, "/env") {
        let secret =
            ["TOKEN", "KEY", "PASSWORD"].iter().any(|w| text(variable, "/name").ends_with(w));
        let inline =
            variable.get("value").is_some_and(|value| !value.as_str().is_some_and(is_path));
        if secret && inline {
            say("a secret stands in its variables");
        }
    }
}

fn is_path(value: &str) -> bool {
    value.starts_with("/etc/faultline/")
}

#[test]
fn every_pod_of_every_size_is_as_it_should_be() {
    for size in SIZES {
        let objects = rendered(size);
        assert_eq!(wrong(&objects), Vec::<String>::new(), "{size:?}");
        assert!(of_kind(&objects, "Secret").is_empty(), "{size:?}: secrets are only referred to");
    }
}

#[test]
fn every_rule_for_pods_can_be_broken() {
    let pod = "/spec/template/spec";
    let first = "/spec/template/spec/containers/0";
    let whole = rendered(&[]);
    for (inside, pointer, value, says) in [
        (pod, "/securityContext/runAsNonRoot", json!(false), "may be root's"),
        (pod, "/securityContext/runAsUser", json!(0), "may be root's"),
        (pod, "/securityContext/seccompProfile", json!(null), "not filtered"),
        (pod, "/automountServiceAccountToken", json!(null), "told of the cluster"),
        (pod, "/hostNetwork", json!(true), "shares the host's"),
        (pod, "/topologySpreadConstraints", json!([]), "not spread"),
        (pod, "/topologySpreadConstraints/1/nodeTaintsPolicy", json!(null), "zone that is lost"),
        (pod, "/terminationGracePeriodSeconds", json!(15), "killed before it has left"),
        (pod, "/serviceAccountName", json!("default"), "no service account"),
        (first, "/securityContext/readOnlyRootFilesystem", json!(null), "root can be written"),
        (first, "/securityContext/allowPrivilegeEscalation", json!(true), "become more"),
        (first, "/securityContext/capabilities/drop", json!(["NET_RAW"]), "capabilities"),
        (first, "/resources/limits/memory", json!(null), "no limits/memory"),
        (first, "/image", json!("registry:5000/faultline"), "another tomorrow"),
        (first, "/image", json!("faultline:latest"), "another tomorrow"),
        (first, "/readinessProbe", json!(null), "not probed"),
        (first, "/env", json!([]), "before clients know"),
        (first, "/env/0", json!({"name": DRAIN_DELAY, "value": "60000"}), "killed before"),
        (first, "/env/1", json!({"name": "FAULTLINE_MESH__TOKEN", "value": "x"}), "a secret"),
        ("/spec/template/metadata", "/labels/app.kubernetes.io~1name", json!("x"), "does not find"),
    ] {
        let mut objects = whole.clone();
        let gateway = objects.iter_mut().find(|object| kind(object) == "Deployment");
        put(gateway.expect("there is a gateway"), &format!("{inside}{pointer}"), value);
        let found = wrong(&objects);
        assert!(found.iter().any(|what| what.contains(says)), "{pointer}: {found:?}");
    }
}

/// Gateways and coordinators are never all in one zone. Workers go where there is room: tasks that
/// wait for one are worse than an uneven spread.
#[test]
fn only_workers_start_where_they_would_be_uneven() {
    for workload in workloads(&rendered(SIZES[2])) {
        let spread = list(workload, "/spec/template/spec/topologySpreadConstraints").iter();
        let over = spread.map(|s| (text(s, "/topologyKey"), text(s, "/whenUnsatisfiable")));
        let strict = match name(workload).contains("-worker-") {
            true => "ScheduleAnyway",
            false => "DoNotSchedule",
        };
        let expected =
            [("kubernetes.io/hostname", "ScheduleAnyway"), ("topology.kubernetes.io/zone", strict)];
        assert_eq!(over.collect::<Vec<_>>(), expected, "{}", name(workload));
    }
}

#[test]
fn what_has_several_pods_does_not_lose_them_all_at_once() {
    for size in SIZES {
        let objects = rendered(size);
        let budgets = of_kind(&objects, "PodDisruptionBudget");
        for workload in workloads(&objects) {
            let labels = &workload["spec"]["template"]["metadata"]["labels"];
            let selects_it = |b: &&&Value| selects(&b["spec"]["selector"]["matchLabels"], labels);
            let own: Vec<_> = budgets.iter().filter(selects_it).collect();
            // A budget over a single pod would only keep its node from being emptied.
            let single = workload["spec"]["replicas"] == 1 && own.is_empty();
            assert!(single || own.len() == 1, "{size:?}: {}", name(workload));
        }
    }
}

/// A database that is away makes every coordinator unready; that must not keep nodes from being
/// emptied.
#[test]
fn a_budget_does_not_hold_pods_that_serve_nobody() {
    for size in SIZES {
        for budget in of_kind(&rendered(size), "PodDisruptionBudget") {
            let policy = text(budget, "/spec/unhealthyPodEvictionPolicy");
            assert_eq!(policy, "AlwaysAllow", "{size:?}: {}", name(budget));
        }
    }
}

#[test]
fn of_several_coordinators_one_comes_before_another_leaves() {
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
        // As long as the cluster's DNS lets a name be remembered.
        assert!(spec["minReadySeconds"].as_u64().is_some_and(|seconds| seconds >= 30));
        // It is a client of the database only: nothing of it is kept on a volume.
        let volumes = list(spec, "/template/spec/volumes").iter();
        let kept = volumes.filter(|volume| volume.get("persistentVolumeClaim").is_some());
        assert_eq!(kept.count(), 0, "{size:?}");
        for pointer in ["/template/spec/containers/0/lifecycle", "/volumeClaimTemplates"] {
            assert!(spec.pointer(pointer).is_none(), "{size:?}: {pointer}");
        }
    }
}

#[test]
fn a_coordinator_on_sqlite_is_never_there_twice() {
    for size in SIZES {
        let objects = rendered(size);
        let workloads = workloads(&objects);
        let coordinator = workloads.iter().find(|w| name(w).ends_with("-coordinator"));
        let coordinator = coordinator.expect("there is a coordinator");
        let container = &coordinator["spec"]["template"]["spec"]["containers"][0];
        let variables = list(container, "/env");
        let is_store = |v: &&Value| v["name"] == "FAULTLINE_COORDINATOR__STORE";
        let store = variables.iter().find(is_store).expect("it is told its store");
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
