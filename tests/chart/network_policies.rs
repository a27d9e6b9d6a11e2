//! Network policies: they allow exactly the connections that ARCHITECTURE.md draws.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{SIZES, list, name, of_kind, rendered, selects, workloads};

/// One allowed connection: role of the pod, direction, peer and port.
type Edge = (String, &'static str, String, u64);

fn edges(objects: &[Value]) -> BTreeSet<Edge> {
    let mut edges = BTreeSet::new();
    for policy in of_kind(objects, "NetworkPolicy") {
        let role = role_of(&policy["spec"]["podSelector"]["matchLabels"]);
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]), "{}", name(policy));
        for (rules, way, peers) in [("/spec/ingress", "from", "from"), ("/spec/egress", "to", "to")]
        {
            for rule in list(policy, rules) {
                let peers = match list(rule, &format!("/{peers}")) {
                    [] => vec!["any".to_owned()],
                    peers => peers.iter().map(peer).collect(),
                };
                for (peer, port) in peers
                    .iter()
                    .flat_map(|p| list(rule, "/ports").iter().map(move |port| (p, port)))
                {
                    let port = port["port"].as_u64().expect("a number");
                    edges.insert((role.clone(), way, peer.clone(), port));
                }
            }
        }
    }
    edges
}

fn role_of(labels: &Value) -> String {
    labels["app.kubernetes.io/component"].as_str().expect("a role").to_owned()
}

fn peer(peer: &Value) -> String {
    let labels = &peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"];
    match (labels.as_str(), peer["ipBlock"]["cidr"].as_str()) {
        (Some(namespace), _) => format!("namespace {namespace}"),
        (_, Some("0.0.0.0/0")) => {
            let private = list(peer, "/ipBlock/except");
            assert!(
                private.contains(&json!("169.254.0.0/16")),
                "cloud metadata addresses are excluded"
            );
            "public".to_owned()
        }
        (_, Some("2000::/3")) => "public, of IPv6".to_owned(),
        (_, Some(cidr)) => cidr.to_owned(),
        _ => role_of(&peer["podSelector"]["matchLabels"]),
    }
}

fn expected(keda: bool, postgres: Option<(&str, u64)>) -> BTreeSet<Edge> {
    let mut all = vec![
        ("gateway", "from", "any", 8080),
        ("gateway", "to", "coordinator", 8081),
        ("worker", "to", "coordinator", 8081),
        ("coordinator", "from", "gateway", 8081),
        ("coordinator", "from", "worker", 8081),
        ("coordinator", "to", "public", 443),
        ("coordinator", "to", "public", 80),
        ("coordinator", "to", "public, of IPv6", 443),
        ("coordinator", "to", "public, of IPv6", 80),
    ];
    for role in ["gateway", "coordinator", "worker"] {
        all.push((role, "from", "namespace monitoring", 9464));
        all.push((role, "to", "namespace kube-system", 53));
    }
    if keda {
        all.push(("coordinator", "from", "namespace keda", 8081));
    }
    // Coordinators communicate through the database only.
    if let Some((database, port)) = postgres {
        all.push(("coordinator", "to", database, port));
    }
    all.into_iter().map(|(a, b, c, d)| (a.to_owned(), b, c.to_owned(), d)).collect()
}

#[test]
fn policies_allow_exactly_the_designed_connections() {
    assert_eq!(edges(&rendered(SIZES[0])), expected(false, None));
    assert_eq!(edges(&rendered(SIZES[1])), expected(true, None));
    assert_eq!(edges(&rendered(SIZES[2])), expected(true, Some(("any", 5432))));
    assert_eq!(
        edges(&rendered(SIZES[3])),
        expected(false, None),
        "an HPA needs no connection to the coordinator"
    );
    assert_eq!(edges(&rendered(SIZES[5])), expected(false, Some(("10.20.0.0/24", 6432))));
}

#[test]
fn telemetry_and_pool_egress_add_connections() {
    let edges = edges(&rendered(SIZES[4]));
    for role in ["gateway", "coordinator", "worker"] {
        assert!(edges.contains(&(role.to_owned(), "to", "any".to_owned(), 4317)), "{edges:?}");
    }
    assert!(edges.contains(&("worker".to_owned(), "to", "any".to_owned(), 443)), "{edges:?}");
}

/// Without a port in the endpoint, the binary dials the default port of its scheme.
#[test]
fn collector_egress_uses_the_port_that_the_binary_dials() {
    for (endpoint, port) in [
        ("http://collector:4317", 4317),
        ("http://collector2", 80),
        ("https://collector2", 443),
        ("https://[2001:db8::17]", 443),
        ("https://[2001:db8::17]:4317", 4317),
    ] {
        let endpoint = format!("otlp.endpoint={endpoint}");
        let mut expected = expected(false, None);
        for role in ["gateway", "coordinator", "worker"] {
            expected.insert((role.to_owned(), "to", "any".to_owned(), port));
        }
        assert_eq!(edges(&rendered(&["--set", &endpoint])), expected, "{endpoint}");
    }
}

#[test]
fn every_pod_has_one_policy() {
    for size in SIZES {
        let objects = rendered(size);
        let policies = of_kind(&objects, "NetworkPolicy");
        for workload in workloads(&objects) {
            let labels = &workload["spec"]["template"]["metadata"]["labels"];
            let own = |p: &&&Value| selects(&p["spec"]["podSelector"]["matchLabels"], labels);
            assert_eq!(policies.iter().filter(own).count(), 1, "{}", name(workload));
        }
    }
    let without = rendered(&["--set", "networkPolicy.enabled=false"]);
    assert!(of_kind(&without, "NetworkPolicy").is_empty());
}
